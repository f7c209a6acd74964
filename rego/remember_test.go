package rego

import (
	"fmt"
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
			Pod: []byte(fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {"nodeSelector": {"pool": %q}, "containers": [{"name": "c", "image": %q}]}}`, name, selector, image)),
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
