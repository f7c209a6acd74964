package credentials

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"sigs.k8s.io/yaml"
)

// secretParts appear in no output. They are of letters that hexadecimal, base64
// and quoted forms are searched for too.
var secretParts = authn.AuthConfig{Username: "zaphodzaphod", Password: "hunter2hunter2", IdentityToken: "idtokenidtoken", RegistryToken: "regtokenregtoken"}

// leaks names the secret that a text holds, in plain or in an encoding.
func leaks(text string) string {
	for _, secret := range []string{secretParts.Username, secretParts.Password, secretParts.IdentityToken, secretParts.RegistryToken} {
		decimal := strings.Trim(fmt.Sprint([]byte(secret)), "[]")
		for _, form := range []string{
			secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("% x", secret), decimal,
			base64.RawStdEncoding.EncodeToString([]byte(secret))[:8],
		} {
			if strings.Contains(text, form) {
				return secret + " as " + form
			}
		}
	}
	return ""
}

func TestLeaksIsNotBlind(t *testing.T) {
	for _, text := range []string{fmt.Sprintf("%+v", secretParts), fmt.Sprintf("%x", secretParts.Password), fmt.Sprint([]byte("hunter2hunter2")), base64.StdEncoding.EncodeToString([]byte("hunter2hunter2"))} {
		if leaks(text) == "" {
			t.Errorf("%q is taken for clean", text)
		}
	}
}

func TestNoVerbLeaks(t *testing.T) {
	credential := New("secret ns/name", secretParts)
	type exported struct{ Credential Credential }
	type hidden struct {
		credential Credential
		pointer    *Credential
		list       []Credential
		table      map[string]Credential
		any        any
		nested     entry
		held       *held
	}
	values := map[string]any{
		"by value":                 credential,
		"by pointer":               &credential,
		"by pointer to pointer":    func() any { p := &credential; return &p }(),
		"in a slice":               []Credential{credential},
		"in an array":              [1]Credential{credential},
		"in a map":                 map[string]Credential{"k": credential},
		"in an exported field":     exported{credential},
		"in unexported fields":     hidden{credential: credential, pointer: &credential, list: []Credential{credential}, table: map[string]Credential{"k": credential}, any: credential, nested: entry{credential: credential}, held: &held{entries: []entry{{credential: credential}}}},
		"an entry":                 entry{credential: credential},
		"an object from the watch": &held{entries: []entry{{credential: credential}}},
		"a plugin's answer":        pluginAnswer{entries: []entry{{credential: credential}}},
		"its method values":        []any{credential.AuthConfig, credential.Source},
	}
	verbs := "vTtbcdoOqxXUeEfFgGspw!z"
	for name, value := range values {
		for _, verb := range verbs {
			for _, flags := range []string{"", "+", "#", " ", "0", "-", "+#", "# ", "30", ".200", "-30.3"} {
				format := "%" + flags + string(verb)
				if got := leaks(fmt.Sprintf(format, value)); got != "" {
					t.Errorf("%s with %s leaks %s", name, format, got)
				}
			}
		}
		for _, wrapped := range []error{fmt.Errorf("lookup: %v", value), fmt.Errorf("lookup: %+v %#v", value, value)} {
			if got := leaks(wrapped.Error()); got != "" {
				t.Errorf("%s in an error leaks %s", name, got)
			}
		}
	}
	if got := fmt.Sprint(credential); got != "Credential(secret ns/name)" {
		t.Errorf("%%v gives %s", got)
	}
	if got := fmt.Sprintf("%q", credential); got != `"Credential(secret ns/name)"` {
		t.Errorf("%%q gives %s", got)
	}
}

func TestNoEncoderLeaks(t *testing.T) {
	credential := New("secret ns/name", secretParts)
	type document struct {
		Credential Credential            `json:"credential"`
		Pointer    *Credential           `json:"pointer"`
		Keys       map[string]Credential `json:"keys"`
	}
	value := document{credential, &credential, map[string]Credential{"k": credential}}
	outputs := map[string]string{}
	var text, structured bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("m", "credential", credential, "document", value, "pointer", &credential, slog.Any("any", []any{credential}))
	slog.New(slog.NewJSONHandler(&structured, nil)).Info("m", "credential", credential, "document", value, "pointer", &credential, slog.Any("any", []any{credential}))
	outputs["slog text"], outputs["slog JSON"] = text.String(), structured.String()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	outputs["JSON"] = string(data)
	if data, err = yaml.Marshal(value); err != nil {
		t.Fatal(err)
	}
	outputs["YAML"] = string(data)
	var binary bytes.Buffer
	_ = gob.NewEncoder(&binary).Encode(value) // whether it can be encoded does not matter
	outputs["gob"] = binary.String()
	outputs["cmp.Diff"] = cmp.Diff(credential, Anonymous(), cmp.Transformer("any", func(c Credential) any { return c.String() }))
	if data, err = encoding.TextMarshaler(credential).MarshalText(); err != nil {
		t.Fatal(err)
	}
	outputs["text"] = string(data)
	for name, output := range outputs {
		if got := leaks(output); got != "" {
			t.Errorf("%s leaks %s:\n%s", name, got, output)
		}
		if name != "gob" && name != "cmp.Diff" && !strings.Contains(output, "secret ns/name") {
			t.Errorf("%s does not tell the source: %s", name, output)
		}
	}
}

func TestFingerprint(t *testing.T) {
	base := authn.AuthConfig{Username: "u", Password: "p"}
	for name, test := range map[string]struct {
		a, b Credential
		want bool
	}{
		"equal secrets of different sources are equal": {New("secret a/x", base), New("authfile /f", base), true},
		"another password is not":                      {New("s", base), New("s", authn.AuthConfig{Username: "u", Password: "q"}), false},
		"another user is not":                          {New("s", base), New("s", authn.AuthConfig{Username: "v", Password: "p"}), false},
		"moved letters are not":                        {New("s", authn.AuthConfig{Username: "ab", Password: "c"}), New("s", authn.AuthConfig{Username: "a", Password: "bc"}), false},
		"a token is not a password":                    {New("s", authn.AuthConfig{Password: "t"}), New("s", authn.AuthConfig{IdentityToken: "t"}), false},
		"kinds of token differ":                        {New("s", authn.AuthConfig{RegistryToken: "t"}), New("s", authn.AuthConfig{IdentityToken: "t"}), false},
		"a secret is not anonymous":                    {New("s", base), Anonymous(), false},
		"nothing to show is anonymous":                 {New("s", authn.AuthConfig{}), Anonymous(), true},
		"the zero value is anonymous":                  {Credential{}, Anonymous(), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.a.Fingerprint() == test.b.Fingerprint(); got != test.want {
				t.Errorf("equal: %v, want %v", got, test.want)
			}
		})
	}
	if Anonymous().Fingerprint() != [32]byte{} || Anonymous().Source() != "anonymous" || Anonymous().AuthConfig() != (authn.AuthConfig{}) {
		t.Error("the anonymous credential is not the well-known one")
	}
	if got := New("s", base).AuthConfig(); got != base {
		t.Errorf("AuthConfig gives %v", got.Username)
	}
}
