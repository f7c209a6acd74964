package placement

import (
	"context"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
)

const (
	// generationInterval is the time between two looks while pods are held.
	generationInterval = time.Second
	// changesAtOnce is how many changes are heard at once, changesInterval the time
	// in which one more is: each lets every held pod ask its registry, whatever that
	// registry's pause.
	changesAtOnce   = 5
	changesInterval = 5 * time.Second
	// maxInstances bounds the replicas of the provider that are remembered.
	maxInstances = 64
)

// Holding tells whether a gated pod waits for its images.
func (r *Reconciler) Holding() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range r.pods {
		if known.holds {
			return true
		}
	}
	return false
}

// FollowGeneration asks the provider, each second while pods are held and until ctx
// ends, whether what it answers from has changed: mirrors or pull secrets. If so,
// held pods are looked at again at once. A replica that is seen for the first time
// counts as a change: what it knew before is not known.
//
// Where something changes all the time, only some of the changes are heard at once.
//
// A provider that does not say is passed over: pods are then looked at again at the
// end of their pause.
func (r *Reconciler) FollowGeneration(ctx context.Context, clock clock.WithTicker, generation func(context.Context) (provider.Generation, error)) {
	seen := map[string]uint64{} // by instance
	limit := flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(1/changesInterval.Seconds()), changesAtOnce, clock)
	ticker := clock.NewTicker(generationInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if !r.Holding() {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		now, err := generation(asking)
		cancel()
		if err != nil {
			r.options.Log.Debug("the provider does not say whether anything has changed", "error", err)
			continue
		}
		if changes, known := seen[now.Instance]; known && changes == now.Changes {
			continue
		}
		if !limit.TryAccept() {
			continue // the next look sees it too
		}
		if len(seen) >= maxInstances {
			clear(seen)
		}
		seen[now.Instance] = now.Changes
		if err := r.Reevaluate(ctx); err != nil {
			r.options.Log.Error("could not look again at gated pods", "error", err)
		}
	}
}
