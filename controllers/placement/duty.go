package placement

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// dutyInterval is the time between two looks at whether this replica acts.
const dutyInterval = 500 * time.Millisecond

// acts tells whether this replica frees pods. A pod that it passes over is noted, and
// looked at when the replica begins to act.
func (r *Reconciler) acts() bool {
	if r.options.Acts == nil || r.options.Acts() {
		return true
	}
	r.passedOver.Store(true)
	return false
}

// FollowDuty looks at the gated pods that this replica has passed over once it acts,
// until ctx ends. Without Options.Acts it waits for ctx.
func (r *Reconciler) FollowDuty(ctx context.Context, clock clock.WithTicker) {
	if r.options.Acts == nil {
		<-ctx.Done()
		return
	}
	ticker := clock.NewTicker(dutyInterval)
	defer ticker.Stop()
	for acted := false; ; {
		if acts := r.options.Acts(); acts != acted {
			acted = acts
			r.options.Log.Info("whether this replica frees gated pods has changed", "frees", acts)
		}
		if acted && r.passedOver.Swap(false) {
			if err := r.Reevaluate(ctx); err != nil {
				r.passedOver.Store(true)
				r.options.Log.Error("could not look at gated pods", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}
