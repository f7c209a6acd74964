package registry

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
)

func testGate() (*gate, *clocktesting.FakeClock) {
	clock := clocktesting.NewFakeClock(time.Now())
	return newGate("registry.example", clock, func(string, bool) {}), clock
}

func quiet(*provider.Error) {}

// admitted counts how many requests a gate lets in at once, and gives them back.
func admitted(t *testing.T, g *gate, v verdict, clock *clocktesting.FakeClock) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // whoever would have to wait is not admitted
	n := 0
	started := clock.Now()
	for g.enter(ctx, who{}, quiet) == nil {
		n++
		if n > 1000 {
			t.Fatal("the gate admits everything")
		}
	}
	clock.Step(time.Millisecond)
	for range n {
		g.leave(who{}, "r", started, v, 0)
	}
	return n
}

func TestConcurrencyAdapts(t *testing.T) {
	g, clock := testGate()
	var seen []int
	for range 6 {
		seen = append(seen, admitted(t, g, verdictOK, clock))
	}
	for n, want := range []int{8, 16, 32, 64, 64, 64} {
		if seen[n] != want {
			t.Fatalf("admitted %v", seen)
		}
	}
	if admitted(t, g, verdictThrottled, clock); int(g.limit) != 32 {
		t.Errorf("limit %v after 64 were refused together, want 32", g.limit)
	}
	before := g.limit
	admitted(t, g, verdictOK, clock)
	if g.limit < before+0.9 || g.limit > before+1.1 {
		t.Errorf("a good round made %v of %v, want one more", g.limit, before)
	}
	for range 20 {
		admitted(t, g, verdictThrottled, clock)
	}
	if n := admitted(t, g, verdictOK, clock); n != 1 {
		t.Errorf("admitted %d, want 1", n)
	}
}

func TestTheCircuit(t *testing.T) {
	g, clock := testGate()
	open := func() bool {
		err := g.enter(t.Context(), who{}, quiet)
		if err == nil {
			g.mu.Lock()
			g.inFlight--
			g.probing = false
			g.mu.Unlock()
			return false
		}
		if err.Class != provider.ClassUnreachable || err.RetryAfter <= 0 {
			t.Fatalf("%v, retry after %s", err, err.RetryAfter)
		}
		return true
	}
	one := func(v verdict) {
		t.Helper()
		if err := g.enter(t.Context(), who{}, quiet); err != nil {
			t.Fatal(err)
		}
		g.leave(who{}, "r", clock.Now(), v, 0)
	}
	for range 7 {
		one(verdictNoAnswer)
	}
	one(verdictOK)
	for range 7 {
		one(verdictNoAnswer)
	}
	if open() {
		t.Fatal("open after seven failures in a row")
	}
	one(verdictNoAnswer)
	if !open() {
		t.Fatal("closed after eight failures in a row")
	}
	clock.Step(circuitFirst - time.Millisecond)
	if !open() {
		t.Fatal("closed before its time")
	}
	clock.Step(time.Millisecond)
	one(verdictNoAnswer) // the probe
	clock.Step(circuitFirst)
	if !open() {
		t.Fatal("the second time is no longer than the first")
	}
	clock.Step(circuitFirst)
	if err := g.enter(t.Context(), who{}, quiet); err != nil {
		t.Fatal(err)
	}
	if !open() {
		t.Fatal("two probes at once")
	}
	g.leave(who{}, "r", clock.Now(), verdictOK, 0)
	if open() {
		t.Fatal("open after a good probe")
	}
}

func TestWhoWaitsIsToldWhenTheCircuitOpens(t *testing.T) {
	g, clock := testGate()
	for range startConcurrency {
		if err := g.enter(t.Context(), who{}, quiet); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	failures := make(chan *provider.Error, 50)
	for range 50 {
		wg.Go(func() { failures <- g.enter(t.Context(), who{}, quiet) })
	}
	for {
		g.mu.Lock()
		waiting := len(g.queue)
		g.mu.Unlock()
		if waiting == 50 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	g.mu.Lock()
	g.limit = startConcurrency // no place is given while the failures come in
	g.failures = circuitThreshold - noAnswerWeight
	g.mu.Unlock()
	g.leave(who{}, "r", clock.Now(), verdictNoAnswer, 0)
	wg.Wait()
	close(failures)
	for err := range failures {
		if err == nil || err.Class != provider.ClassUnreachable {
			t.Errorf("got %v", err)
		}
	}
}

func TestWhoGivesUpLeavesTheQueue(t *testing.T) {
	g, clock := testGate()
	for range startConcurrency {
		if err := g.enter(t.Context(), who{}, quiet); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := g.enter(ctx, who{}, quiet)
	if err == nil || err.Class != provider.ClassTimeout || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	g.leave(who{}, "r", clock.Now(), verdictOK, 0)
	if g.inFlight != startConcurrency-1 || len(g.queue) != 0 {
		t.Errorf("%d in flight, %d waiting", g.inFlight, len(g.queue))
	}
}

func TestPausesBelongToACaller(t *testing.T) {
	g, clock := testGate()
	tenant, other := who{1}, who{2}
	refuse := func(w who, repository string) {
		t.Helper()
		if err := g.enter(t.Context(), w, quiet); err != nil {
			t.Fatal(err)
		}
		g.leave(w, repository, clock.Now(), verdictThrottled, time.Minute)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	paused := func(w who) bool {
		err := g.enter(ctx, w, quiet)
		if err == nil {
			g.leave(w, "r", clock.Now(), verdictOK, 0)
			return false
		}
		if err.Class != provider.ClassRateLimited || err.RetryAfter <= 0 {
			t.Fatal(err)
		}
		return true
	}
	refuse(tenant, "one")
	if paused(tenant) {
		t.Error("one repository that is refused pauses the others")
	}
	refuse(tenant, "two")
	if !paused(tenant) {
		t.Error("two repositories that are refused do not pause the caller")
	}
	if paused(other) {
		t.Error("one caller's pause is another's")
	}
	clock.Step(61 * time.Second)
	if paused(tenant) {
		t.Error("paused beyond its time")
	}
}
