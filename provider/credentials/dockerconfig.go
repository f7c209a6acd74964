package credentials

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Format of a file or secret that lists credentials.
type Format int

// The formats that Kubernetes has secret types for.
const (
	// DockerConfigJSON is {"auths": {"<location>": {...}}}.
	DockerConfigJSON Format = iota
	// Dockercfg, the older one, is {"<location>": {...}}.
	Dockercfg
)

// maxConfigBytes bounds a configuration; the API server takes secrets up to 1 MiB.
const maxConfigBytes = 1 << 20

// entry is one location of a configuration and what may be shown there.
type entry struct {
	pattern    pattern
	credential Credential
}

// parseConfig reads the credentials of a configuration. Both results may be
// set: a broken entry is named in the error and spoils no other. Entries without
// any credential are left out. Errors name locations, never what they hold; an
// error of a configuration that is not JSON says only that.
func parseConfig(source string, data []byte, format Format) ([]entry, error) {
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("is larger than %d bytes", maxConfigBytes)
	}
	var auths map[string]json.RawMessage
	if format == DockerConfigJSON {
		var config struct {
			Auths map[string]json.RawMessage `json:"auths"`
		}
		if json.Unmarshal(data, &config) != nil {
			return nil, errors.New("is not the JSON of a Docker configuration")
		}
		auths = config.Auths
	} else if json.Unmarshal(data, &auths) != nil {
		return nil, errors.New("is not the JSON of a Docker configuration")
	}

	locations := make([]string, 0, len(auths))
	for location := range auths {
		locations = append(locations, location)
	}
	slices.Sort(locations)

	var entries []entry
	var broken []error
	for _, location := range locations {
		auth, err := parseEntry(auths[location])
		if err != nil {
			broken = append(broken, fmt.Errorf("entry %q %w", shorten(location), err))
			continue
		}
		credential := New(source, auth)
		if credential.Anonymous() {
			continue
		}
		pattern, err := parseLocation(location)
		if err != nil {
			broken = append(broken, fmt.Errorf("entry %q %w", shorten(location), err))
			continue
		}
		entries = append(entries, entry{pattern: pattern, credential: credential})
	}
	return entries, errors.Join(broken...)
}

// parseEntry reads one entry. "auth", when it is set, wins over "username" and
// "password", as in the kubelet. Identity and registry tokens, which the kubelet
// does not read, are kept.
func parseEntry(data json.RawMessage) (authn.AuthConfig, error) {
	var fields struct {
		Username      string `json:"username"`
		Password      string `json:"password"`
		Auth          string `json:"auth"`
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	}
	if json.Unmarshal(data, &fields) != nil {
		return authn.AuthConfig{}, errors.New("is not an object of strings")
	}
	auth := authn.AuthConfig{
		Username: fields.Username, Password: fields.Password,
		IdentityToken: fields.IdentityToken, RegistryToken: fields.RegistryToken,
	}
	if fields.Auth == "" {
		return auth, nil
	}
	username, password, err := decodeAuth(fields.Auth)
	if err != nil {
		return authn.AuthConfig{}, err
	}
	auth.Username, auth.Password = username, password
	return auth, nil
}

// decodeAuth reads base64(username:password), padded or not. Docker clients end
// the password of old entries with NUL bytes, which are no part of it.
func decodeAuth(field string) (username, password string, err error) {
	field = strings.TrimSpace(field)
	decoded, err := base64.StdEncoding.DecodeString(field)
	if err != nil {
		decoded, err = base64.RawStdEncoding.DecodeString(field)
	}
	if err != nil {
		return "", "", errors.New(`has an "auth" that is not base64`)
	}
	user, pass, found := bytes.Cut(decoded, []byte(":"))
	if !found {
		return "", "", errors.New(`has an "auth" that is not <username>:<password>`)
	}
	return string(user), string(bytes.Trim(pass, "\x00")), nil
}

// shorten keeps a location that somebody else wrote from flooding a message.
func shorten(location string) string {
	if len(location) > 100 {
		return location[:100] + "..."
	}
	return location
}
