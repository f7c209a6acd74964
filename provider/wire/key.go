package wire

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	sigsjson "sigs.k8s.io/json"

	"github.com/archkeeper/archkeeper/provider"
)

// The limits of a structured key.
const (
	// KeyVersion is the only value of the field v.
	KeyVersion = 1
	// MaxKey is the greatest length of a key in bytes.
	MaxKey = 16 << 10
	// MaxPullSecrets is how many pull secrets a key may name.
	MaxPullSecrets = 64
)

// Key is a structured key of POST /v1/namespaced: an image, and the pod's
// namespace, service account and pull secrets as the kubelet would use them.
type Key struct {
	Image            string
	ImagePullSecrets []string
	Namespace        string
	ServiceAccount   string
	V                int
}

// keyJSON has its fields in alphabetical order, as Rego's json.marshal writes them.
type keyJSON struct {
	Image            *string  `json:"image"`
	ImagePullSecrets []string `json:"imagePullSecrets"`
	Namespace        *string  `json:"namespace"`
	ServiceAccount   *string  `json:"serviceAccount"`
	V                *int     `json:"v"`
}

// Structured tells whether text looks like a structured key. Such a text is no
// image reference, and is refused wherever plain references are expected.
func Structured(text string) bool {
	return strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[")
}

// ParseKey reads a structured key, strictly: known fields only, each once, in
// the right case; image, namespace and v there and v = 1; namespace a DNS-1123
// label; service account and secrets DNS-1123 subdomains; the limits above. An
// empty serviceAccount, or none, names none. Empty names among the secrets are
// dropped, which Kubernetes allows in a pod and the kubelet ignores. The image
// is not looked at. Errors are *provider.Error of ClassMalformed.
func ParseKey(text string) (Key, error) {
	if len(text) > MaxKey {
		return Key{}, malformedKey("is longer than %d bytes", MaxKey)
	}
	if !strings.HasPrefix(text, "{") {
		return Key{}, malformedKey("is no JSON object: %s", provider.Quote(text))
	}
	var raw keyJSON
	strict, err := sigsjson.UnmarshalStrict([]byte(text), &raw)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return Key{}, malformedKey("cannot be read: %s", provider.Printable(err.Error()))
	}
	switch {
	case raw.V == nil || *raw.V != KeyVersion:
		return Key{}, malformedKey("must have v = %d", KeyVersion)
	case raw.Image == nil || *raw.Image == "":
		return Key{}, malformedKey("names no image")
	case raw.Namespace == nil || len(validation.IsDNS1123Label(*raw.Namespace)) > 0:
		return Key{}, malformedKey("has no valid namespace: %s", quoteOrNone(raw.Namespace))
	case raw.ServiceAccount != nil && *raw.ServiceAccount != "" && len(validation.IsDNS1123Subdomain(*raw.ServiceAccount)) > 0:
		return Key{}, malformedKey("has no valid serviceAccount: %s", quoteOrNone(raw.ServiceAccount))
	case len(raw.ImagePullSecrets) > MaxPullSecrets:
		return Key{}, malformedKey("names more than %d imagePullSecrets", MaxPullSecrets)
	}
	key := Key{Image: *raw.Image, Namespace: *raw.Namespace, V: KeyVersion}
	if raw.ServiceAccount != nil {
		key.ServiceAccount = *raw.ServiceAccount
	}
	for _, secret := range raw.ImagePullSecrets {
		if secret == "" {
			continue
		}
		if len(validation.IsDNS1123Subdomain(secret)) > 0 {
			return Key{}, malformedKey("names an invalid pull secret: %s", provider.Quote(secret))
		}
		key.ImagePullSecrets = append(key.ImagePullSecrets, secret)
	}
	return key, nil
}

// String writes the key as Rego's json.marshal does: sorted fields, no spaces,
// <, > and & escaped. A V of 0 is written as KeyVersion.
func (k Key) String() string {
	version := k.V
	if version == 0 {
		version = KeyVersion
	}
	secrets := k.ImagePullSecrets
	if secrets == nil {
		secrets = []string{}
	}
	text, err := json.Marshal(keyJSON{
		Image: &k.Image, ImagePullSecrets: secrets, Namespace: &k.Namespace, ServiceAccount: &k.ServiceAccount, V: &version,
	})
	if err != nil {
		return "" // strings and a number always marshal
	}
	return string(text)
}

// Query gives the question that the key asks.
func (k Key) Query() provider.Query {
	return provider.Query{Image: k.Image, Scope: provider.Scope{
		Namespace: k.Namespace, ServiceAccount: k.ServiceAccount, ImagePullSecrets: slices.Clone(k.ImagePullSecrets),
	}}
}

// KeyFromQuery gives the key that asks a query of a namespace.
func KeyFromQuery(query provider.Query) Key {
	return Key{
		Image: query.Image, Namespace: query.Scope.Namespace, ServiceAccount: query.Scope.ServiceAccount,
		ImagePullSecrets: slices.Clone(query.Scope.ImagePullSecrets), V: KeyVersion,
	}
}

func malformedKey(format string, args ...any) error {
	err := provider.Errorf(provider.ClassMalformed, format, args...)
	err.Message = "the structured key " + err.Message
	return err
}

func quoteOrNone(text *string) string {
	if text == nil {
		return "none is given"
	}
	return provider.Quote(*text)
}
