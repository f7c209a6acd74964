package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// looks runs a loop whose looks all ask for wait, and gives the number of looks.
func looks(t *testing.T, wait time.Duration, during func(*Loop)) int {
	t.Helper()
	n := 0
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := New(clock.RealClock{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			l.Run(ctx, func(context.Context) time.Duration { n++; return wait })
		}()
		synctest.Wait()
		during(l)
		synctest.Wait()
		cancel()
		<-ended
	})
	return n
}

func TestRun(t *testing.T) {
	for name, tc := range map[string]struct {
		wait   time.Duration
		during func(*Loop)
		want   int
	}{
		"looks at once": {time.Minute, func(*Loop) {}, 1},
		"looks when the time that a look asked for has passed": {time.Minute, func(*Loop) { time.Sleep(3*time.Minute + time.Second) }, 4},
		"looks when it is nudged":                              {time.Minute, func(l *Loop) { l.Nudge() }, 2},
		"waits without limit when a look asks for nothing":     {0, func(*Loop) { time.Sleep(24 * time.Hour) }, 1},
		"is nudged out of a wait without limit":                {0, func(l *Loop) { time.Sleep(24 * time.Hour); l.Nudge() }, 2},
		"begins a new wait after a nudge": {time.Minute, func(l *Loop) {
			time.Sleep(59 * time.Second)
			l.Nudge()
			time.Sleep(59 * time.Second)
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if got := looks(t, tc.wait, tc.during); got != tc.want {
				t.Errorf("%d looks, want %d", got, tc.want)
			}
		})
	}
}

func TestRunLooksNoMoreOnceItsContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	New(clock.RealClock{}).Run(ctx, func(context.Context) time.Duration { n++; cancel(); return time.Nanosecond })
	if n != 1 {
		t.Errorf("%d looks, want 1", n)
	}
}

func TestNudgesDuringOneLookCountForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		l, n := New(clock.RealClock{}), 0
		l.Run(ctx, func(context.Context) time.Duration {
			if n++; n == 1 {
				l.Nudge()
				l.Nudge()
				l.Nudge()
			}
			return 0
		})
		if n != 2 {
			t.Errorf("%d looks, want 2", n)
		}
	})
}
