// Package credentials finds the pull credentials that the kubelet would use for
// an image: those of a pod's secrets, of files of the node and of its credential
// provider plugins. It alone reads secrets.
//
// What it gives redacts itself; what it says of failures names objects and
// files, never their content.
package credentials

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Credential is what one registry may be shown. However it is printed, logged
// or encoded, by itself or inside another value, only its source is seen.
// The zero Credential is Anonymous.
type Credential struct {
	source string
	print  [sha256.Size]byte
	// reveal closes over the secret: reflection does not look into closures,
	// so that fmt cannot print it even as an unexported field of another type.
	reveal func() authn.AuthConfig
}

// Anonymous is the credential of nobody. Its fingerprint is all zeros, in every
// process: what anonymous callers learn may be kept across restarts.
func Anonymous() Credential { return Credential{} }

// New makes a Credential. source says where it is from, such as "secret ns/name";
// it is shown to people. An empty auth gives Anonymous. Of auth.Auth, the
// base64 form, nothing is read: decode it into Username and Password first.
func New(source string, auth authn.AuthConfig) Credential {
	auth.Auth = ""
	if auth == (authn.AuthConfig{}) {
		return Anonymous()
	}
	return Credential{
		source: source,
		print:  fingerprint(auth),
		reveal: func() authn.AuthConfig { return auth },
	}
}

// Anonymous tells whether nothing is shown to the registry.
func (c Credential) Anonymous() bool { return c.reveal == nil }

// Source says where the credential is from: "secret ns/name", "authfile /path",
// "plugin name", or "anonymous".
func (c Credential) Source() string {
	if c.Anonymous() {
		return "anonymous"
	}
	return c.source
}

// AuthConfig reveals the secret, for the one who shows it to the registry.
func (c Credential) AuthConfig() authn.AuthConfig {
	if c.Anonymous() {
		return authn.AuthConfig{}
	}
	return c.reveal()
}

// Fingerprint identifies the secret without telling it: an HMAC-SHA-256 under a
// random key of this process. Equal secrets have equal prints, whatever their
// source; prints of two processes cannot be compared. All zeros for Anonymous.
func (c Credential) Fingerprint() [sha256.Size]byte { return c.print }

// String gives "Credential(<source>)".
func (c Credential) String() string { return "Credential(" + c.Source() + ")" }

// Format writes String for every verb and flag; %q quotes it.
func (c Credential) Format(state fmt.State, verb rune) {
	text := c.String()
	if verb == 'q' {
		text = strconv.Quote(text)
	}
	_, _ = state.Write([]byte(text)) // an fmt.State has nowhere to report to
}

// LogValue gives String, for log/slog.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText gives String, for encoding/json, YAML and every other encoder
// that asks.
func (c Credential) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// fingerprintKey is drawn once for the process: a fingerprint that leaks cannot
// be tried against a dictionary of passwords.
var fingerprintKey = sync.OnceValue(func() []byte { //nolint:gochecknoglobals // one for the process is its meaning
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails: crypto/rand ends the process instead
	return key
})

func fingerprint(auth authn.AuthConfig) (sum [sha256.Size]byte) {
	mac := hmac.New(sha256.New, fingerprintKey())
	for _, part := range []string{auth.Username, auth.Password, auth.IdentityToken, auth.RegistryToken} {
		fmt.Fprintf(mac, "%d:%s", len(part), part) // the length keeps moved letters apart
	}
	copy(sum[:], mac.Sum(nil))
	return sum
}
