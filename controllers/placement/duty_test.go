package placement

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/archkeeper/archkeeper/tests/registrytest"
)

func TestAReplicaThatDoesNotActTakesUpWhatItPassedOver(t *testing.T) {
	w := newWorld(t)
	var acts atomic.Bool
	w.options.Acts = acts.Load
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.FollowDuty(ctx, w.clock) }()
	t.Cleanup(func() { stop(); <-ended })
	ticks := func(n int) {
		t.Helper()
		for range n {
			for deadline := time.Now().Add(30 * time.Second); !w.clock.HasWaiters(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("nobody waits for the clock")
				}
			}
			w.clock.Step(dutyInterval)
		}
	}

	pod := w.pod(t, "p", "", "G/arm64:v1")
	if wait := w.reconcile(t, pod); wait != 0 || state(w.get(t, pod)) != gate || len(w.good.Requests()) != 0 {
		t.Fatalf("acted upon: again in %s, %s, %d requests", wait, state(w.get(t, pod)), len(w.good.Requests()))
	}
	ticks(3)
	if n := w.queue.Len(); n != 0 {
		t.Fatalf("%d pods are queued while the replica does not act", n)
	}

	acts.Store(true)
	ticks(1)
	got := make(chan reconcile.Request, 1)
	go func() {
		item, _ := w.queue.Get()
		got <- item
	}()
	select {
	case item := <-got:
		w.queue.Done(item)
		if item.NamespacedName != pod {
			t.Fatalf("%s is queued", item)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("what was passed over is not taken up")
	}
	w.reconcile(t, pod)
	if got := state(w.get(t, pod)); got != "arch=arm64" {
		t.Errorf("placed as %q", got)
	}
	ticks(3)
	if n := w.queue.Len(); n != 0 {
		t.Errorf("%d pods are queued again", n)
	}
}

func TestAReplicaThatActsNoMoreHoldsNothing(t *testing.T) {
	w := newWorld(t)
	var acts atomic.Bool
	acts.Store(true)
	w.options.Acts = acts.Load
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	pod := w.pod(t, "p", "", "B/amd64:v1")
	if w.reconcile(t, pod) == 0 || !w.Holding() {
		t.Fatal("the pod is not held")
	}
	acts.Store(false)
	if wait := w.reconcile(t, pod); wait != 0 || w.Holding() {
		t.Errorf("again in %s, holding %t", wait, w.Holding())
	}
}
