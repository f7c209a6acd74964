package registry

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
)

// Limits of one host's gate.
const (
	startConcurrency = 8  // requests in flight to a host that is not known yet
	maxConcurrency   = 64 // and to one that answers well
	minConcurrency   = 1  // and to one that does not

	// maxQueue bounds the requests that wait for one host.
	maxQueue = 8192

	// A circuit opens when the failures since the last success weigh this much.
	// A request without any answer weighs more than a 5xx: a host that answers
	// is alive, and one broken repository must not close the others.
	circuitThreshold = 8.0
	noAnswerWeight   = 1.0
	serverFailWeight = 0.25

	circuitFirst = 5 * time.Second // an open circuit, doubled each time
	circuitMax   = time.Minute

	maxPause         = time.Hour // the longest Retry-After that is believed
	maxPausedCallers = 1024
)

// verdict is how a request to a host ended, seen by its gate.
type verdict int

const (
	verdictOK        verdict = iota // any answer below 500 but 429
	verdictThrottled                // 429, or 503 with Retry-After
	verdictServer                   // 5xx
	verdictNoAnswer                 // no connection, or no headers in time
	verdictAbandoned                // the caller went away; says nothing about the host
)

// gate admits requests to one host: additive increase and multiplicative
// decrease of their number (doubled each round until the first trouble), pauses
// that the host asked for, and a circuit that opens when it does not answer.
// Hosts share nothing, so a stalled one slows no other.
type gate struct {
	host  string
	clock clock.Clock
	watch func(host string, open bool) // told when the circuit opens or closes

	mu        sync.Mutex
	limit     float64
	slowStart bool
	inFlight  int
	queue     []*waiter
	decreased time.Time

	failures  float64
	openUntil time.Time
	opened    int // times in a row
	probing   bool

	pauses map[who]pause
}

// who tells callers apart at a gate: quotas belong to an account, so that one
// caller's pause is not another's.
type who [32]byte

type pause struct {
	repository string
	until      time.Time
	whole      bool // two repositories were refused: the host means the caller
}

type waiter struct {
	who     who
	granted chan struct{}
	err     *provider.Error // set before granted is closed when not admitted
}

func newGate(host string, c clock.Clock, watch func(string, bool)) *gate {
	return &gate{host: host, clock: c, watch: watch, limit: startConcurrency, slowStart: true, pauses: map[who]pause{}}
}

// enter waits for a place. The caller must call leave once when it returns nil.
// note is told why it waits, for the caller whose deadline comes first.
func (g *gate) enter(ctx context.Context, caller who, note func(*provider.Error)) *provider.Error {
	if err := g.waitPause(ctx, caller, note); err != nil {
		return err
	}
	g.mu.Lock()
	if err := g.circuit(); err != nil {
		g.mu.Unlock()
		return err
	}
	if g.inFlight < int(g.limit) && len(g.queue) == 0 {
		g.inFlight++
		g.mu.Unlock()
		return nil
	}
	if len(g.queue) >= maxQueue {
		g.mu.Unlock()
		return provider.Errorf(provider.ClassUnreachable, "registry %s: too many requests wait for it", g.host)
	}
	w := &waiter{who: caller, granted: make(chan struct{})}
	g.queue = append(g.queue, w)
	g.mu.Unlock()

	select {
	case <-w.granted:
		return w.err
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		for i, q := range g.queue {
			if q == w {
				g.queue = append(g.queue[:i], g.queue[i+1:]...)
				return timeoutError(ctx, g.host, "waiting for other requests to it")
			}
		}
		// Granted at the same moment: give the place back.
		if w.err == nil {
			g.inFlight--
			g.grant()
		}
		return timeoutError(ctx, g.host, "waiting for other requests to it")
	}
}

// waitPause waits out what the host asked for when that is within the deadline,
// and is rate-limited otherwise.
func (g *gate) waitPause(ctx context.Context, caller who, note func(*provider.Error)) *provider.Error {
	for {
		g.mu.Lock()
		p := g.pauses[caller]
		g.mu.Unlock()
		rest := p.until.Sub(g.clock.Now())
		if !p.whole || rest <= 0 {
			return nil
		}
		err := provider.Errorf(provider.ClassRateLimited, "registry %s asked to wait for %s", g.host, rest.Round(time.Second))
		err.HTTPStatus, err.RetryAfter = 429, rest
		if deadline, ok := ctx.Deadline(); !ok || rest > time.Until(deadline) {
			return err
		}
		note(err)
		timer := g.clock.NewTimer(rest)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// circuit refuses while the circuit is open, and lets one probe through when
// its time is over. The lock is held.
func (g *gate) circuit() *provider.Error {
	if g.openUntil.IsZero() {
		return nil
	}
	rest := g.openUntil.Sub(g.clock.Now())
	if rest <= 0 && !g.probing {
		g.probing = true
		return nil
	}
	err := provider.Errorf(provider.ClassUnreachable, "registry %s did not answer of late and is left alone for a moment", g.host)
	err.RetryAfter = max(rest, time.Second)
	return err
}

// leave gives the place back and learns from how the request ended. retryAfter
// is what the host asked for, 0 when it did not say.
func (g *gate) leave(caller who, repository string, started time.Time, v verdict, retryAfter time.Duration) {
	g.mu.Lock()
	g.inFlight--
	now := g.clock.Now()
	wasOpen := !g.openUntil.IsZero()
	switch v {
	case verdictOK:
		g.alive()
		g.grow()
	case verdictThrottled:
		g.alive()
		g.decrease(now, started)
		g.pause(caller, repository, now, retryAfter)
	case verdictServer:
		g.failure(now, serverFailWeight)
	case verdictNoAnswer:
		g.decrease(now, started)
		g.failure(now, noAnswerWeight)
	case verdictAbandoned:
		g.probing = false
	}
	isOpen := !g.openUntil.IsZero()
	g.grant()
	g.mu.Unlock()
	if wasOpen != isOpen {
		g.watch(g.host, isOpen)
	}
}

func (g *gate) alive() {
	g.failures, g.opened, g.openUntil, g.probing = 0, 0, time.Time{}, false
}

func (g *gate) grow() {
	if g.slowStart {
		g.limit++
	} else {
		g.limit += 1 / g.limit
	}
	g.limit = min(g.limit, maxConcurrency)
}

// decrease halves the limit, once for all the requests that were in flight
// together.
func (g *gate) decrease(now, started time.Time) {
	if !started.After(g.decreased) && !g.decreased.IsZero() {
		return
	}
	g.decreased, g.slowStart = now, false
	g.limit = max(g.limit/2, minConcurrency)
}

func (g *gate) failure(now time.Time, weight float64) {
	g.failures += weight
	if g.failures < circuitThreshold && !g.probing {
		return
	}
	if !g.openUntil.IsZero() && !g.probing {
		return // requests that were in flight when it opened
	}
	g.probing = false
	g.openUntil = now.Add(min(circuitFirst<<min(g.opened, 6), circuitMax))
	g.opened++
	err := provider.Errorf(provider.ClassUnreachable, "registry %s did not answer of late and is left alone for a moment", g.host)
	err.RetryAfter = g.openUntil.Sub(now)
	for _, w := range g.queue {
		w.err = err
		close(w.granted)
	}
	g.queue = nil
}

// pause remembers a Retry-After. One repository that is refused pauses only
// itself (its failure is cached); the second one shows that the caller is meant.
func (g *gate) pause(caller who, repository string, now time.Time, retryAfter time.Duration) {
	if retryAfter <= 0 {
		return
	}
	until := now.Add(min(retryAfter, maxPause))
	old, ok := g.pauses[caller]
	if !ok && len(g.pauses) >= maxPausedCallers {
		for k, p := range g.pauses {
			if !now.Before(p.until) {
				delete(g.pauses, k)
			}
		}
		if len(g.pauses) >= maxPausedCallers {
			return
		}
	}
	current := ok && now.Before(old.until)
	p := pause{repository: repository, until: until, whole: current && (old.whole || old.repository != repository)}
	if current && old.until.After(until) {
		p.until = old.until
	}
	g.pauses[caller] = p
}

// grant admits those who wait. The lock is held.
func (g *gate) grant() {
	for len(g.queue) > 0 && g.inFlight < int(g.limit) {
		w := g.queue[0]
		g.queue = g.queue[1:]
		if err := g.circuit(); err != nil {
			w.err = err
		} else {
			g.inFlight++
		}
		close(w.granted)
	}
}
