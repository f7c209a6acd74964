package mirrors

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func mustParse(t *testing.T, text string) imageref.Reference {
	t.Helper()
	ref, err := imageref.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// places writes candidates as "reference", with "!" behind an insecure one.
func places(res Resolution) []string {
	var out []string
	for _, c := range res.Candidates {
		text := strings.ReplaceAll(c.Reference.String(), "@"+someDigest, "@D")
		if c.Insecure {
			text += "!"
		}
		out = append(out, text)
	}
	return out
}

func TestResolve(t *testing.T) {
	const conf = `
unqualified-search-registries = ["docker.io", "quay.io/"]
[[registry]]
location = "plain.io"
[[registry.mirror]]
location = "both.io/p"
[[registry.mirror]]
location = "digest.io/p"
pull-from-mirror = "digest-only"
insecure = true
[[registry.mirror]]
location = "tag.io/p"
pull-from-mirror = "tag-only"

[[registry]]
location = "blocked.io"
blocked = true
[[registry.mirror]]
location = "m.io/b"

[[registry]]
prefix = "*.wild.io"
insecure = true
[[registry.mirror]]
location = "m.io/w"

[[registry]]
prefix = "old.io/ns"
location = "new.io/moved"
mirror-by-digest-only = true
[[registry.mirror]]
location = "m.io/o"

[[registry]]
location = "skips.io"
[[registry.mirror]]
location = "blocked.io/s"
[[registry.mirror]]
location = "m.io/s"

[[registry]]
location = "hubbed.io"
[[registry.mirror]]
location = "docker.io"

[[registry]]
prefix = "*.x"
[[registry.mirror]]
location = "m.io/wins"

[[registry]]
location = "a.x"
[[registry.mirror]]
location = "m.io/loses"
`
	c, err := ParseRegistriesConf(NamedFile{"registries.conf", []byte(conf)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"docker.io", "quay.io"}, c.SearchRegistries()); diff != "" {
		t.Error(diff)
	}
	for name, tc := range map[string]struct {
		ref     string
		want    []string
		blocked bool
		fails   bool
	}{
		"no entry: the reference itself": {ref: "other.io/a:1", want: []string{"other.io/a:1"}},
		"the hub by its short name":      {ref: "busybox", want: []string{"docker.io/library/busybox:latest"}},
		"by tag":                         {ref: "plain.io/a:1", want: []string{"both.io/p/a:1", "tag.io/p/a:1", "plain.io/a:1"}},
		"by digest":                      {ref: "plain.io/a@D", want: []string{"both.io/p/a@D", "digest.io/p/a@D!", "plain.io/a@D"}},
		"a tag beside a digest is a pull by digest":     {ref: "plain.io/a:1@D", want: []string{"both.io/p/a:1@D", "digest.io/p/a:1@D!", "plain.io/a:1@D"}},
		"quay.io inside quay.io.example.com":            {ref: "plain.io.example.com/a:1", want: []string{"plain.io.example.com/a:1"}},
		"a blocked source still uses its mirrors":       {ref: "blocked.io/a:1", want: []string{"m.io/b/a:1"}, blocked: true},
		"a blocked mirror is skipped":                   {ref: "skips.io/a:1", want: []string{"m.io/s/a:1", "skips.io/a:1"}},
		"a wildcard covers the host":                    {ref: "foo.wild.io/i:1", want: []string{"m.io/w/i:1", "foo.wild.io/i:1!"}},
		"a wildcard covers several labels":              {ref: "b.foo.wild.io/i:1", want: []string{"m.io/w/i:1", "b.foo.wild.io/i:1!"}},
		"a wildcard does not cover its own domain":      {ref: "wild.io/i:1", want: []string{"wild.io/i:1"}},
		"a wildcard with a port makes no reference":     {ref: "foo.wild.io:5000/i:1", fails: true},
		"a wildcard looks at the host alone":            {ref: "other.io/foo.wild.io/i:1", want: []string{"other.io/foo.wild.io/i:1"}},
		"a prefix that moves":                           {ref: "old.io/ns/a:1", want: []string{"new.io/moved/a:1"}},
		"mirror-by-digest-only":                         {ref: "old.io/ns/a@D", want: []string{"m.io/o/a@D", "new.io/moved/a@D"}},
		"a portless entry matches a port":               {ref: "plain.io:5000/a:1", fails: true},
		"the hub as mirror of one component":            {ref: "hubbed.io/a:1", fails: true},
		"the hub as mirror of two components":           {ref: "hubbed.io/a/b:1", want: []string{"docker.io/a/b:1", "hubbed.io/a/b:1"}},
		"of equal length the wildcard wins":             {ref: "a.x/i:1", want: []string{"m.io/wins/i:1", "a.x/i:1"}},
		"a name that grows beyond 255 characters fails": {ref: "plain.io/" + strings.Repeat("a", 246) + ":1", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.Resolve(mustParse(t, strings.ReplaceAll(tc.ref, "@D", "@"+someDigest)))
			if diff := cmp.Diff(tc.want, places(got)); diff != "" {
				t.Error(diff)
			}
			if got.Blocked != tc.blocked {
				t.Errorf("blocked = %v", got.Blocked)
			}
			if (got.Err != nil) != tc.fails {
				t.Errorf("err = %v", got.Err)
			}
			if got.Err != nil && got.Err.Class != provider.ClassUnreachable {
				t.Errorf("class %s", got.Err.Class)
			}
		})
	}
	t.Run("a nil config resolves to the reference itself", func(t *testing.T) {
		var none *Config
		got := none.Resolve(mustParse(t, "a.io/b"))
		if diff := cmp.Diff([]string{"a.io/b:latest"}, places(got)); diff != "" || got.Blocked || got.Candidates[0].Mirror {
			t.Errorf("%+v", got)
		}
	})
	t.Run("what is skipped is named", func(t *testing.T) {
		got := c.Resolve(mustParse(t, "skips.io/a:1")).Skipped
		if len(got) != 1 || got[0].Reference.String() != "blocked.io/s/a:1" || got[0].Prefix != "blocked.io" {
			t.Errorf("%+v", got)
		}
	})
}

func TestParseRegistriesConfRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ conf, want string }{
		"broken TOML":                            {"a = 1\nb = = 2", "line 2"},
		"version 1":                              {"[registries.search]\nregistries = [\"a.io\"]", "version 1"},
		"neither prefix nor location":            {"[[registry]]\nblocked = true", "neither prefix nor location"},
		"a prefix without location":              {"[[registry]]\nprefix = \"a.io\"", "no location"},
		"a wildcard with a path":                 {"[[registry]]\nprefix = \"*.a.io/b\"", "more than a host"},
		"a wildcard with a port":                 {"[[registry]]\nprefix = \"*.a.io:5\"", "more than a host"},
		"pull-from-mirror on the primary":        {"[[registry]]\nlocation = \"a.io\"\npull-from-mirror = \"all\"", "belongs to a mirror"},
		"pull-from-mirror beside digest only":    {"[[registry]]\nlocation = \"a.io\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"b.io\"\npull-from-mirror = \"all\"", "beside mirror-by-digest-only"},
		"an unknown pull-from-mirror":            {"[[registry]]\nlocation = \"a.io\"\n[[registry.mirror]]\nlocation = \"b.io\"\npull-from-mirror = \"never\"", "none of all"},
		"an empty mirror":                        {"[[registry]]\nlocation = \"a.io\"\n[[registry.mirror]]\nlocation = \"\"", "without location"},
		"a scheme":                               {"[[registry]]\nlocation = \"https://a.io\"", "scheme"},
		"a scheme in a mirror":                   {"[[registry]]\nlocation = \"a.io\"\n[[registry.mirror]]\nlocation = \"http://b.io\"", "scheme"},
		"one location twice, one of it insecure": {"[[registry]]\nlocation = \"a.io\"\n[[registry]]\nprefix = \"b.io\"\nlocation = \"a.io\"\ninsecure = true", "two entries"},
		"one location twice, one of it blocked":  {"[[registry]]\nlocation = \"a.io\"\n[[registry]]\nprefix = \"b.io\"\nlocation = \"a.io\"\nblocked = true", "two entries"},
		"a search registry with a path":          {"unqualified-search-registries = [\"a.io/b\"]", "no host[:port]"},
		"an unknown short-name mode":             {"short-name-mode = \"maybe\"", "short-name-mode"},
		"an alias with a registry as its name":   {"[aliases]\n\"a.io/b\" = \"c.io/d\"", "no short name"},
		"an alias without a registry":            {"[aliases]\n\"a\" = \"b/c\"", "no registry"},
		"an alias with a tag":                    {"[aliases]\n\"a\" = \"b.io/c:latest\"", "tag or a digest"},
		"a value of another type":                {"[[registry]]\nlocation = 5", "incompatible types"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRegistriesConf(NamedFile{"/etc/x.conf", []byte(tc.conf)})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "/etc/x.conf") {
				t.Errorf("error %v, want one that names the file and says %q", err, tc.want)
			}
		})
	}
}

func TestDropIns(t *testing.T) {
	main := NamedFile{"registries.conf", []byte("unqualified-search-registries = [\"main.io\"]\n[[registry]]\nlocation = \"a.io\"\nblocked = true\n[[registry.mirror]]\nlocation = \"m.io\"\n[[registry]]\nlocation = \"b.io\"\ninsecure = true")}
	for name, tc := range map[string]struct {
		drop   string
		ref    string
		want   []string
		search []string
	}{
		"an equal prefix replaces the whole entry": {"[[registry]]\nlocation = \"a.io\"", "a.io/x:1", []string{"a.io/x:1"}, []string{"main.io"}},
		"other entries stay":                       {"[[registry]]\nlocation = \"a.io\"", "b.io/x:1", []string{"b.io/x:1!"}, []string{"main.io"}},
		"a list of search registries replaces":     {"unqualified-search-registries = [\"drop.io\"]", "a.io/x:1", []string{"m.io/x:1"}, []string{"drop.io"}},
		"an empty list of search registries wipes": {"unqualified-search-registries = []", "a.io/x:1", []string{"m.io/x:1"}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ParseRegistriesConf(main, NamedFile{"10.conf", []byte(tc.drop)})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, places(c.Resolve(mustParse(t, tc.ref)))); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.search, c.SearchRegistries()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
