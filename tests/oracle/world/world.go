// Package world makes the inputs on which Archkeeper and the oracles are
// compared: mirror objects, written briefly or drawn from a seed.
package world

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// World is one input: what a cluster's administrators have applied.
type World struct {
	Digest   []*configv1.ImageDigestMirrorSet
	Tag      []*configv1.ImageTagMirrorSet
	Content  []*operatorv1alpha1.ImageContentSourcePolicy
	Insecure []string
	Blocked  []string
	Allowed  []string
	Search   []string
}

// Rule is "source -> mirror,mirror; Never".
type Rule string

func (r Rule) parts() (source string, mirrors []string, policy configv1.MirrorSourcePolicy) {
	source, rest, _ := strings.Cut(string(r), " -> ")
	list, word, _ := strings.Cut(rest, "; ")
	if list != "" {
		mirrors = strings.Split(list, ",")
	}
	switch word {
	case "Never":
		policy = configv1.NeverContactSource
	case "Allow":
		policy = configv1.AllowContactingSource
	}
	return source, mirrors, policy
}

func typed(in []string) (out []configv1.ImageMirror) {
	for _, m := range in {
		out = append(out, configv1.ImageMirror(m))
	}
	return out
}

// D adds an ImageDigestMirrorSet.
func (w *World) D(rules ...Rule) *World {
	set := &configv1.ImageDigestMirrorSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("d", len(w.Digest))}}
	for _, r := range rules {
		source, list, policy := r.parts()
		set.Spec.ImageDigestMirrors = append(set.Spec.ImageDigestMirrors, configv1.ImageDigestMirrors{Source: source, Mirrors: typed(list), MirrorSourcePolicy: policy})
	}
	w.Digest = append(w.Digest, set)
	return w
}

// T adds an ImageTagMirrorSet.
func (w *World) T(rules ...Rule) *World {
	set := &configv1.ImageTagMirrorSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("t", len(w.Tag))}}
	for _, r := range rules {
		source, list, policy := r.parts()
		set.Spec.ImageTagMirrors = append(set.Spec.ImageTagMirrors, configv1.ImageTagMirrors{Source: source, Mirrors: typed(list), MirrorSourcePolicy: policy})
	}
	w.Tag = append(w.Tag, set)
	return w
}

// C adds an ImageContentSourcePolicy.
func (w *World) C(rules ...Rule) *World {
	set := &operatorv1alpha1.ImageContentSourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", len(w.Content))}}
	for _, r := range rules {
		source, list, _ := r.parts()
		set.Spec.RepositoryDigestMirrors = append(set.Spec.RepositoryDigestMirrors, operatorv1alpha1.RepositoryDigestMirrors{Source: source, Mirrors: list})
	}
	w.Content = append(w.Content, set)
	return w
}

// I adds insecure scopes.
func (w *World) I(scopes ...string) *World { w.Insecure = append(w.Insecure, scopes...); return w }

// B adds blocked scopes.
func (w *World) B(scopes ...string) *World { w.Blocked = append(w.Blocked, scopes...); return w }

// A adds allowed scopes.
func (w *World) A(scopes ...string) *World { w.Allowed = append(w.Allowed, scopes...); return w }

// Ours merges the world as the product does, from the JSON of the real types.
func (w *World) Ours(t testing.TB) *mirrors.Result {
	t.Helper()
	var objects []mirrors.Object
	add := func(apiVersion, kind string, value any) {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		fields["apiVersion"], fields["kind"] = apiVersion, kind
		object, ok := mirrors.FromMap(fields)
		if !ok {
			t.Fatalf("not read: %s", data)
		}
		objects = append(objects, object)
	}
	for _, o := range w.Digest {
		add("config.openshift.io/v1", "ImageDigestMirrorSet", o)
	}
	for _, o := range w.Tag {
		add("config.openshift.io/v1", "ImageTagMirrorSet", o)
	}
	for _, o := range w.Content {
		add("operator.openshift.io/v1alpha1", "ImageContentSourcePolicy", o)
	}
	image := &configv1.Image{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	image.Spec.RegistrySources = configv1.RegistrySources{
		InsecureRegistries: w.Insecure, BlockedRegistries: w.Blocked, AllowedRegistries: w.Allowed, ContainerRuntimeSearchRegistries: w.Search,
	}
	add("config.openshift.io/v1", "Image", image)
	return mirrors.Build(objects, mirrors.Options{})
}

// String makes a failing world readable.
func (w *World) String() string {
	var out strings.Builder
	for _, o := range w.Digest {
		for _, m := range o.Spec.ImageDigestMirrors {
			fmt.Fprintf(&out, "%s D(%s -> %v; %s)\n", o.Name, m.Source, m.Mirrors, m.MirrorSourcePolicy)
		}
	}
	for _, o := range w.Tag {
		for _, m := range o.Spec.ImageTagMirrors {
			fmt.Fprintf(&out, "%s T(%s -> %v; %s)\n", o.Name, m.Source, m.Mirrors, m.MirrorSourcePolicy)
		}
	}
	for _, o := range w.Content {
		for _, m := range o.Spec.RepositoryDigestMirrors {
			fmt.Fprintf(&out, "%s C(%s -> %v)\n", o.Name, m.Source, m.Mirrors)
		}
	}
	fmt.Fprintf(&out, "I%v B%v A%v S%v\n", w.Insecure, w.Blocked, w.Allowed, w.Search)
	return out.String()
}

// The vocabulary of random worlds: nested paths, ports, wildcards, names that
// only look nested, mirrors of mirrors, and what must be rejected.
var (
	scopes = []string{
		"a.io", "a.io/x", "a.io/x/y", "a.io/x/y/z", "a.io/xx", "a.io:5000", "a.io:5000/x", "a.io.evil.io", "not-a.io",
		"b.a.io", "b.a.io/x", "b.a.io:5000/x", "c.b.a.io/x", "*.a.io", "*.b.a.io", "*.io", "docker.io", "docker.io/library",
		"docker.io/library/busybox", "localhost", "localhost:5000/x", "m.io", "m.io/a", "m.io/a/x", "n.io:5000",
	}
	locations = []string{
		"m.io", "m.io/a", "m.io/a/x", "n.io:5000", "n.io:5000/b", "a.io", "a.io/x", "a.io/x/y", "b.a.io", "docker.io", "docker.io/library",
		"localhost:5000/m", "a.io:5000", "z.io/1", "y.io/2", "x.io/3",
	}
	broken = []string{"", "a.io/", "A.io/B", "bad..io", "oneword/x", "https://a.io", "a.io/x:1", " a.io", "*.x/y", "**.a.io", "index.docker.io/x"}
	// References reach every scope, from inside and from beside it.
	References = []string{
		"busybox", "docker.io/bitnami/redis", "a.io/i", "a.io/x", "a.io/x/i", "a.io/x/y", "a.io/x/y/i", "a.io/x/y/z/i", "a.io/xx/i", "a.io/xy",
		"a.io:5000/i", "a.io:5000/x/i", "a.io:443/x/i", "a.io.evil.io/i", "not-a.io/i", "b.a.io/i", "b.a.io/x/i", "b.a.io:5000/x/i",
		"b.a.io:81/x/i", "c.b.a.io/x/i", "c.b.a.io:5000/i", "d.c.b.a.io/i", "a.io.a.io/i", "localhost/i", "localhost:5000/x/i", "m.io/a/i", "m.io/a/x/i", "m.io/i",
		"n.io:5000/b/i", "z.io/1/i", "x.a.io.b.a.io/i",
	}
)

// SomeDigest is what pulls by digest have behind their name.
const SomeDigest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// Spellings gives a name pulled by tag, by digest, and with both.
func Spellings(name string) []string {
	return []string{name + ":v1", name + SomeDigest, name + ":v1" + SomeDigest}
}

// Random is the same for the same seed. Rough worlds hold broken parts.
func Random(seed uint64, rough bool) *World {
	rnd := rand.New(rand.NewPCG(seed, 0x6d6972726f7273))
	pick := func(from []string) string {
		if rough && rnd.IntN(12) == 0 {
			from = broken
		}
		return from[rnd.IntN(len(from))]
	}
	many := func(from []string, limit int) (out []string) {
		for range rnd.IntN(limit + 1) {
			out = append(out, pick(from))
		}
		return out
	}
	w := &World{}
	rules := func(policies bool) (out []Rule) {
		for range 1 + rnd.IntN(3) {
			source := pick(scopes)
			list := many(locations, 4)
			if rnd.IntN(5) == 0 && (rough || !strings.HasPrefix(source, "*")) {
				list = slices.Insert(list, rnd.IntN(len(list)+1), source)
			}
			r := Rule(source + " -> " + strings.Join(list, ","))
			if policies && rnd.IntN(4) == 0 {
				r += "; Never"
			} else if policies && rnd.IntN(4) == 0 {
				r += "; Allow"
			}
			out = append(out, r)
		}
		return out
	}
	for range rnd.IntN(4) {
		w.D(rules(true)...)
	}
	for range rnd.IntN(3) {
		w.T(rules(true)...)
	}
	for range rnd.IntN(2) {
		w.C(rules(false)...)
	}
	w.I(many(scopes, 3)...)
	w.B(many(scopes, 2)...)
	w.Search = many([]string{"docker.io", "q.io:5000", "localhost"}, 2)
	return w
}
