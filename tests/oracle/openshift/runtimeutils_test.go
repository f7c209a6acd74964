package openshift

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	oldregistries "github.com/containers/image/v5/pkg/sysregistriesv2"
	"github.com/google/go-cmp/cmp"
	"github.com/openshift/runtime-utils/pkg/registries"

	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/tests/oracle/world"
)

// upstream has OpenShift's library edit an empty file, and reads the outcome.
func upstream(t testing.TB, w *world.World) (*mirrors.Config, error) {
	t.Helper()
	var conf oldregistries.V2RegistriesConf
	if len(w.Search) > 0 {
		conf.UnqualifiedSearchRegistries = w.Search
	}
	// The machine-config operator drops scopes that are none before it calls.
	valid := func(in []string) (out []string) {
		for _, s := range in {
			if registries.IsValidRegistriesConfScope(s) {
				out = append(out, s)
			}
		}
		return out
	}
	if err := registries.EditRegistriesConfig(&conf, valid(w.Insecure), valid(w.Blocked), w.Content, w.Digest, w.Tag); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(conf); err != nil {
		t.Fatal(err)
	}
	c, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "upstream", Data: text.Bytes()})
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return c, nil
}

// entry gives the entry of a scope in one line; empty when there is none.
func entry(c *mirrors.Config, scope string) string {
	for _, e := range c.Entries() {
		if e.Prefix != scope {
			continue
		}
		line := e.Prefix
		if e.Insecure {
			line += " insecure"
		}
		if e.Blocked {
			line += " blocked"
		}
		for _, m := range e.Mirrors {
			line += " " + strings.TrimSuffix(string(m.Pull), "-only") + "=" + m.Location
			if m.Insecure {
				line += "!"
			}
		}
		return line
	}
	return ""
}

// Where OpenShift's library is wrong and the product is not. Each of these
// fails when the library comes to agree: then the deviation has to go.
func TestDeviations(t *testing.T) {
	for name, tc := range map[string]struct {
		in           *world.World
		scope        string
		ours, theirs string
		theirsFails  bool
	}{
		"the source is ordered first in a cycle": {
			in:    (&world.World{}).D("a.io -> c.io,b.io", "a.io -> b.io,c.io"),
			scope: "a.io", ours: "a.io digest=b.io digest=c.io", theirs: "a.io digest=a.io digest=b.io digest=c.io",
		},
		"a list with a duplicate puts the source first": {
			in:    (&world.World{}).D("a.io -> z.io,z.io"),
			scope: "a.io", ours: "a.io digest=z.io", theirs: "a.io digest=a.io digest=z.io",
		},
		"NeverContactSource is lost for a nested insecure scope": {
			in:    (&world.World{}).D("s.io -> m.io; Never").I("s.io/x"),
			scope: "s.io/x", ours: "s.io/x insecure blocked digest=m.io/x", theirs: "s.io/x insecure digest=m.io/x",
		},
		"NeverContactSource is lost for a nested mirrored scope": {
			in:    (&world.World{}).D("s.io -> m.io; Never", "s.io/x -> n.io"),
			scope: "s.io/x", ours: "s.io/x blocked digest=n.io", theirs: "s.io/x digest=n.io",
		},
		"a tag scope shadows its parent's digest mirrors": {
			in:    (&world.World{}).D("s.io -> m.io").T("s.io/x -> n.io"),
			scope: "s.io/x", ours: "s.io/x digest=m.io/x tag=n.io", theirs: "s.io/x tag=n.io",
		},
		"mirrors come from another than the nearest ancestor": {
			in:    (&world.World{}).D("s.io -> m.io", "s.io/x -> n.io").B("s.io/x/y"),
			scope: "s.io/x/y", ours: "s.io/x/y blocked digest=n.io/y", theirs: "s.io/x/y blocked digest=m.io/x/y",
		},
		"insecure is lost for inherited mirrors": {
			in:    (&world.World{}).D("s.io -> m.io").B("s.io/x").I("m.io/x"),
			scope: "s.io/x", ours: "s.io/x blocked digest=m.io/x!", theirs: "s.io/x blocked digest=m.io/x",
		},
		"an entry under a mirrored wildcard makes generation fail": {
			in:    (&world.World{}).D("*.a.io -> m.io").B("b.a.io/x"),
			scope: "b.a.io/x", ours: "b.a.io/x blocked digest=m.io/x", theirsFails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := entry(tc.in.Ours(t).Config, tc.scope); got != tc.ours {
				t.Errorf("ours: %s, want %s", got, tc.ours)
			}
			c, err := upstream(t, tc.in)
			if (err != nil) != tc.theirsFails {
				t.Fatalf("the deviation has vanished or changed: error %v", err)
			}
			if err == nil && entry(c, tc.scope) != tc.theirs {
				t.Errorf("the deviation has vanished or changed: theirs is now %s", entry(c, tc.scope))
			}
		})
	}
}

// deviates tells which deviation a world runs into; empty when none, and then
// both must agree byte for byte in meaning.
func deviates(w *world.World, c *mirrors.Config) string {
	type lists struct {
		digest, tag [][]string
		never       bool
	}
	sources := map[string]*lists{}
	add := func(source string, list []string, never, tag bool) string {
		counts := slices.ContainsFunc(list, func(m string) bool { return m != source })
		if !counts {
			return ""
		}
		seen := map[string]bool{}
		for _, m := range list {
			if seen[m] {
				return "a duplicate"
			}
			seen[m] = true
		}
		l := sources[source]
		if l == nil {
			l = &lists{}
			sources[source] = l
		}
		l.never = l.never || never
		if tag {
			l.tag = append(l.tag, list)
		} else {
			l.digest = append(l.digest, list)
		}
		return ""
	}
	plain := func(in []string) []string { return in }
	for _, o := range w.Digest {
		for _, m := range o.Spec.ImageDigestMirrors {
			var list []string
			for _, x := range m.Mirrors {
				list = append(list, string(x))
			}
			if why := add(m.Source, list, m.MirrorSourcePolicy == "NeverContactSource", false); why != "" {
				return why
			}
		}
	}
	for _, o := range w.Content {
		for _, m := range o.Spec.RepositoryDigestMirrors {
			if why := add(m.Source, plain(m.Mirrors), false, false); why != "" {
				return why
			}
		}
	}
	for _, o := range w.Tag {
		for _, m := range o.Spec.ImageTagMirrors {
			var list []string
			for _, x := range m.Mirrors {
				list = append(list, string(x))
			}
			if why := add(m.Source, list, m.MirrorSourcePolicy == "NeverContactSource", true); why != "" {
				return why
			}
		}
	}
	for source, l := range sources {
		if cyclic(source, l.digest) || cyclic(source, l.tag) {
			return "a cycle"
		}
	}
	for _, e := range c.Entries() {
		own, around := sources[e.Prefix], 0
		for source, l := range sources {
			if source == e.Prefix || !registries.ScopeIsNestedInsideScope(e.Prefix, source) {
				continue
			}
			around++
			switch {
			case strings.HasPrefix(source, "*."):
				return "an entry under a mirrored wildcard"
			case l.never:
				return "an entry under a source that is never contacted"
			case own != nil && (len(l.digest) > 0 && len(own.digest) == 0 || len(l.tag) > 0 && len(own.tag) == 0):
				return "an entry with mirrors of one kind under a source with the other"
			}
		}
		if own == nil && around > 1 {
			return "more than one ancestor with mirrors"
		}
		if own == nil && slices.ContainsFunc(e.Mirrors, func(m mirrors.Mirror) bool { return m.Insecure }) {
			return "an insecure inherited mirror"
		}
	}
	return ""
}

// cyclic tells whether the lists of one source contradict each other, the
// source being the last of each that does not name it.
func cyclic(source string, lists [][]string) bool {
	out := map[string][]string{}
	for _, l := range lists {
		if !slices.Contains(l, source) {
			l = append(slices.Clone(l), source)
		}
		for i := 1; i < len(l); i++ {
			out[l[i-1]] = append(out[l[i-1]], l[i])
		}
	}
	state := map[string]int{}
	var visit func(string) bool
	visit = func(n string) bool {
		if state[n] != 0 {
			return state[n] == 1
		}
		state[n] = 1
		for _, m := range out[n] {
			if visit(m) {
				return true
			}
		}
		state[n] = 2
		return false
	}
	for n := range out {
		if visit(n) {
			return true
		}
	}
	return false
}

func compareUpstream(t testing.TB, seed uint64) (compared bool) {
	t.Helper()
	w := world.Random(seed, false)
	res := w.Ours(t)
	if deviates(w, res.Config) != "" {
		return false
	}
	c, err := upstream(t, w)
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, w)
	}
	if diff := cmp.Diff(c.Entries(), res.Config.Entries()); diff != "" {
		t.Fatalf("seed %d (- theirs, + ours): %s\n%s", seed, diff, w)
	}
	return true
}

// Outside the deviations the meaning is the same.
func TestOpenShiftMeansTheSame(t *testing.T) {
	const worlds = 20000
	compared := 0
	for seed := range uint64(worlds) {
		if compareUpstream(t, seed) {
			compared++
		}
	}
	if compared < worlds/10 {
		t.Errorf("only %d of %d worlds were compared", compared, worlds)
	}
}

// FuzzOpenShift draws worlds from seeds.
func FuzzOpenShift(f *testing.F) {
	for _, seed := range []uint64{0, 7, 1 << 33} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { compareUpstream(t, seed) })
}
