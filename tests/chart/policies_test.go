package chart

import (
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// The chart writes the mutation that gates pods once more, since its namespaces
// and its gate are values. All else is the library's: a label that one of them
// does not know is a pod that stays gated.
func TestTheChartsGateIsTheLibrarys(t *testing.T) {
	data, err := os.ReadFile(root + "/policies/mutations/scheduling-gate/mutation.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var library object
	if err := yaml.UnmarshalStrict(data, &library); err != nil {
		t.Fatal(err)
	}
	var rendered object
	for _, o := range render(t, map[string]any{"policies": map[string]any{"schedulingGate": true}}) {
		if text(o, "kind") == "Assign" {
			rendered = o
		}
	}
	if rendered == nil {
		t.Fatal("the chart renders no Assign")
	}
	excluded := list(rendered, "spec", "match", "excludedNamespaces")
	for _, ns := range []any{namespace, "gatekeeper-system", "kube-*"} {
		if !slices.Contains(excluded, ns) {
			t.Errorf("%v may be gated", ns)
		}
	}
	for _, o := range []object{library, rendered} {
		match, _ := at(o, "spec", "match").(object)
		delete(match, "excludedNamespaces")
	}
	want, err := yaml.Marshal(library["spec"])
	if err != nil {
		t.Fatal(err)
	}
	got, err := yaml.Marshal(rendered["spec"])
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the chart renders\n%swant\n%s", got, want)
	}
}
