package mirrors

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider/imageref"
)

const digestSet = "apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata: {name: d}\nspec: {imageDigestMirrors: [{source: s.io, mirrors: [m.io]}]}\n"

func TestDecode(t *testing.T) {
	indented := strings.ReplaceAll(strings.TrimSpace(digestSet), "\n", "\n  ")
	for name, tc := range map[string]struct {
		text string
		want []string // the kinds and names
	}{
		"nothing":                         {text: ""},
		"comments alone":                  {text: "# a\n---\n# b\n"},
		"one document":                    {text: digestSet, want: []string{"ImageDigestMirrorSet/d"}},
		"a byte order mark and CRLF":      {text: "\ufeff" + strings.ReplaceAll(digestSet, "\n", "\r\n"), want: []string{"ImageDigestMirrorSet/d"}},
		"several documents":               {text: "---\n" + digestSet + "--- # next\n" + digestSet + "...\n---\n" + digestSet, want: []string{"ImageDigestMirrorSet/d", "ImageDigestMirrorSet/d", "ImageDigestMirrorSet/d"}},
		"a directive before the document": {text: "%YAML 1.1\n---\n" + digestSet, want: []string{"ImageDigestMirrorSet/d"}},
		"a List":                          {text: "apiVersion: v1\nkind: List\nitems:\n- " + indented + "\n- kind: ConfigMap\n  apiVersion: v1\n", want: []string{"ImageDigestMirrorSet/d"}},
		"a List in a List":                {text: "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: [{apiVersion: config.openshift.io/v1, kind: ImageTagMirrorSet, metadata: {name: t}, spec: {}}]}]}", want: []string{"ImageTagMirrorSet/t"}},
		"a typed list whose items leave out their kind": {text: "apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSetList\nitems:\n- metadata: {name: x}\n  spec: {imageDigestMirrors: []}\n", want: []string{"ImageDigestMirrorSet/x"}},
		"JSON with tabs":                  {text: "{\n\t\"apiVersion\": \"config.openshift.io/v1\",\n\t\"kind\": \"Image\",\n\t\"metadata\": {\"name\": \"cluster\"}}", want: []string{"Image/cluster"}},
		"an object without a name":        {text: strings.Replace(digestSet, "metadata: {name: d}\n", "", 1), want: []string{"ImageDigestMirrorSet/<unnamed>"}},
		"other kinds":                     {text: "apiVersion: v1\nkind: Pod\n---\njust text\n---\n- a list\n---\na: b\n"},
		"other API groups":                {text: strings.Replace(digestSet, "config.openshift.io/v1", "example.com/v1", 1) + "---\napiVersion: image.openshift.io/v1\nkind: Image\nmetadata: {name: cluster}\n"},
		"an Image not named cluster":      {text: "apiVersion: config.openshift.io/v1\nkind: Image\nmetadata: {name: other}\nspec: {registrySources: {blockedRegistries: [a.io]}}\n"},
		"a bare ImageContentSourcePolicy": {text: "apiVersion: operator.openshift.io/v1alpha1\nkind: ImageContentSourcePolicy\nmetadata: {name: c}\n", want: []string{"ImageContentSourcePolicy/c"}},
		"a marker inside a text":          {text: digestSet + "x: |\n  ---\n  a\n", want: []string{"ImageDigestMirrorSet/d"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := Decode(NamedFile{"f.yaml", []byte(tc.text)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range objects {
				got = append(got, o.Kind()+"/"+o.Name())
				if len(o.Rejected()) > 0 {
					t.Errorf("%v", o.Rejected())
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeNamesFileAndLine(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"in the first document":        {"a: b: c\n", "f.yaml:1: mapping values are not allowed"},
		"in the second document":       {"a: b\n---\nc: d\n\te: f\n", "f.yaml:4: found a tab character"},
		"in the third, after comments": {"a: b\n---\n# nothing\n---\nx:\n  - a\n b: c\n", "f.yaml:7: did not find expected key"},
		"a key given twice":            {"a: 1\nb: 2\na: 3\n", `f.yaml:3: unmarshal errors: key "a" already set`},
		"a JSON key given twice":       {`{"a": 1, "a": 2}`, "f.yaml:1: duplicate field"},
		"a bracket not closed":         {"a: b\n---\nc: [d\n", "f.yaml:4: did not find expected ',' or ']'"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := Decode(NamedFile{"good.yaml", []byte(digestSet)}, NamedFile{"f.yaml", []byte(tc.text)})
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") || objects != nil {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

// FuzzDecode: no input panics, and whatever is accepted renders to a file that
// loads and says the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(digestSet))
	f.Add([]byte("apiVersion: config.openshift.io/v1\nkind: Image\nmetadata: {name: cluster}\nspec: {registrySources: {blockedRegistries: ['*.a.io', '[::1]:5000'], containerRuntimeSearchRegistries: [docker.io]}}\n"))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [1, null, {kind: List}]\n---\n...\n%X\n"))
	f.Add([]byte("apiVersion: config.openshift.io/v1\nkind: ImageTagMirrorSet\nspec: {imageTagMirrors: [null, {source: a.io/x, mirrors: [b.io, a.io/x], mirrorSourcePolicy: NeverContactSource}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := Decode(NamedFile{"f", data})
		if err != nil {
			return
		}
		loadsBack(t, Build(objects, Options{}))
	})
}

// FuzzParseRegistriesConf: no file panics, and whatever loads resolves.
func FuzzParseRegistriesConf(f *testing.F) {
	f.Add([]byte("[[registry]]\nprefix = \"*.a.io\"\n[[registry.mirror]]\nlocation = \"b.io\"\n"), "x.a.io/b@"+someDigest)
	f.Add([]byte("[[registry]]\nlocation = \"a.io\"\nblocked = true\n"), "a.io/b:1")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		c, err := ParseRegistriesConf(NamedFile{"f", data})
		if err != nil {
			return
		}
		ref, err := imageref.Parse(text)
		if err != nil {
			return
		}
		if res := c.Resolve(ref); len(res.Candidates) == 0 && !res.Blocked && res.Err == nil {
			t.Errorf("%s: no candidate and no reason", text)
		}
	})
}
