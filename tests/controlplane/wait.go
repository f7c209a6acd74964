package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollInterval is short: what tests wait for takes tens of milliseconds.
const pollInterval = 50 * time.Millisecond

// final ends a poll at once: the condition can no longer become true.
type final struct{ err error }

func (f final) Error() string { return f.err.Error() }
func (f final) Unwrap() error { return f.err }

// Final wraps the error of a condition that can no longer become true: WaitFor
// returns it at once.
func Final(err error) error { return final{err} }

// WaitFor asks the condition every 50 ms until it returns nil. When ctx ends
// first, or after a minute when ctx has no deadline, the error names what was
// waited for and the condition's last error.
func WaitFor(ctx context.Context, what string, condition func(ctx context.Context) error) error {
	return poll(ctx, what, condition)
}

func poll(ctx context.Context, what string, condition func(ctx context.Context) error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, waitTimeout)
		defer cancel()
	}
	began := time.Now()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		var f final
		if errors.As(err, &f) {
			return fmt.Errorf("waiting until %s: %w", what, f.err)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: not so after %s: %w", what, time.Since(began).Round(100*time.Millisecond), last)
		case <-tick.C:
		}
	}
}
