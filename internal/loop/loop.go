// Package loop is the skeleton of a controller that looks at the whole of its
// question each time: at once, whenever something may have changed, and when the
// time that the last look asked for has passed.
package loop

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Loop looks again and again. Make one with New, run it once.
type Loop struct {
	clock clock.Clock
	wake  chan struct{}
}

// New makes a loop that waits by a clock.
func New(clock clock.Clock) *Loop {
	return &Loop{clock: clock, wake: make(chan struct{}, 1)}
}

// Nudge asks for another look, without waiting for it. Nudges during one look
// count for one. It is safe for concurrent use.
func (l *Loop) Nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run looks until ctx ends. A look tells how long to wait for a nudge before the
// next one; 0 or less means without limit.
func (l *Loop) Run(ctx context.Context, look func(context.Context) time.Duration) {
	for ctx.Err() == nil {
		l.wait(ctx, look(ctx))
	}
}

func (l *Loop) wait(ctx context.Context, most time.Duration) {
	var over <-chan time.Time
	if most > 0 {
		timer := l.clock.NewTimer(most)
		defer timer.Stop()
		over = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-l.wake:
	case <-over:
	}
}
