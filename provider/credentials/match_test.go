package credentials

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

// users makes entries, one for each location, whose user is the location.
func users(t *testing.T, locations ...string) []entry {
	t.Helper()
	var entries []entry
	for _, location := range locations {
		parsed, err := parseLocation(location)
		if err != nil {
			t.Fatalf("location %q %v", location, err)
		}
		entries = append(entries, entry{pattern: parsed, credential: New("test", authn.AuthConfig{Username: location})})
	}
	return entries
}

func names(credentials []Credential) string {
	var list []string
	for _, credential := range credentials {
		list = append(list, credential.AuthConfig().Username)
	}
	return strings.Join(list, " ")
}

// TestMatching: the rules of pkg/credentialprovider/keyring.go of Kubernetes,
// which tests/oracle compares with the original.
func TestMatching(t *testing.T) {
	for name, test := range map[string]struct {
		locations string // separated by spaces
		image     string
		want      string // the locations found, in order
	}{
		"a host matches its images":                         {"quay.io", "quay.io/team/app", "quay.io"},
		"another host does not":                             {"quay.io", "ghcr.io/team/app", ""},
		"a host is compared whole":                          {"quay.io", "myquay.io/app", ""},
		"a scheme is dropped":                               {"https://quay.io", "quay.io/app", "https://quay.io"},
		"http too":                                          {"http://quay.io", "quay.io/app", "http://quay.io"},
		"/v1/ is dropped":                                   {"https://quay.io/v1/", "quay.io/app", "https://quay.io/v1/"},
		"/v2/ is dropped":                                   {"quay.io/v2/", "quay.io/app", "quay.io/v2/"},
		"a path behind /v2/ counts":                         {"quay.io/v2/team", "quay.io/other/app", ""},
		"/v2 without a slash is a path":                     {"quay.io/v2", "quay.io/app", ""},
		"a port must be equal":                              {"quay.io:5000", "quay.io:5000/app", "quay.io:5000"},
		"a port that the image does not have":               {"quay.io:443", "quay.io/app", ""},
		"a port that the location does not have":            {"quay.io", "quay.io:443/app", ""},
		"a glob covers one label":                           {"*.k.io", "a.k.io/app", "*.k.io"},
		"not none":                                          {"*.k.io", "k.io/app", ""},
		"not two":                                           {"*.k.io", "a.b.k.io/app", ""},
		"two globs cover two":                               {"*.*.k.io", "a.b.k.io/app", "*.*.k.io"},
		"a glob in the middle":                              {"a.*.io", "a.k.io/app", "a.*.io"},
		"a glob for the last label":                         {"k8s.*", "k8s.io/app", "k8s.*"},
		"a glob for a part of a label":                      {"app*.k.io", "app7.k.io/x", "app*.k.io"},
		"a glob with a port":                                {"*.k.io:5000", "a.k.io:5000/x", "*.k.io:5000"},
		"a glob in a path is none":                          {"k.io/*/app", "k.io/team/app", ""},
		"a path is a prefix":                                {"quay.io/team", "quay.io/team/app", "quay.io/team"},
		"a path is a prefix of letters, not of segments":    {"quay.io/team", "quay.io/teammate/app", "quay.io/team"},
		"another path does not match":                       {"quay.io/team", "quay.io/other/app", ""},
		"a longer path comes first":                         {"quay.io quay.io/team/app quay.io/team", "quay.io/team/app", "quay.io/team/app quay.io/team quay.io"},
		"a name comes before a glob":                        {"*.k.io a.k.io", "a.k.io/app", "a.k.io *.k.io"},
		"the order is by text: a glob's path does not help": {"*.k.io/team a.k.io", "a.k.io/team/app", "a.k.io *.k.io/team"},
		"the hub's key serves its images":                   {"https://index.docker.io/v1/", "docker.io/library/busybox", "https://index.docker.io/v1/"},
		"the hub's bare name serves too":                    {"docker.io", "docker.io/library/busybox", "docker.io"},
		"a match by name comes before the hub's key":        {"https://index.docker.io/v1/ docker.io/team", "docker.io/team/app", "docker.io/team"},
		"a name without a registry is on the hub":           {"index.docker.io", "library/busybox", "index.docker.io"},
		"a single word is on the hub":                       {"index.docker.io", "busybox", "index.docker.io"},
		"localhost without a port counts as the hub's":      {"index.docker.io", "localhost/app", "index.docker.io"},
		"localhost with a port does not":                    {"index.docker.io", "localhost:5000/app", ""},
		"the hub's key with a path serves that path":        {"https://index.docker.io/v1/team", "docker.io/other/app", ""},
		"registry-1.docker.io is another host":              {"registry-1.docker.io", "docker.io/library/busybox", ""},
		"the hub's key serves no other registry":            {"https://index.docker.io/v1/", "quay.io/app", ""},
		"an IPv6 host with a port":                          {"[::1]:5000", "[::1]:5000/app", "[::1]:5000"},
		"upper case is another host":                        {"Quay.io", "quay.io/app", ""},
		"a user in the location is no part of the host":     {"https://me@quay.io", "quay.io/app", "https://me@quay.io"},
	} {
		t.Run(name, func(t *testing.T) {
			got := names(selectFor(test.image, users(t, strings.Fields(test.locations)...)))
			if got != test.want {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}

func TestSeveralCredentialsForOneHost(t *testing.T) {
	at := func(location, user string) entry {
		return entry{pattern: users(t, location)[0].pattern, credential: New("test", authn.AuthConfig{Username: user})}
	}
	entries := []entry{at("quay.io", "first"), at("https://quay.io", "second"), at("quay.io", "first"), at("quay.io/team", "third")}
	if got, want := names(selectFor("quay.io/team/app", entries)), "third first second"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

// FuzzMatching: nothing that a location or an image holds makes matching fail,
// and what matched once matches again.
func FuzzMatching(f *testing.F) {
	for _, seed := range [][2]string{{"*.k.io", "a.k.io/app"}, {"[::1]:5000/x", "[::1]:5000/x"}, {"https://index.docker.io/v1/", "busybox"}, {"[", "["}, {"a.[b/c", "%zz"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, location, image string) {
		parsed, err := parseLocation(location)
		if err != nil {
			return
		}
		entries := []entry{{pattern: parsed, credential: New("test", authn.AuthConfig{Username: "u"})}}
		first, second := selectFor(image, entries), selectFor(image, entries)
		if len(first) != len(second) || len(first) > 1 {
			t.Errorf("found %d, then %d", len(first), len(second))
		}
	})
}

func TestParseConfig(t *testing.T) {
	// c3BhbTplZ2dz is spam:eggs.
	for name, test := range map[string]struct {
		data   string
		format Format
		want   string // location key=user:password:identity:registry, joined
		err    string // part of the error, or ""
	}{
		"auth":                                {`{"auths":{"h":{"auth":"c3BhbTplZ2dz"}}}`, DockerConfigJSON, "h=spam:eggs::", ""},
		"username and password":               {`{"auths":{"h":{"username":"u","password":"p"}}}`, DockerConfigJSON, "h=u:p::", ""},
		"auth wins over username":             {`{"auths":{"h":{"username":"u","password":"p","auth":"c3BhbTplZ2dz"}}}`, DockerConfigJSON, "h=spam:eggs::", ""},
		"an empty auth does not":              {`{"auths":{"h":{"username":"u","password":"p","auth":""}}}`, DockerConfigJSON, "h=u:p::", ""},
		"auth without padding":                {`{"auths":{"h":{"auth":"YTpiYw"}}}`, DockerConfigJSON, "h=a:bc::", ""},
		"a password with colons":              {`{"auths":{"h":{"auth":"YTpiOmM="}}}`, DockerConfigJSON, "h=a:b:c::", ""},
		"the NULs of old clients":             {`{"auths":{"h":{"auth":"YTpiAAA="}}}`, DockerConfigJSON, "h=a:b::", ""},
		"identitytoken":                       {`{"auths":{"h":{"identitytoken":"i"}}}`, DockerConfigJSON, "h=::i:", ""},
		"identitytoken beside auth":           {`{"auths":{"h":{"auth":"c3BhbTplZ2dz","identitytoken":"i"}}}`, DockerConfigJSON, "h=spam:eggs:i:", ""},
		"registrytoken":                       {`{"auths":{"h":{"registrytoken":"r"}}}`, DockerConfigJSON, "h=:::r", ""},
		"unknown fields are passed over":      {`{"auths":{"h":{"auth":"c3BhbTplZ2dz","email":"e"}},"credsStore":"x","HttpHeaders":{}}`, DockerConfigJSON, "h=spam:eggs::", ""},
		"an entry without anything":           {`{"auths":{"h":{}}}`, DockerConfigJSON, "", ""},
		"an entry that is null":               {`{"auths":{"h":null}}`, DockerConfigJSON, "", ""},
		"it hides no other":                   {`{"auths":{"a":{},"h":{"username":"u"}}}`, DockerConfigJSON, "h=u:::", ""},
		"no auths at all":                     {`{}`, DockerConfigJSON, "", ""},
		"auths that is null":                  {`{"auths":null}`, DockerConfigJSON, "", ""},
		"dockercfg":                           {`{"h":{"auth":"c3BhbTplZ2dz","email":"e"}}`, Dockercfg, "h=spam:eggs::", ""},
		"a broken entry is named":             {`{"auths":{"bad":{"auth":"!!"},"h":{"username":"u"}}}`, DockerConfigJSON, "h=u:::", `entry "bad" has an "auth" that is not base64`},
		"auth without a colon":                {`{"auths":{"bad":{"auth":"c3BhbQ=="}}}`, DockerConfigJSON, "", `entry "bad" has an "auth" that is not <username>:<password>`},
		"an entry of another type":            {`{"auths":{"bad":["hunter2"],"h":{"username":"u"}}}`, DockerConfigJSON, "h=u:::", `entry "bad" is not an object of strings`},
		"a field of another type":             {`{"auths":{"bad":{"password":7},"h":{"username":"u"}}}`, DockerConfigJSON, "h=u:::", `entry "bad" is not an object of strings`},
		"a location that is none":             {`{"auths":{"a b%zz":{"username":"u"},"h":{"username":"u"}}}`, DockerConfigJSON, "h=u:::", `is no location of a registry`},
		"two broken entries are both named":   {`{"auths":{"b1":{"auth":"!"},"b2":{"auth":"!"}}}`, DockerConfigJSON, "", "entry \"b2\""},
		"no JSON":                             {`hunter2`, DockerConfigJSON, "", "is not the JSON of a Docker configuration"},
		"JSON cut short":                      {`{"auths":{"h":{"auth":"c3Bh`, DockerConfigJSON, "", "is not the JSON of a Docker configuration"},
		"an array":                            {`[]`, Dockercfg, "", "is not the JSON of a Docker configuration"},
		"a location that is very long is cut": {`{"auths":{"` + strings.Repeat("a", 5000) + `":{"auth":"!"}}}`, DockerConfigJSON, "", `aaa..." has an`},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := parseConfig("secret ns/name", []byte(test.data), test.format)
			var got []string
			for _, e := range entries {
				a := e.credential.AuthConfig()
				got = append(got, e.pattern.key+"="+strings.Join([]string{a.Username, a.Password, a.IdentityToken, a.RegistryToken}, ":"))
				if e.credential.Source() != "secret ns/name" {
					t.Errorf("source is %q", e.credential.Source())
				}
			}
			slices.Sort(got)
			if joined := strings.Join(got, " "); joined != test.want {
				t.Errorf("read %q, want %q", joined, test.want)
			}
			switch {
			case (err == nil) != (test.err == ""), err != nil && !strings.Contains(err.Error(), test.err):
				t.Errorf("error is %v, want %q", err, test.err)
			case err != nil && (strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 500):
				t.Errorf("error holds content: %v", err)
			}
		})
	}
	if _, err := parseConfig("s", make([]byte, maxConfigBytes+1), Dockercfg); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("a configuration above the limit: %v", err)
	}
}

// FuzzParseConfig: whatever a secret holds, no error repeats a value of it.
func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		`{"auths":{"h":{"auth":"c3BhbTplZ2dz"}}}`, `{"h":{"username":"u","password":"p"}}`, `{"auths":{"*.k.io:5000/x":{"identitytoken":"i"}}}`,
		`{"auths":{"h":{}}}`, `{"auths":{"h":{"auth":"!!"}}}`, `[]`, `null`, `{"auths":7}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, older bool) {
		format := DockerConfigJSON
		if older {
			format = Dockercfg
		}
		entries, _ := parseConfig("source", data, format)
		for _, e := range entries {
			if e.credential.Anonymous() || e.pattern.key == "" && len(e.pattern.labels) == 0 {
				t.Errorf("entry %+v", e)
			}
			selectFor("docker.io/library/busybox", entries)
		}
	})
}
