package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"

	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/tests/oracle/world"
)

// loaded is a folder that the containers library has read.
type loaded struct {
	sys *types.SystemContext
	err error
}

// load has the containers library read main and the drop-ins, given by name.
func load(t testing.TB, main []byte, dropIns map[string][]byte) loaded {
	t.Helper()
	dir := t.TempDir()
	path, folder := filepath.Join(dir, "registries.conf"), filepath.Join(dir, "registries.conf.d")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, main, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, data := range dropIns {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sys := &types.SystemContext{SystemRegistriesConfPath: path, SystemRegistriesConfDirPath: folder}
	sysregistriesv2.InvalidateCache()
	_, err := sysregistriesv2.TryUpdatingCache(sys)
	return loaded{sys: sys, err: err}
}

// place is a location that is tried, in comparable form.
type place struct {
	Reference string
	Insecure  bool
}

// theirs is what the docker transport of the containers library does: find the
// entry, list the pull sources, and pass over those whose own entry is blocked.
func (l loaded) theirs(t testing.TB, text string) (places []place, fails bool) {
	t.Helper()
	ref, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := sysregistriesv2.FindRegistry(l.sys, ref.Name())
	if err != nil {
		t.Fatal(err)
	}
	if entry == nil {
		return []place{{Reference: ref.String()}}, false
	}
	sources, err := entry.PullSourcesFromReference(ref)
	if err != nil {
		return nil, true
	}
	for _, s := range sources {
		governing, err := sysregistriesv2.FindRegistry(l.sys, s.Reference.Name())
		if err != nil {
			t.Fatal(err)
		}
		if governing != nil && governing.Blocked {
			continue
		}
		places = append(places, place{Reference: s.Reference.String(), Insecure: s.Endpoint.Insecure})
	}
	return places, false
}

func ours(t testing.TB, c *mirrors.Config, text string) (places []place, fails bool) {
	t.Helper()
	ref, err := imageref.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	res := c.Resolve(ref)
	for _, p := range res.Candidates {
		places = append(places, place{Reference: p.Reference.String(), Insecure: p.Insecure})
	}
	return places, res.Err != nil
}

// sameAnswers compares every reference, pulled in every way.
func sameAnswers(t testing.TB, l loaded, c *mirrors.Config) {
	t.Helper()
	for _, name := range world.References {
		for _, text := range world.Spellings(name) {
			wantPlaces, wantFails := l.theirs(t, text)
			gotPlaces, gotFails := ours(t, c, text)
			if diff := cmp.Diff(wantPlaces, gotPlaces); diff != "" || wantFails != gotFails {
				t.Errorf("%s: theirs fails %v, ours fails %v %s", text, wantFails, gotFails, diff)
			}
		}
	}
}

func compareRendered(t testing.TB, seed uint64) {
	t.Helper()
	w := world.Random(seed, seed%3 == 0)
	res := w.Ours(t)
	conf := res.RegistriesConf()
	l := load(t, conf, nil)
	if l.err != nil {
		t.Fatalf("seed %d: the rendered file does not load: %v\n%s%s", seed, l.err, w, conf)
	}
	read, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "rendered", Data: conf})
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if diff := cmp.Diff(res.Config.Entries(), read.Entries()); diff != "" {
		t.Errorf("seed %d: the file says something else than the result: %s", seed, diff)
	}
	sameAnswers(t, l, read)
	if t.Failed() {
		t.Fatalf("seed %d:\n%s%s", seed, w, conf)
	}
}

// The file that is rendered loads, whatever the input, and the containers
// library makes of it what our resolver makes of it.
func TestTheContainersLibraryReadsOurFileAsWeDo(t *testing.T) {
	for seed := range uint64(400) {
		compareRendered(t, seed)
	}
}

// FuzzRender draws worlds from seeds; those that once failed are kept as corpus.
func FuzzRender(f *testing.F) {
	for _, seed := range []uint64{0, 1, 12345, 1 << 40} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { compareRendered(t, seed) })
}

// handWritten are files as administrators write them, with what our own never
// contain: prefixes that move, both kinds of digest restrictions, repetitions.
var handWritten = map[string][]string{ // the main file and its drop-ins
	"moved prefixes": {`
[[registry]]
prefix = "a.io/x"
location = "m.io/a"
[[registry.mirror]]
location = "n.io:5000/b"
[[registry]]
prefix = "a.io"
location = "a.io"
mirror-by-digest-only = true
[[registry.mirror]]
location = "z.io/1"
insecure = true
`},
	"trailing slashes and repeated prefixes": {`
[[registry]]
location = "a.io/"
[[registry.mirror]]
location = "m.io/a//"
[[registry]]
location = "a.io"
[[registry.mirror]]
location = "never.io"
`},
	"mirrors that make no reference": {`
[[registry]]
location = "a.io/x"
[[registry.mirror]]
location = "m.io/a:tag"
pull-from-mirror = "digest-only"
[[registry]]
location = "b.a.io"
[[registry.mirror]]
location = "oneword"
[[registry]]
location = "docker.io"
[[registry.mirror]]
location = "index.docker.io"
[[registry]]
location = "m.io"
[[registry.mirror]]
location = "docker.io"
`},
	"drop-ins replace whole entries": {`
unqualified-search-registries = ["docker.io"]
[[registry]]
location = "a.io"
blocked = true
[[registry.mirror]]
location = "m.io/a"
[[registry]]
location = "b.a.io"
insecure = true
`, `
[[registry]]
location = "a.io"
[[registry.mirror]]
location = "y.io/2"
`, `
[[registry]]
prefix = "*.a.io"
blocked = true
`},
	"a blocked prefix whose location is elsewhere": {`
[[registry]]
prefix = "a.io"
location = "m.io/a"
[[registry]]
location = "m.io"
blocked = true
`},
}

func TestTheContainersLibraryReadsHandWrittenFilesAsWeDo(t *testing.T) {
	for name, texts := range handWritten {
		t.Run(name, func(t *testing.T) {
			files := []mirrors.NamedFile{{Name: "registries.conf", Data: []byte(texts[0])}}
			dropIns := map[string][]byte{}
			for i, text := range texts[1:] {
				file := fmt.Sprintf("%d.conf", i)
				dropIns[file] = []byte(text)
				files = append(files, mirrors.NamedFile{Name: file, Data: []byte(text)})
			}
			l := load(t, []byte(texts[0]), dropIns)
			if l.err != nil {
				t.Fatal(l.err)
			}
			c, err := mirrors.ParseRegistriesConf(files...)
			if err != nil {
				t.Fatal(err)
			}
			sameAnswers(t, l, c)
			search, err := sysregistriesv2.UnqualifiedSearchRegistries(l.sys)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(search, c.SearchRegistries()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Both refuse the same files: the node agent relies on it before it writes.
func TestBothRefuseTheSameFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		conf    string
		refused bool
	}{
		"nothing":                             {"", false},
		"unknown keys":                        {"x = 1\n[[registry]]\nlocation = \"a.io\"\ny = 2\n", false},
		"broken TOML":                         {"[[registry", true},
		"version 1":                           {"[registries.search]\nregistries = []\n", true},
		"an empty version 1 table":            {"[registries.search]\n", false},
		"neither prefix nor location":         {"[[registry]]\nblocked = true\n", true},
		"a prefix without location":           {"[[registry]]\nprefix = \"a.io\"\n", true},
		"a wildcard without location":         {"[[registry]]\nprefix = \"*.a.io\"\n", false},
		"a wildcard location":                 {"[[registry]]\nlocation = \"*.a.io\"\n", false},
		"a wildcard with a path":              {"[[registry]]\nprefix = \"*.a.io/x\"\n", true},
		"a wildcard location with a path":     {"[[registry]]\nlocation = \"*.a.io/x\"\n", true},
		"pull-from-mirror on the primary":     {"[[registry]]\nlocation = \"a.io\"\npull-from-mirror = \"all\"\n", true},
		"both restrictions":                   {"[[registry]]\nlocation = \"a.io\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"b.io\"\npull-from-mirror = \"all\"\n", true},
		"an unknown restriction":              {"[[registry]]\nlocation = \"a.io\"\n[[registry.mirror]]\nlocation = \"b.io\"\npull-from-mirror = \"x\"\n", true},
		"an empty mirror":                     {"[[registry]]\nlocation = \"a.io\"\n[[registry.mirror]]\nlocation = \"/\"\n", true},
		"a bad mirror string loads":           {"[[registry]]\nlocation = \"a.io\"\n[[registry.mirror]]\nlocation = \"B b:x\"\n", false},
		"one location, two flags":             {"[[registry]]\nlocation = \"a.io\"\n[[registry]]\nprefix = \"b.io\"\nlocation = \"a.io\"\nblocked = true\n", true},
		"one wildcard twice, two flags":       {"[[registry]]\nprefix = \"*.a.io\"\n[[registry]]\nprefix = \"*.a.io\"\ninsecure = true\n", true},
		"a scheme":                            {"[[registry]]\nlocation = \"http://a.io\"\n", true},
		"a search registry with a path":       {"unqualified-search-registries = [\"a.io/x\"]\n", true},
		"a search registry of one word":       {"unqualified-search-registries = [\"a\"]\n", false},
		"an empty search registry":            {"unqualified-search-registries = [\"\"]\n", true},
		"an unknown short-name mode":          {"short-name-mode = \"x\"\n", true},
		"an alias":                            {"[aliases]\n\"a\" = \"b.io/a\"\n\"x/y\" = \"\"\n\"Foo/y\" = \"docker.io/y\"\n", false},
		"an alias of capitals":                {"[aliases]\n\"Foo\" = \"b.io/a\"\n", true},
		"an alias with a tag in its name":     {"[aliases]\n\"a:1\" = \"b.io/a\"\n", true},
		"an alias with a host as its name":    {"[aliases]\n\"a.io/x\" = \"b.io/a\"\n", true},
		"an alias of localhost":               {"[aliases]\n\"localhost/x\" = \"b.io/a\"\n", true},
		"an alias with a tag in its value":    {"[aliases]\n\"a\" = \"b.io/a:1\"\n", true},
		"an alias without a registry":         {"[aliases]\n\"a\" = \"b/a\"\n", true},
		"a boolean that is a string":          {"[[registry]]\nlocation = \"a.io\"\nblocked = \"true\"\n", true},
		"a registry that is no list":          {"[registry]\nlocation = \"a.io\"\n", true},
		"capitals in keys":                    {"[[registry]]\nLocation = \"a.io\"\nBLOCKED = true\n", false},
		"credential helpers that are no list": {"credential-helpers = \"x\"\n", true},
		"a namespace proxy that is no string": {"[[registry]]\nlocation = \"a.io\"\n[[registry.mirror]]\nlocation = \"b.io\"\nnamespace-proxy = 1\n", true},
	} {
		t.Run(name, func(t *testing.T) { compareVerdict(t, []byte(tc.conf), &tc.refused) })
	}
}

func compareVerdict(t *testing.T, conf []byte, want *bool) {
	t.Helper()
	theirs := load(t, conf, nil)
	_, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "x", Data: conf})
	if want != nil && (theirs.err != nil) != *want {
		t.Errorf("the library has changed its mind: %v", theirs.err)
	}
	if (theirs.err != nil) != (err != nil) {
		t.Errorf("theirs: %v\nours: %v\n%s", theirs.err, err, conf)
	}
}

// FuzzVerdict looks for files that one side loads and the other refuses.
func FuzzVerdict(f *testing.F) {
	for _, texts := range handWritten {
		for _, text := range texts {
			f.Add([]byte(text))
		}
	}
	f.Add([]byte("[aliases]\n\"a\" = \"b.io/a\"\n"))
	f.Add((&world.World{}).D("a.io -> m.io").I("*.x.io").Ours(f).RegistriesConf())
	f.Fuzz(func(t *testing.T, conf []byte) { compareVerdict(t, conf, nil) })
}
