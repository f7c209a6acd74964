package policy_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// TestMirrorSetsAgree: what the constraint says of a scope when it is written is
// what the renderer says of it later.
func TestMirrorSetsAgree(t *testing.T) {
	scopes := []string{
		"docker.io", "docker.io/library", "registry.example", "registry.example:5000", "registry.example:5000/a/b_c/d.e/f--g",
		"localhost", "localhost/a", "localhost:5000", "cache:5000", "cache:5000/a", "10.0.0.1", "10.0.0.1:5000/a",
		"[fd00::1]", "[fd00::1]:5000/a", "*.example.com", "*.com", "Registry.Example/a",
		"", " ", "registry.example ", "freezer", "freezer/a", "b..c", "b..c/a", ".b", "b.", "registry.example/", "registry.example//a",
		"registry.example/A", "registry.example/a:1", "registry.example/a@sha256:aa", "https://registry.example", "registry.example/a b",
		"**.x", "x.*.y", "*.x/y", "*.x:5", "*", "*.", "*x", "-a.b", "a.b-/c", "a_b.c", "registry.example/_a", "registry.example/a__b",
		"registry.example/a___b", "registry.example/a..b", "index.docker.io", "index.docker.io/library", "registry.example:", "registry.example:x",
	}
	w := newWorld(t)
	client := w.client(t, false, "mirror-sets/samples/constraint.yaml")
	for _, scope := range scopes {
		for _, part := range []string{"source", "mirror"} {
			t.Run(part+" "+scope, func(t *testing.T) {
				entry := map[string]any{"source": "source.example", "mirrors": []any{"mirror.example"}}
				if part == "source" {
					entry["source"] = scope
				} else {
					entry["mirrors"] = []any{scope}
				}
				object := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "config.openshift.io/v1", "kind": "ImageDigestMirrorSet", "metadata": map[string]any{"name": "m"},
					"spec": map[string]any{"imageDigestMirrors": []any{entry}},
				}}
				decoded, ok := mirrors.FromMap(object.Object)
				if !ok {
					t.Fatal("the renderer does not know the object")
				}
				messages := review(t, client, object)
				if (len(decoded.Rejected()) > 0) != (len(messages) > 0) {
					t.Errorf("the renderer rejects %v, the constraint says %q", decoded.Rejected(), messages)
				}
				for _, message := range messages {
					if !strings.HasPrefix(message, part+" ") {
						t.Errorf("the constraint says %q", message)
					}
				}
			})
		}
	}
}
