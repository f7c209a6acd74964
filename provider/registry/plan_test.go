package registry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

func TestPlansAreBounded(t *testing.T) {
	i, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	longName := strings.Repeat("a/", 100) + "app"
	for n := range 20_000 {
		if _, err := i.plan(fmt.Sprintf("registry.example/%s:v%d", longName, n)); err != nil {
			t.Fatal(err)
		}
	}
	held := 0
	for _, generation := range []map[string]*plan{i.plans.young, i.plans.old} {
		for image, p := range generation {
			held += p.cost(image)
		}
	}
	if held > 2*maxPlanBytes+1<<16 || held < maxPlanBytes {
		t.Errorf("%d bytes of plans are held", held)
	}
}

func TestAPlanIsOfOneConfiguration(t *testing.T) {
	var s plans
	one, other := &mirrors.Config{}, &mirrors.Config{}
	p := &plan{config: one}
	s.put("app", p)
	if got, ok := s.get("app", one); !ok || got != p {
		t.Error("the plan is gone")
	}
	if _, ok := s.get("app", other); ok {
		t.Error("another configuration was given the plan")
	}
	if _, ok := s.get("app", nil); ok {
		t.Error("no configuration was given the plan")
	}
}
