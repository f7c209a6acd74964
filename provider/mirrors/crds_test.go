package mirrors

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// patterns finds the pattern of a field anywhere below a schema.
func patterns(schema any, name string, out []string) []string {
	switch value := schema.(type) {
	case map[string]any:
		if props, ok := value["properties"].(map[string]any); ok {
			for key, prop := range props {
				field, _ := prop.(map[string]any)
				if items, ok := field["items"].(map[string]any); ok && key == name && items["pattern"] != nil {
					field = items
				}
				if text, ok := field["pattern"].(string); ok && key == name {
					out = append(out, text)
				}
			}
		}
		for _, inner := range value {
			out = patterns(inner, name, out)
		}
	case []any:
		for _, inner := range value {
			out = patterns(inner, name, out)
		}
	}
	return out
}

// The CRDs for plain Kubernetes refuse what Build would reject, and nothing else.
func TestTheCRDsAgreeWithTheMerge(t *testing.T) {
	texts := []string{
		"a.io", "a.io:5000", "a.io/b", "a.io/b/c-d__e.f", "localhost", "localhost/x", "localhost:5000/x", "one:5000", "one:5000/x", "A.io/b", "[::1]", "[::1]:5000/x", "*.a.io", "*.x",
		"", "a.io/", "/a", "a.io//b", "a .io", "a.io/b:tag", "a.io/B", "b..c", ".a.io", "a.io.", "freezer", "freezer/a", "https://a.io", "a.io:", "a.io:port", "*", "**.x", "x.*.y", "*.x/y", "*.x:5",
		"a.io/b@" + someDigest, "-a.io", "a-.io", "a_b.io", "a.io/_b", "a.io/b_", "a.io/b..c", strings.Repeat("a", 256) + ".io",
	}
	fields := map[string]role{
		"source": roleSource, "mirrors": roleMirror, "insecureRegistries": roleScope, "blockedRegistries": roleScope,
		"allowedRegistries": roleScope, "containerRuntimeSearchRegistries": roleSearch,
	}
	files, err := filepath.Glob("../../deploy/crds/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%v %v", files, err)
	}
	found := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd map[string]any
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			t.Fatal(err)
		}
		for field, as := range fields {
			for _, text := range patterns(crd, field, nil) {
				found++
				pattern := regexp.MustCompile(text)
				for _, value := range texts {
					accepts := pattern.MatchString(value) && len(value) <= 255
					if reason := objection(value, as); accepts != (reason == "") {
						t.Errorf("%s %s: the pattern accepts %q: %v; the merge says %q", filepath.Base(file), field, value, accepts, reason)
					}
				}
			}
		}
	}
	if found != 10 {
		t.Errorf("%d patterns", found)
	}
}
