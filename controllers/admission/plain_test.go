//go:build unix

package admission_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/archkeeper/archkeeper/rego"
)

// plainly decides in Go, for comparison, about the pods that there are most of:
// images that are known and run on linux, with the default configuration. It gives
// the policy's patch for them: the requirement in each term that chooses no
// architecture, our annotation and labels, and the gate off.
func plainly(pod *corev1.Pod, images map[string]rego.Image, gate string) []rego.Operation {
	common := map[string]int{}
	asked := map[string]bool{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			if asked[c.Image] {
				continue
			}
			asked[c.Image] = true
			for _, a := range images[c.Image].Architectures {
				common[a]++
			}
		}
	}
	maps.DeleteFunc(common, func(_ string, n int) bool { return n < len(asked) })
	architectures := slices.Sorted(maps.Keys(common))

	requirement := corev1.NodeSelectorRequirement{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: architectures}
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{requirement}}
	required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
	var patch []rego.Operation
	add := func(path string, value any) {
		patch = append(patch, rego.Operation{Op: "add", Path: path, Value: value})
	}
	const below = "/spec/affinity/nodeAffinity"
	affinity := pod.Spec.Affinity
	switch {
	case pod.Spec.NodeSelector[corev1.LabelArchStable] != "":
	case affinity == nil:
		add("/spec/affinity", corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}})
	case affinity.NodeAffinity == nil:
		add(below, corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required})
	case affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil:
		add(below+"/requiredDuringSchedulingIgnoredDuringExecution", required)
	default:
		for i, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			chosen := slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
				return e.Key == corev1.LabelArchStable && e.Operator == corev1.NodeSelectorOpIn
			})
			path := fmt.Sprintf("%s/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/%d/matchExpressions", below, i)
			switch {
			case chosen, len(term.MatchExpressions)+len(term.MatchFields) == 0:
			case term.MatchExpressions == nil:
				add(path, []corev1.NodeSelectorRequirement{requirement})
			default:
				add(path+"/-", requirement)
			}
		}
	}

	labels := map[string]string{}
	for _, a := range architectures {
		labels["architecture.archkeeper.io/"+a] = "supported"
	}
	mark := func(path string, present, wanted map[string]string) {
		if present == nil {
			add(path, wanted)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(wanted)) {
			if present[key] != wanted[key] {
				add(path+"/"+strings.ReplaceAll(key, "/", "~1"), wanted[key])
			}
		}
	}
	mark("/metadata/annotations", pod.Annotations, map[string]string{"archkeeper.io/architectures": strings.Join(architectures, ",")})
	mark("/metadata/labels", pod.Labels, labels)
	return append(patch, rego.RemoveGate(pod.Spec.SchedulingGates, gate)...)
}

func TestTheComparisonDecidesAsThePolicyDoes(t *testing.T) {
	w := newWorld(t)
	for name, text := range map[string]string{
		"nothing":       "containers: [{name: a, image: R/both:v1}]",
		"two images":    "containers: [{name: a, image: R/both:v1}, {name: b, image: R/amd64:v1}]",
		"an init image": "initContainers: [{name: a, image: R/arm64:v1}], containers: [{name: b, image: R/both:v1}]",
		"a gate":        "schedulingGates: [{name: other}, {name: archkeeper.io/architecture}], containers: [{name: a, image: R/both:v1}]",
		"terms": "containers: [{name: a, image: R/both:v1}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" +
			"{matchExpressions: [{key: zone, operator: Exists}]}, {matchFields: [{key: metadata.name, operator: In, values: [worker]}]}, " +
			"{matchExpressions: [{key: kubernetes.io/arch, operator: In, values: [arm64]}]}]}}}",
		"pod affinity":  "containers: [{name: a, image: R/both:v1}], affinity: {podAffinity: {}}",
		"node affinity": "containers: [{name: a, image: R/both:v1}], affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}",
	} {
		text = "metadata: {generateName: p-, labels: {app: web}}\nspec: {" + text + "}"
		t.Run(name, func(t *testing.T) {
			decided, pod := w.decided(t, text)
			got, err := json.Marshal(plainly(&pod, decided.in.Images, w.placed.Gate))
			if err != nil {
				t.Fatal(err)
			}
			d, err := decided.Decide(t.Context(), decided.in)
			if err != nil {
				t.Fatal(err)
			}
			want, err := d.PatchJSON()
			if err != nil {
				t.Fatal(err)
			}
			if sorted(t, got) != sorted(t, want) {
				t.Errorf("plainly:\n%s\nthe policy:\n%s", got, want)
			}
		})
	}
}

// sorted is JSON with the keys of objects in order.
func sorted(t testing.TB, text []byte) string {
	t.Helper()
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
