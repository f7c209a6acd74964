package mirrors

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider/imageref"
)

// The shorthand of the tables: "s -> a,b; Never".
func parseRule(rule string) (source string, mirrors []any, policy string) {
	source, rest, _ := strings.Cut(rule, " -> ")
	list, policy, _ := strings.Cut(rest, "; ")
	for m := range strings.SplitSeq(list, ",") {
		if list != "" {
			mirrors = append(mirrors, m)
		}
	}
	switch policy {
	case "Never":
		policy = policyNever
	case "Allow":
		policy = policyAllow
	}
	return source, mirrors, policy
}

func object(kind, name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": apiVersion(kind), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}
}

func mirrorSet(kind, field, name string, rules ...string) map[string]any {
	var entries []any
	for _, rule := range rules {
		source, mirrors, policy := parseRule(rule)
		entry := map[string]any{"source": source}
		if mirrors != nil {
			entry["mirrors"] = mirrors
		}
		if policy != "" {
			entry["mirrorSourcePolicy"] = policy
		}
		entries = append(entries, entry)
	}
	return object(kind, name, map[string]any{field: entries})
}

// D, T and C give one object with the rules.
func D(rules ...string) map[string]any {
	return mirrorSet(KindDigestMirrorSet, "imageDigestMirrors", "d", rules...)
}

func T(rules ...string) map[string]any {
	return mirrorSet(KindTagMirrorSet, "imageTagMirrors", "t", rules...)
}

func C(rules ...string) map[string]any {
	return mirrorSet(KindContentSourcePolicy, "repositoryDigestMirrors", "c", rules...)
}

// R gives the Image; each argument is "I a,b", "B a,b", "A a,b" or "S a,b".
func R(parts ...string) map[string]any {
	sources := map[string]any{}
	fields := map[string]string{"I": "insecureRegistries", "B": "blockedRegistries", "A": "allowedRegistries", "S": "containerRuntimeSearchRegistries"}
	for _, p := range parts {
		key, list, _ := strings.Cut(p, " ")
		var scopes []any
		for s := range strings.SplitSeq(list, ",") {
			scopes = append(scopes, s)
		}
		sources[fields[key]] = scopes
	}
	return object(KindImage, "cluster", map[string]any{"registrySources": sources})
}

func build(t *testing.T, objects ...map[string]any) *Result {
	t.Helper()
	var decoded []Object
	for _, o := range objects {
		d, ok := FromMap(o)
		if !ok {
			t.Fatalf("not read: %v", o)
		}
		decoded = append(decoded, d)
	}
	return Build(decoded, Options{})
}

// short writes the entries in the order of the file: flags I and B, then
// mirrors with their kind and "!" when insecure.
func short(res *Result) []string {
	var out []string
	for _, prefix := range res.emission {
		e := res.Config.entries[res.Config.byPrefix[prefix]]
		line := e.Prefix
		if e.Insecure {
			line += " I"
		}
		if e.Blocked {
			line += " B"
		}
		for _, m := range e.Mirrors {
			line += " " + strings.TrimSuffix(string(m.Pull), "-only") + "=" + m.Location
			if m.Insecure {
				line += "!"
			}
		}
		out = append(out, line)
	}
	return out
}

func reasons(problems []Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out
}

type imageReference = imageref.Reference

type world []map[string]any

func TestCases(t *testing.T) {
	type pull struct {
		want    []string
		blocked bool
	}
	for name, tc := range map[string]struct {
		in       world
		want     []string
		pulls    map[string]pull // "@D" stands for a digest
		rejected []string        // beginnings of lines
		warns    []string        // parts of lines, of the build and of the pulls
		clash    int             // conflicts
	}{
		"nothing": {},
		"D(s -> nothing, Never): no entry, the source stays reachable": {
			in:    world{D("s.io -> ; Never")},
			pulls: map[string]pull{"s.io/i@D": {want: []string{"s.io/i@D"}}},
		},
		"D(s -> z,y) + D(s -> y,x)": {
			in:   world{D("s.io -> z.io,y.io"), D("s.io -> y.io,x.io")},
			want: []string{"s.io digest=z.io digest=y.io digest=x.io"},
		},
		"D(s -> c,d,e) + D(s -> a,b,c)": {
			in:   world{D("s.io -> c.io,d.io,e.io"), D("s.io -> a.io,b.io,c.io")},
			want: []string{"s.io digest=a.io digest=b.io digest=c.io digest=d.io digest=e.io"},
		},
		"vendor (r1,r2) + admin (local,r2,r1)": {
			in:   world{D("s.io -> r1.io,r2.io"), D("s.io -> local.io,r2.io,r1.io")},
			want: []string{"s.io digest=local.io digest=r1.io digest=r2.io"},
		},
		"(a,b) + (b,c) + (c,a)": {
			in:   world{D("s.io -> a.io,b.io"), D("s.io -> b.io,c.io"), D("s.io -> c.io,a.io")},
			want: []string{"s.io digest=a.io digest=b.io digest=c.io"},
		},
		"C(foo -> a,b,c) + D(foo -> c,b,a)": {
			in:   world{C("foo.io -> a.io,b.io,c.io"), D("foo.io -> c.io,b.io,a.io")},
			want: []string{"foo.io digest=a.io digest=b.io digest=c.io"},
		},
		"D(s -> z) + T(s -> z): two mirrors, one per kind": {
			in:   world{D("s.io -> z.io"), T("s.io -> z.io")},
			want: []string{"s.io digest=z.io tag=z.io"},
		},
		"pull i:v1@sha256:... with D and T: digest mirrors only": {
			in:    world{D("s.io -> d.io"), T("s.io -> t.io")},
			want:  []string{"s.io digest=d.io tag=t.io"},
			pulls: map[string]pull{"s.io/i:v1@D": {want: []string{"d.io/i:v1@D", "s.io/i:v1@D"}}, "s.io/i:v1": {want: []string{"t.io/i:v1", "s.io/i:v1"}}},
		},
		"D(s -> m; Never), pull by tag: refused": {
			in:   world{D("s.io -> m.io; Never")},
			want: []string{"s.io B digest=m.io"},
			pulls: map[string]pull{
				"s.io/i:v1": {blocked: true},
				"s.io/i@D":  {blocked: true, want: []string{"m.io/i@D"}},
			},
		},
		"I[i.com, *.ie.com], mirrors i.com/n and foo.ie.com/bar: both mirrors insecure": {
			in:   world{R("I i.com,*.ie.com"), D("s.io -> i.com/n,foo.ie.com/bar")},
			want: []string{"s.io digest=i.com/n! digest=foo.ie.com/bar!", "*.ie.com I", "i.com I"},
		},
		"B[b.com], D(b.com/ns -> m): b.com/ns blocked, its mirror used": {
			in:    world{R("B b.com"), D("b.com/ns -> m.io")},
			want:  []string{"b.com/ns B digest=m.io", "b.com B"},
			pulls: map[string]pull{"b.com/ns/i@D": {blocked: true, want: []string{"m.io/i@D"}}, "b.com/x@D": {blocked: true}},
		},
		"D(p/top -> m/p) + I[p/top/i] + B[p/top/b]: children inherit": {
			in:   world{D("p.io/top -> m.io/p"), R("I p.io/top/i", "B p.io/top/b")},
			want: []string{"p.io/top digest=m.io/p", "p.io/top/b B digest=m.io/p/b", "p.io/top/i I digest=m.io/p/i"},
		},
		"D(p/top -> ...) + D(p/top/x -> n): p/top/x uses only n": {
			in:    world{D("p.io/top -> m.io/p"), D("p.io/top/x -> n.io")},
			want:  []string{"p.io/top digest=m.io/p", "p.io/top/x digest=n.io"},
			pulls: map[string]pull{"p.io/top/x/i@D": {want: []string{"n.io/i@D", "p.io/top/x/i@D"}}},
		},
		"D(*.example.com -> m/x): foo.example.com/i -> m/x/i": {
			in:    world{D("*.example.com -> m.io/x")},
			want:  []string{"*.example.com digest=m.io/x"},
			pulls: map[string]pull{"foo.example.com/i@D": {want: []string{"m.io/x/i@D", "foo.example.com/i@D"}}},
		},
		"D(a -> b) + D(b -> c), pull a: b, then a, never c": {
			in:    world{D("a.io -> b.io"), D("b.io -> c.io")},
			want:  []string{"a.io digest=b.io", "b.io digest=c.io"},
			pulls: map[string]pull{"a.io/i@D": {want: []string{"b.io/i@D", "a.io/i@D"}}},
		},
		"scopes that are none are rejected with a reason": {
			in: world{R("I ,**.x.io,x.*.y,*.x/y,*.x:5,https://a.io")},
			rejected: []string{
				`Image/cluster spec.registrySources.insecureRegistries[0]: "" is rejected: it is empty`,
				`Image/cluster spec.registrySources.insecureRegistries[1]: "**.x.io" is rejected: a wildcard must`,
				`Image/cluster spec.registrySources.insecureRegistries[2]: "x.*.y" is rejected: a wildcard must`,
				`Image/cluster spec.registrySources.insecureRegistries[3]: "*.x/y" is rejected: a wildcard covers hosts`,
				`Image/cluster spec.registrySources.insecureRegistries[4]: "*.x:5" is rejected: a wildcard covers hosts`,
				`Image/cluster spec.registrySources.insecureRegistries[5]: "https://a.io" is rejected: it begins with a scheme`,
			},
		},
		"A and B together: allowedRegistries is rejected, blocked counts": {
			in:       world{R("A a.io,c.io", "B b.io")},
			want:     []string{"b.io B"},
			rejected: []string{"Image/cluster spec.registrySources.allowedRegistries: it is rejected because blockedRegistries"},
		},
		"a mirror inside a blocked scope: stays in the file, left out of the candidates": {
			in:    world{D("s.io -> b.io/x,m.io"), R("B b.io")},
			want:  []string{"s.io digest=b.io/x digest=m.io", "b.io B"},
			pulls: map[string]pull{"s.io/i@D": {want: []string{"m.io/i@D", "s.io/i@D"}}},
		},
		"a mirror inside another source's Never: stays in the file, left out of the candidates": {
			in:    world{D("s.io -> n.io/x,m.io"), D("n.io -> o.io; Never")},
			want:  []string{"n.io B digest=o.io", "s.io digest=n.io/x digest=m.io"},
			pulls: map[string]pull{"s.io/i@D": {want: []string{"m.io/i@D", "s.io/i@D"}}},
		},
		"B narrower than a mirror's location: the mirror keeps its flag, a warning": {
			in:    world{D("s.io -> m.io/a"), R("B m.io/a/b")},
			want:  []string{"s.io digest=m.io/a", "m.io/a/b B"},
			warns: []string{"Image/cluster spec.registrySources.blockedRegistries[0]: m.io/a/b lies inside the mirror m.io/a"},
			pulls: map[string]pull{"s.io/b/i@D": {want: []string{"s.io/b/i@D"}}},
		},
		"I narrower than a mirror's location: the mirror keeps its flag, a warning": {
			in:    world{D("s.io -> m.io/a"), R("I m.io/a/b")},
			want:  []string{"s.io digest=m.io/a", "m.io/a/b I"},
			warns: []string{"Image/cluster spec.registrySources.insecureRegistries[0]: m.io/a/b lies inside the mirror m.io/a"},
			pulls: map[string]pull{"s.io/b/i@D": {want: []string{"m.io/a/b/i@D", "s.io/b/i@D"}}},
		},
		"D(a.io -> m.io/x), pull a.io:5000/i: runtimes match the portless entry and fail, a warning": {
			in:    world{D("a.io -> m.io/x")},
			want:  []string{"a.io digest=m.io/x"},
			warns: []string{"the entry of a.io, which has no port, to a.io:5000", "every pull through it fails"},
			pulls: map[string]pull{"a.io:5000/i@D": {}},
		},
		"*.x mirrored and a host a.x of equal length: the wildcard wins, a warning": {
			in:    world{D("*.x.io -> m.io/w"), D("a.x.io -> m.io/a")},
			want:  []string{"*.x.io digest=m.io/w", "a.x.io digest=m.io/a"},
			warns: []string{"ImageDigestMirrorSet/d spec.imageDigestMirrors[0].source: runtimes use the entry of *.x.io for a.x.io"},
			pulls: map[string]pull{"a.x.io/i@D": {want: []string{"m.io/w/i@D", "a.x.io/i@D"}}},
		},

		// The sentences under "Merge".
		"a trailing slash, white space, a tag, a digest, a scheme and an upper-case path take the entry with the source": {
			in: world{D("a.io/ -> m.io", "a .io -> m.io", "a.io/b:1 -> m.io", "a.io/b@D -> m.io", "http://a.io -> m.io", "a.io/B -> m.io", "b..c -> m.io", "freezer/a -> m.io", "good.io -> m.io")},
			rejected: []string{
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[0].source: "a.io/" is rejected: it ends with a slash`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[1].source: "a .io" is rejected: it contains white space`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[2].source: "a.io/b:1" is rejected: it has a tag`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[3].source: "a.io/b@D" is rejected: it has a digest`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[4].source: "http://a.io" is rejected: it begins with a scheme`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[5].source: "a.io/B" is rejected: its path has upper-case`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[6].source: "b..c" is rejected: its host has an empty label`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[7].source: "freezer/a" is rejected: its host is one word`,
			},
			want: []string{"good.io digest=m.io"},
		},
		"a bad mirror takes only itself": {
			in: world{D("s.io -> freezer/a,m.io,*.m.io,,n.io")},
			rejected: []string{
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[0].mirrors[0]: "freezer/a" is rejected: its host is one word`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[0].mirrors[2]: "*.m.io" is rejected: a wildcard is not allowed here`,
				`ImageDigestMirrorSet/d spec.imageDigestMirrors[0].mirrors[3]: "" is rejected: it is empty`,
			},
			want: []string{"s.io digest=m.io digest=n.io"},
		},
		"localhost and a one-word host with a port are hosts": {
			in:   world{D("localhost/a -> freezer:5000/a")},
			want: []string{"localhost/a digest=freezer:5000/a"},
		},
		"an unknown policy word is rejected": {
			in:       world{D("s.io -> m.io; Sometimes")},
			rejected: []string{`ImageDigestMirrorSet/d spec.imageDigestMirrors[0].mirrorSourcePolicy: "Sometimes" is neither`},
			want:     []string{"s.io digest=m.io"},
		},
		"duplicates in one list are harmless": {
			in:   world{D("s.io -> z.io,z.io,y.io,z.io")},
			want: []string{"s.io digest=z.io digest=y.io"},
		},
		"a source at the start or in the middle stays there": {
			in:   world{D("s.io -> z.io,s.io,y.io"), D("t.io -> t.io,a.io")},
			want: []string{"s.io digest=z.io digest=s.io digest=y.io", "t.io digest=t.io digest=a.io"},
		},
		"a source at the end is dropped": {
			in:   world{D("s.io -> z.io,y.io,s.io")},
			want: []string{"s.io digest=z.io digest=y.io"},
		},
		"a source that no list names before its end is always last": {
			in:   world{D("d.io -> x.io,c.io"), D("d.io -> c.io,x.io,d.io"), D("d.io -> b.io,x.io,b.io")},
			want: []string{"d.io digest=b.io digest=c.io digest=x.io"},
		},
		"a cycle is broken at the first node that is not the source": {
			in:   world{D("a.io -> a.io,c.io,b.io"), D("a.io -> b.io,c.io,a.io")},
			want: []string{"a.io digest=b.io digest=c.io"},
		},
		"lists with no mirror but the source count for nothing, policy included": {
			in:    world{D("s.io -> s.io; Never", "t.io -> t.io,t.io; Never")},
			pulls: map[string]pull{"s.io/i@D": {want: []string{"s.io/i@D"}}},
		},
		"NeverContactSource blocks nested scopes too": {
			in:   world{D("s.io -> m.io; Never"), R("I s.io/a"), T("s.io/b -> n.io; Allow")},
			want: []string{"s.io B digest=m.io", "s.io/b B digest=m.io/b tag=n.io", "s.io/a I B digest=m.io/a"},
		},
		"a conflict of policies takes the stricter reading, the others go on": {
			in:    world{D("s.io -> m.io; Never", "o.io -> m.io"), D("s.io -> n.io; Allow")},
			want:  []string{"o.io digest=m.io", "s.io B digest=m.io digest=n.io"},
			clash: 1,
		},
		"the policies of two kinds do not conflict": {
			in:   world{D("s.io -> m.io; Never"), T("s.io -> n.io; Allow")},
			want: []string{"s.io B digest=m.io tag=n.io"},
		},
		"an ImageContentSourcePolicy has no policy to conflict with": {
			in:   world{D("s.io -> m.io; Never"), C("s.io -> m.io")},
			want: []string{"s.io B digest=m.io"},
		},
		"Never with the source among its own mirrors: the source is not tried, and a line says so": {
			in:    world{D("s.io -> m.io,s.io,n.io; Never")},
			want:  []string{"s.io B digest=m.io digest=s.io digest=n.io"},
			warns: []string{"ImageDigestMirrorSet/d spec.imageDigestMirrors[0].mirrors[1]: the source s.io is not tried"},
			pulls: map[string]pull{"s.io/i@D": {blocked: true, want: []string{"m.io/i@D", "n.io/i@D"}}},
		},
		"mirrors flow from the nearest ancestor per kind": {
			in: world{
				D("a.io -> d.io/1", "a.io/x -> d.io/2"), T("a.io -> t.io/1", "a.io/x/y -> t.io/3"),
				R("B a.io/x/y/z"),
			},
			want: []string{
				"a.io digest=d.io/1 tag=t.io/1", "a.io/x digest=d.io/2 tag=t.io/1/x",
				"a.io/x/y digest=d.io/2/y tag=t.io/3", "a.io/x/y/z B digest=d.io/2/y/z tag=t.io/3/z",
			},
		},
		"insecure flows to the flattened mirrors of nested entries": {
			in:    world{D("p.io -> m.io/p"), R("B p.io/b", "I m.io/p/b")},
			want:  []string{"p.io digest=m.io/p", "p.io/b B digest=m.io/p/b!", "m.io/p/b I"},
			warns: []string{"lies inside the mirror m.io/p"},
		},
		"a port mismatch is not nesting": {
			in:   world{R("B a.io", "I a.io:5000/x"), D("a.io -> m.io")},
			want: []string{"a.io B digest=m.io", "a.io:5000/x I"},
		},
		"a wildcard ignores the port": {
			in:   world{R("I *.x.io"), D("*.x.io -> m.io/w"), T("a.x.io:5000/n -> t.io")},
			want: []string{"*.x.io I digest=m.io/w", "a.x.io:5000/n I digest=m.io/w/n tag=t.io"},
		},
		"a wildcard inside a wildcard": {
			in:   world{R("B *.b.x.io"), D("*.x.io -> m.io/w")},
			want: []string{"*.x.io digest=m.io/w", "*.b.x.io B digest=m.io/w"},
		},
		"emission: digest sources, tag-only sources, blocked, insecure": {
			in:   world{R("I z.io,b.io,a.io", "B y.io,b.io"), T("x.io -> m.io", "d.io -> n.io"), D("w.io -> m.io", "d.io -> m.io")},
			want: []string{"d.io digest=m.io tag=n.io", "w.io digest=m.io", "x.io tag=m.io", "b.io I B", "y.io B", "a.io I", "z.io I"},
		},
		"a search registry with a path is rejected": {
			in:       world{R("S a.io/b")},
			rejected: []string{`Image/cluster spec.registrySources.containerRuntimeSearchRegistries[0]: "a.io/b" is rejected: it has a path`},
		},
		"an unknown field is rejected": {
			in: world{object(KindDigestMirrorSet, "d", map[string]any{"imageDigestMirrors": []any{
				map[string]any{"source": "s.io", "mirrors": []any{"m.io"}, "mirrorSourcePolcy": "NeverContactSource"}}})},
			rejected: []string{"ImageDigestMirrorSet/d spec.imageDigestMirrors[0].mirrorSourcePolcy: this field is not known"},
			want:     []string{"s.io digest=m.io"},
		},
		"a field of another type is rejected": {
			in: world{object(KindTagMirrorSet, "t", map[string]any{"imageTagMirrors": []any{
				map[string]any{"source": "s.io", "mirrors": "m.io"}, "x", map[string]any{"source": 5}}})},
			rejected: []string{
				"ImageTagMirrorSet/t spec.imageTagMirrors[0].mirrors: a list is needed, not a string",
				"ImageTagMirrorSet/t spec.imageTagMirrors[1]: an object is needed, not a string",
				"ImageTagMirrorSet/t spec.imageTagMirrors[2].source: a string is needed, not a number",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			res := build(t, tc.in...)
			if diff := cmp.Diff(tc.want, short(res)); diff != "" {
				t.Error(diff)
			}
			warned := reasons(res.Warnings)
			for ref, want := range tc.pulls {
				got, warnings := res.Explain(mustParse(t, strings.ReplaceAll(ref, "@D", "@"+someDigest)))
				if diff := cmp.Diff(want.want, places(got)); diff != "" || got.Blocked != want.blocked {
					t.Errorf("%s: blocked %v %s", ref, got.Blocked, diff)
				}
				warned = append(warned, warnings...)
			}
			matchLines(t, "rejected", reasons(res.Rejected), tc.rejected, strings.HasPrefix)
			matchLines(t, "warnings", warned, tc.warns, strings.Contains)
			if len(res.Conflicts) != tc.clash {
				t.Errorf("conflicts %v", res.Conflicts)
			}
			loadsBack(t, res)
		})
	}
}

func matchLines(t *testing.T, what string, got, want []string, fits func(line, part string) bool) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %q, want %d lines", what, got, len(want))
		return
	}
	for i := range want {
		if !fits(got[i], want[i]) {
			t.Errorf("%s: %q, want %q", what, got[i], want[i])
		}
	}
}

// loadsBack reads the rendered file and finds the same Config.
func loadsBack(t *testing.T, res *Result) {
	t.Helper()
	read, err := ParseRegistriesConf(NamedFile{"rendered", res.RegistriesConf()})
	if err != nil {
		t.Fatalf("the rendered file does not load: %v\n%s", err, res.RegistriesConf())
	}
	if diff := cmp.Diff(res.Config.entries, read.entries); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(res.Config.search, read.search); diff != "" {
		t.Error(diff)
	}
}

func TestConflictNamesObjectFieldAndSource(t *testing.T) {
	res := build(t, D("s.io -> m.io; Never"), D("o.io -> x.io", "s.io -> n.io; Allow"))
	want := []string{"ImageDigestMirrorSet/d spec.imageDigestMirrors[1].mirrorSourcePolicy: AllowContactingSource for source s.io contradicts NeverContactSource of another entry; the source is not contacted"}
	if diff := cmp.Diff(want, reasons(res.Conflicts)); diff != "" {
		t.Error(diff)
	}
}

func TestReportedAgainstOthers(t *testing.T) {
	t.Run("a source-only list panicked", func(t *testing.T) {
		if got := build(t, D("s.io -> s.io"), T("s.io -> s.io,s.io"), C("s.io -> s.io")).RegistriesConf(); len(got) != 0 {
			t.Errorf("%s", got)
		}
	})
	t.Run("an empty mirror took nodes NotReady", func(t *testing.T) {
		res := build(t, D("s.io -> ,m.io"))
		loadsBack(t, res)
		if len(res.Rejected) != 1 {
			t.Errorf("%v", res.Rejected)
		}
	})
	t.Run("a blocked child shadowed its parent's mirrors", func(t *testing.T) {
		res := build(t, D("p.io -> m.io"), R("B p.io/b"))
		if diff := cmp.Diff([]string{"m.io/b/i@D"}, places(res.Config.Resolve(mustParse(t, "p.io/b/i@"+someDigest)))); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("ICSP and IDMS excluded each other", func(t *testing.T) {
		both, one, other := build(t, C("s.io -> m.io"), D("s.io -> m.io")), build(t, C("s.io -> m.io")), build(t, D("s.io -> m.io"))
		if diff := cmp.Diff(string(one.RegistriesConf()), string(both.RegistriesConf())); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(string(one.RegistriesConf()), string(other.RegistriesConf())); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("tags in registrySources broke policy.json", func(t *testing.T) {
		res := build(t, R("A a.io/b:1,c.io"))
		if diff := cmp.Diff([]string{"c.io"}, res.Allowed); diff != "" || len(res.Rejected) != 1 {
			t.Error(diff, res.Rejected)
		}
	})
	t.Run("unanchored replacement, quay.io inside quay.io.example.com", func(t *testing.T) {
		res := build(t, D("quay.io -> m.io"), R("I quay.io.example.com", "B not-quay.io/x"))
		if diff := cmp.Diff([]string{"quay.io digest=m.io", "not-quay.io/x B", "quay.io.example.com I"}, short(res)); diff != "" {
			t.Error(diff)
		}
		for _, ref := range []string{"quay.io.example.com/i@", "my.quay.io/i@", "other.io/quay.io/i@"} {
			if got := res.Config.Resolve(mustParse(t, ref+someDigest)); len(got.Candidates) != 1 {
				t.Errorf("%s: %v", ref, places(got))
			}
		}
	})
	t.Run("a registry-root source was not honoured", func(t *testing.T) {
		res := build(t, D("docker.io -> m.io/hub"))
		if diff := cmp.Diff([]string{"m.io/hub/library/busybox@D", "docker.io/library/busybox@D"}, places(res.Config.Resolve(mustParse(t, "busybox@"+someDigest)))); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a mirror's insecure flag was missing", func(t *testing.T) {
		res := build(t, T("s.io -> m.io:5000/x"), R("I m.io:5000"))
		if diff := cmp.Diff([]string{"m.io:5000/x/i:1!", "s.io/i:1"}, places(res.Config.Resolve(mustParse(t, "s.io/i:1")))); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("rendering changed its input, so that the second render differed", func(t *testing.T) {
		in := world{D("s.io -> b.io,a.io,b.io"), R("B z.io,s.io/x", "I a.io", "S q.io,docker.io")}
		var objects []Object
		for _, o := range in {
			d, _ := FromMap(o)
			objects = append(objects, d)
		}
		before := fmt.Sprintf("%v", in)
		res := Build(objects, Options{})
		first := string(res.RegistriesConf())
		if second := string(res.RegistriesConf()); second != first {
			t.Error("the same result gave other bytes")
		}
		if second := string(Build(objects, Options{}).RegistriesConf()); second != first {
			t.Error("the same objects gave other bytes")
		}
		if fmt.Sprintf("%v", in) != before {
			t.Error("the input was changed")
		}
	})
	t.Run("the product's own image registry was blocked", func(t *testing.T) {
		var objects []Object
		for _, o := range (world{R("B own.io,other.io"), D("m.io -> n.io")}) {
			d, _ := FromMap(o)
			objects = append(objects, d)
		}
		res := Build(objects, Options{Protected: []imageReference{mustParse(t, "own.io/archkeeper:1")}})
		if diff := cmp.Diff([]string{"m.io digest=n.io", "other.io B"}, short(res)); diff != "" {
			t.Error(diff)
		}
		matchLines(t, "rejected", reasons(res.Rejected), []string{`Image/cluster spec.registrySources.blockedRegistries[0]: "own.io" is rejected: it would leave own.io/archkeeper:1`}, strings.HasPrefix)
	})
	t.Run("the product's own image registry was blocked, but a mirror has it", func(t *testing.T) {
		var objects []Object
		for _, o := range (world{R("B own.io"), T("own.io -> n.io")}) {
			d, _ := FromMap(o)
			objects = append(objects, d)
		}
		res := Build(objects, Options{Protected: []imageReference{mustParse(t, "own.io/archkeeper:1")}})
		if diff := cmp.Diff([]string{"own.io B tag=n.io"}, short(res)); diff != "" || len(res.Rejected) > 0 {
			t.Error(diff, res.Rejected)
		}
	})
}

// Permuting objects, their names and their entries changes no byte, nor do
// rejected parts.
func TestPermutationsChangeNoByte(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 11))
	for round := range 300 {
		in := randomWorld(rnd)
		want := string(build(t, in...).RegistriesConf())
		shuffled := slices.Clone(in)
		rnd.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i, o := range shuffled {
			if o["kind"] != KindImage {
				shuffled[i] = object(o["kind"].(string), fmt.Sprint("renamed-", rnd.IntN(100)), o["spec"].(map[string]any))
			}
		}
		shuffled = append(shuffled, D("bad..io -> m.io", "s.io -> , https://m.io"))
		if got := string(build(t, shuffled...).RegistriesConf()); got != want {
			t.Fatalf("round %d: %s", round, cmp.Diff(want, got))
		}
	}
}

func randomWorld(rnd *rand.Rand) world {
	scopes := []string{"a.io", "a.io/x", "a.io/x/y", "a.io:5000", "a.io:5000/x", "b.a.io", "b.a.io/x", "*.a.io", "*.b.a.io", "c.io", "c.io/x", "m.io/a", "m.io"}
	places := []string{"m.io", "m.io/a", "n.io:5000/b", "a.io", "a.io/x", "b.a.io", "c.io"}
	pick := func(from []string) string { return from[rnd.IntN(len(from))] }
	list := func(from []string, n int) string {
		var out []string
		for range n {
			out = append(out, pick(from))
		}
		return strings.Join(out, ",")
	}
	var in world
	for range rnd.IntN(5) {
		var rules []string
		for range 1 + rnd.IntN(3) {
			rule := pick(scopes) + " -> " + list(places, rnd.IntN(4))
			switch rnd.IntN(4) {
			case 0:
				rule += "; Never"
			case 1:
				rule += "; Allow"
			}
			rules = append(rules, rule)
		}
		switch rnd.IntN(3) {
		case 0:
			in = append(in, D(rules...))
		case 1:
			in = append(in, T(rules...))
		default:
			for i := range rules {
				rules[i], _, _ = strings.Cut(rules[i], ";")
			}
			in = append(in, C(rules...))
		}
	}
	var parts []string
	for _, key := range []string{"I", "B", "S"} {
		if n := rnd.IntN(4); n > 0 {
			from := scopes
			if key == "S" {
				from = []string{"docker.io", "q.io:5000"}
			}
			parts = append(parts, key+" "+list(from, n))
		}
	}
	return append(in, R(parts...))
}
