package policy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/gator/reader"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/mutators"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/types"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/policies"
)

// mutationSuite is the suite.yaml of a mutation room.
type mutationSuite struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// Mutation is the file to load; "mutation.yaml" by default.
	Mutation string         `json:"mutation,omitempty"`
	Cases    []mutationCase `json:"cases"`
}

// mutationCase says what becomes of an object.
type mutationCase struct {
	Name   string `json:"name"`
	Object string `json:"object"`
	// Operation is CREATE by default, Source is Original by default.
	Operation admissionv1.Operation `json:"operation,omitempty"`
	Source    types.SourceType      `json:"source,omitempty"`
	// Namespace overrides the object's; NamespaceLabels are those of its object.
	Namespace       string            `json:"namespace,omitempty"`
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`
	// Expect holds all that differs afterwards: dotted field path to value.
	Expect map[string]any `json:"expect"`
	// Error is a part of the error that refuses the object.
	Error string `json:"error,omitempty"`
}

// TestMutations runs the suite of every mutation room, with that room's mutators alone.
func TestMutations(t *testing.T) {
	w := newWorld(t)
	files := policies.FS()
	for _, file := range glob(t, files, "mutations/*/suite*.yaml") {
		dir := path.Dir(file)
		t.Run(path.Base(dir)+"/"+path.Base(file), func(t *testing.T) {
			suite := readMutationSuite(t, files, file)
			if fixture, err := fs.ReadFile(files, path.Join(dir, "provider.yaml")); err == nil {
				w.learn(t, fixture)
			}
			system := newSystem(t, w, files, path.Join(dir, suite.Mutation))
			for _, c := range suite.Cases {
				t.Run(c.Name, func(t *testing.T) {
					object := readObject(t, files, path.Join(dir, c.Object))
					want := object.DeepCopy()
					for field, value := range c.Expect {
						if err := unstructured.SetNestedField(want.Object, value, splitPath(field)...); err != nil {
							t.Fatal(err)
						}
					}
					mutable := c.mutable(object)
					if c.Namespace != "" {
						want.SetNamespace(c.Namespace)
					}
					_, err := system.Mutate(t.Context(), mutable)
					if c.Error != "" {
						if err == nil || !bytes.Contains([]byte(err.Error()), []byte(c.Error)) {
							t.Fatalf("error %v, want one that says %q", err, c.Error)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(overJSON(t, want), overJSON(t, mutable.Object)); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
				})
			}
		})
	}
}

// TestMutationsTogether loads every mutator of the library at once: none may
// be in conflict with another, and what they have done they must leave alone.
func TestMutationsTogether(t *testing.T) {
	w := newWorld(t)
	files := policies.FS()
	system := newSystem(t, w, files, glob(t, files, "mutations/*/mutation.yaml")...)
	var fixtures []byte
	for _, file := range glob(t, files, "mutations/*/provider.yaml") {
		fixture, err := fs.ReadFile(files, file)
		if err != nil {
			t.Fatal(err)
		}
		fixtures = append(fixtures, fixture...)
	}
	w.learn(t, fixtures)
	for _, file := range append(glob(t, files, "mutations/*/samples/*.yaml"), glob(t, files, "constraints/*/samples/allowed*.yaml")...) {
		t.Run(file, func(t *testing.T) {
			object := readObject(t, files, file)
			if object.GetKind() != "Pod" {
				return
			}
			once := mutationCase{}.mutable(object)
			if _, err := system.Mutate(t.Context(), once); err != nil {
				t.Fatal(err)
			}
			twice := mutationCase{}.mutable(&unstructured.Unstructured{Object: overJSON(t, once.Object)})
			if _, err := system.Mutate(t.Context(), twice); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(overJSON(t, once.Object), overJSON(t, twice.Object)); diff != "" {
				t.Errorf("mutating again changed the pod, -once +twice:\n%s", diff)
			}
		})
	}
}

// mutable gives a copy of the object as Gatekeeper's webhook would hand it over.
func (c mutationCase) mutable(object *unstructured.Unstructured) *types.Mutable {
	object = object.DeepCopy()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: object.GetNamespace(), Labels: c.NamespaceLabels}}
	if c.Namespace != "" {
		namespace.Name = c.Namespace
		object.SetNamespace(c.Namespace)
	}
	mutable := &types.Mutable{Object: object, Namespace: namespace, Username: "someone", Source: c.Source, Operation: c.Operation}
	if mutable.Source == "" {
		mutable.Source = types.SourceTypeOriginal
	}
	if mutable.Operation == "" {
		mutable.Operation = admissionv1.Create
	}
	return mutable
}

// newSystem loads mutators and fails for any conflict between them.
func newSystem(t testing.TB, w *world, files fs.FS, paths ...string) *mutation.System {
	t.Helper()
	system := mutation.NewSystem(mutation.SystemOpts{ProviderCache: w.Cache, ClientCertWatcher: w.clientCert})
	for _, file := range paths {
		source, err := fs.ReadFile(files, file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := reader.ReadUnstructureds(source)
		if err != nil || len(objects) == 0 {
			t.Fatalf("%s: %d mutators, %v", file, len(objects), err)
		}
		for _, object := range objects {
			mutator, err := mutatorOf(object)
			if err != nil {
				t.Fatalf("%s: %s: %v", file, object.GetName(), err)
			}
			if err := system.Upsert(mutator); err != nil {
				t.Fatalf("%s: %s: %v", file, object.GetName(), err)
			}
		}
	}
	return system
}

func mutatorOf(object *unstructured.Unstructured) (types.Mutator, error) {
	switch object.GetKind() {
	case "Assign":
		return convert(object, mutators.MutatorForAssign)
	case "AssignMetadata":
		return convert(object, mutators.MutatorForAssignMetadata)
	case "ModifySet":
		return convert(object, mutators.MutatorForModifySet)
	default:
		return nil, fmt.Errorf("no mutator is a %s", object.GetKind())
	}
}

func convert[T any, M types.Mutator](object *unstructured.Unstructured, to func(*T) (M, error)) (types.Mutator, error) {
	var typed T
	source, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	// As strict as the API server, and with integers kept as such.
	strict, err := kjson.UnmarshalStrict(source, &typed)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	return to(&typed)
}

func readMutationSuite(t testing.TB, files fs.FS, file string) mutationSuite {
	t.Helper()
	source, err := fs.ReadFile(files, file)
	if err != nil {
		t.Fatal(err)
	}
	suite := mutationSuite{Mutation: "mutation.yaml"}
	asJSON, err := yaml.YAMLToJSONStrict(source)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	strict, err := kjson.UnmarshalStrict(asJSON, &suite)
	if err := errors.Join(append(strict, err)...); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(suite.Cases) == 0 {
		t.Fatalf("%s: no cases", file)
	}
	return suite
}

func readObject(t testing.TB, files fs.FS, file string) *unstructured.Unstructured {
	t.Helper()
	object, err := reader.ReadObject(files, file)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return object
}

// overJSON gives an object as the API server would see it: mutators put numbers of
// another type into it than its decoder.
func overJSON(t testing.TB, object *unstructured.Unstructured) map[string]any {
	t.Helper()
	source, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var again unstructured.Unstructured
	if err := again.UnmarshalJSON(source); err != nil {
		t.Fatal(err)
	}
	return again.Object
}

func glob(t testing.TB, files fs.FS, pattern string) []string {
	t.Helper()
	paths, err := fs.Glob(files, pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
	}
	return paths
}

// splitPath splits a field path at its dots; `\.` is a dot inside a field.
func splitPath(field string) []string {
	var parts []string
	part := ""
	for i := 0; i < len(field); i++ {
		switch {
		case field[i] == '\\' && i+1 < len(field):
			i++
			part += string(field[i])
		case field[i] == '.':
			parts = append(parts, part)
			part = ""
		default:
			part += string(field[i])
		}
	}
	return append(parts, part)
}
