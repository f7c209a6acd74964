package rego

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

func TestMemoryIsBounded(t *testing.T) {
	e, err := New(t.Context(), Options{Remember: true})
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, selector, image string) Input {
		return Input{
			Phase: PhaseAdmit, ControllerAlive: true,
			Pod: []byte(fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {
				"nodeSelector": {"pool": %q},
				"containers": [{"name": "c", "image": %q, "volumeMounts": [{"name": "token-%s"}]}],
				"volumes": [{"name": "token-%s", "projected": {}}, {"name": "content", "image": {"reference": "known"}}]
			}}`, name, selector, image, name, name)),
			Images: map[string]Image{
				"known":   {Status: StatusKnown, Architectures: []string{"arm64"}},
				"unknown": {Status: StatusUnknown, Class: "timeout"},
			},
		}
	}
	decide := func(in Input) Decision {
		t.Helper()
		d, err := e.Decide(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	count := func(want int) {
		t.Helper()
		if got := len(e.memory.decisions); got != want {
			t.Errorf("%d decisions are remembered, want %d", got, want)
		}
	}
	only := func(in Input, image string) Input {
		in.Images = map[string]Image{image: in.Images[image]}
		return in
	}
	decide(only(pod("a", "one", "unknown"), "unknown"))
	count(0)
	decide(only(pod("a", "one", "known"), "known"))
	d := decide(only(pod("b", "one", "known"), "known"))
	count(1)
	d.Patch[0].Path, d.Architectures[0] = "/changed", "changed"
	if again := decide(only(pod("c", "one", "known"), "known")); again.Patch[0].Path == "/changed" || again.Architectures[0] == "changed" {
		t.Error("who got a decision can change what is remembered")
	}
	decide(only(pod("b", "two", "known"), "known"))
	count(2)
	for i := range maxRemembered - 2 {
		e.memory.keep([]byte(fmt.Sprint(i)), d)
	}
	count(maxRemembered)
	decide(only(pod("b", "three", "known"), "known"))
	count(1)
}

// A decision may be large, as its pod may.
func TestMemoryIsBoundedInBytes(t *testing.T) {
	m := &memory{decisions: map[[sha256.Size]byte]Decision{}}
	large := Decision{Patch: []Operation{{Op: "add", Path: "/spec/affinity", Value: strings.Repeat("x", maxRememberedBytes/10)}}}
	most := 0
	for i := range 30 {
		for range 2 { // as two do who evaluate it at the same time
			m.keep([]byte(fmt.Sprint(i)), large)
		}
		if _, ok := m.recall([]byte(fmt.Sprint(i))); !ok {
			t.Fatalf("decision %d is not remembered", i)
		}
		most = max(most, len(m.decisions))
	}
	if most != 9 {
		t.Errorf("%d decisions of a tenth of what may be remembered are, want 9", most)
	}
	m.keep([]byte("larger"), Decision{Message: strings.Repeat("x", maxRememberedBytes)})
	if _, ok := m.recall([]byte("larger")); ok {
		t.Error("a decision that alone is larger is remembered")
	}
}

// An image without an answer is an unknown one, for which the time counts.
func TestAnImageWithoutAnAnswerIsNotRemembered(t *testing.T) {
	e, err := New(t.Context(), Options{Remember: true})
	if err != nil {
		t.Fatal(err)
	}
	for where, pod := range map[string]string{
		"a container":       `{"spec": {"containers": [{"image": "known"}, {"image": "other"}], "schedulingGates": [{"name": "archkeeper.io/architecture"}]}}`,
		"an init container": `{"spec": {"initContainers": [{"image": "other"}], "containers": [{"image": "known"}], "schedulingGates": [{"name": "archkeeper.io/architecture"}]}}`,
		"a volume":          `{"spec": {"containers": [{"image": "known"}], "volumes": [{"image": {"reference": "other"}}], "schedulingGates": [{"name": "archkeeper.io/architecture"}]}}`,
	} {
		for _, step := range []struct {
			held float64
			want Action
		}{{1, ActionHold}, {121, ActionRelease}} {
			d, err := e.Decide(t.Context(), Input{
				Phase: PhaseResolve, Pod: []byte(pod), HeldSeconds: step.held,
				Images: map[string]Image{"known": {Status: StatusKnown, Architectures: []string{"arm64"}}},
			})
			if err != nil || d.Action != step.want {
				t.Errorf("%s, held for %v s: %s, %v", where, step.held, d.Action, err)
			}
		}
	}
}

func TestPodsThatDifferInWhatIsReadAreNotAlike(t *testing.T) {
	base := `{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}]}}`
	images := map[string]Image{"known": {Status: StatusKnown, Architectures: []string{"arm64"}}, "other": {Status: StatusAny}}
	short := func(pod string) string {
		t.Helper()
		in, ok := shorten(Input{Pod: []byte(pod), Images: images})
		if !ok {
			t.Fatalf("not shortened: %s", pod)
		}
		return string(in.Pod)
	}
	seen := map[string]string{short(base): base}
	for _, pod := range []string{
		`{"metadata": {}, "spec": {"containers": [{"image": "known"}]}}`,
		`{"spec": {"containers": [{"image": "known"}]}}`,
		`{"metadata": {"labels": {"a": "b"}, "annotations": {}}, "spec": {"containers": [{"image": "known"}]}}`,
		`{"metadata": {"labels": {"a": "b"}, "ownerReferences": [{"kind": "DaemonSet"}]}, "spec": {"containers": [{"image": "known"}]}}`,
		`{"metadata": {"labels": {"a": "b"}, "namespace": "ns"}, "spec": {"containers": [{"image": "known"}]}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}, {"image": "known"}]}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "other"}]}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"initContainers": [{"image": "known"}], "containers": [{"image": "known"}]}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}], "volumes": [{"image": {"reference": "known"}}]}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}], "nodeName": "n"}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}], "nodeSelector": {"a": "b"}}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}], "affinity": {}}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}], "tolerations": []}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}], "schedulingGates": []}}`,
		`{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "known"}], "os": {"name": "linux"}}}`,
	} {
		key := short(pod)
		if other, ok := seen[key]; ok {
			t.Errorf("taken for alike:\n%s\n%s", pod, other)
		}
		seen[key] = pod
	}
}
