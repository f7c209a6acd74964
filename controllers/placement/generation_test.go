package placement

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// generations is what a provider says of itself.
type generations struct {
	mu    sync.Mutex
	now   provider.Generation
	err   error
	asked int
}

func (g *generations) get(context.Context) (provider.Generation, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	return g.now, g.err
}

func (g *generations) set(now provider.Generation, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now, g.err = now, err
}

func (g *generations) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// follow has a world follow a provider. What it gives lets a second pass, with one
// look at the provider if there should be one, and gives how many pods that queued.
func (w *world) follow(t *testing.T, g *generations) (second func(looks bool) int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.FollowGeneration(ctx, w.clock, g.get) }()
	t.Cleanup(func() { stop(); <-ended })
	return func(looks bool) int {
		t.Helper()
		before := g.count()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nobody looked")
			}
			if !w.clock.HasWaiters() {
				continue
			}
			w.clock.Step(generationInterval)
			if !looks || g.count() > before {
				break
			}
		}
		// The next look is asked for when the one before is done.
		for done := g.count(); looks && g.count() == done; time.Sleep(time.Millisecond) {
			w.clock.Step(generationInterval)
		}
		queued := w.queue.Len()
		for range queued {
			item, _ := w.queue.Get()
			w.queue.Done(item)
		}
		return queued
	}
}

func TestHeldPodsAreLookedAtAgainWhenTheProviderHasChanged(t *testing.T) {
	w := newWorld(t)
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	g := &generations{now: provider.Generation{Instance: "a"}}
	second := w.follow(t, g)

	for range 5 {
		second(false)
	}
	if n := g.count(); n != 0 {
		t.Errorf("nothing is held, and the provider was asked %d times", n)
	}
	w.reconcile(t, w.pod(t, "held", "", "B/amd64:v1"))
	if !w.Holding() {
		t.Fatal("the pod is not held")
	}
	for _, step := range []struct {
		sentence string
		now      provider.Generation
		err      error
		want     int
	}{
		{"a replica that is seen for the first time", provider.Generation{Instance: "a"}, nil, 1},
		{"nothing has changed", provider.Generation{Instance: "a"}, nil, 0},
		{"it has changed", provider.Generation{Instance: "a", Changes: 1}, nil, 1},
		{"nothing more has changed", provider.Generation{Instance: "a", Changes: 1}, nil, 0},
		{"another replica", provider.Generation{Instance: "b", Changes: 7}, nil, 1},
		{"the first one again", provider.Generation{Instance: "a", Changes: 1}, nil, 0},
		{"the provider does not say", provider.Generation{}, errors.New("status 404"), 0},
		{"the other replica, changed", provider.Generation{Instance: "b", Changes: 8}, nil, 1},
	} {
		g.set(step.now, step.err)
		if got := second(true); got != step.want {
			t.Errorf("%s: %d pods queued, want %d", step.sentence, got, step.want)
		}
	}
	if len(w.registries.hosts) != 0 {
		t.Error("a pause from before the change still stands")
	}
}

// Where something changes all the time, such as the pull secrets of a large cluster,
// the pauses of registries still mean something, and the last change is heard.
func TestAProviderThatChangesAllTheTimeIsHeardNowAndThen(t *testing.T) {
	w := newWorld(t)
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	g := &generations{now: provider.Generation{Instance: "a"}}
	w.reconcile(t, w.pod(t, "held", "", "B/amd64:v1"))
	second := w.follow(t, g)
	began, heard := w.clock.Now(), 0
	for changes := uint64(1); w.clock.Since(began) < time.Minute; changes++ {
		g.set(provider.Generation{Instance: "a", Changes: changes}, nil)
		heard += second(true)
	}
	if most := changesAtOnce + int(w.clock.Since(began)/changesInterval); heard < changesAtOnce || heard > most {
		t.Errorf("held pods were looked at again %d times in %s, want %d to %d times", heard, w.clock.Since(began), changesAtOnce, most)
	}
	g.set(provider.Generation{Instance: "a"}, nil)
	late := 0
	for began = w.clock.Now(); w.clock.Since(began) < 2*changesInterval; {
		late += second(true)
	}
	if late != 1 {
		t.Errorf("the last change was heard %d times, want once", late)
	}
}

// An image that was not shown to us gets its second chance two seconds later, also
// when something changes before that, once or ten times.
func TestALookInBetweenIsNoSecondChance(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/late:v1")
	w.reconcile(t, name)
	for range 10 {
		w.clock.SetTime(w.clock.Now().Add(secondAsk / 20))
		if err := w.Reevaluate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if wait := w.reconcile(t, name); wait <= 0 || wait > secondAsk {
			t.Errorf("looked at again after %s", wait)
		}
		if got := state(w.get(t, name)); got != gate {
			t.Fatalf("%q after %s", got, w.clock.Since(w.get(t, name).CreationTimestamp.Time))
		}
	}
	asked := w.good.Count(func(r registrytest.Request) bool { return strings.Contains(r.Path, "/late/") })
	if asked < 11 {
		t.Errorf("the registry was asked %d times in 11 looks", asked)
	}
	w.clock.SetTime(w.clock.Now().Add(secondAsk / 2))
	w.reconcile(t, name)
	if got := state(w.get(t, name)); got != "" {
		t.Errorf("%q after the second chance", got)
	}
}
