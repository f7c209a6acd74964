package admission

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
)

// DefaultLeaseDuration is for how long a renewal of the controller's Lease counts.
const DefaultLeaseDuration = 15 * time.Second

// InterlockOptions say which Lease proves that gated pods will be freed.
type InterlockOptions struct {
	Client          coordinationclient.LeasesGetter
	Namespace, Name string
	// Duration for which a renewal counts; DefaultLeaseDuration when 0.
	Duration time.Duration
	// Interval between two looks; a fifth of Duration, at most one second, when 0.
	Interval time.Duration
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Interlock tells whether the placement controller is alive: whether this process
// has seen its Lease renewed within the lease duration, by this process's own
// clock. Timestamps in the Lease are another machine's and are not trusted. Until
// a renewal has been seen nobody is alive.
type Interlock struct {
	options InterlockOptions

	mu      sync.Mutex
	since   time.Time // of the first look
	absent  bool      // there was no Lease once
	seen    bool
	last    renewal
	renewed time.Time // by our clock; zero: never
	alive   bool      // as last said in the log
}

// renewal is what changes when a Lease is renewed.
type renewal struct {
	holder string
	at     time.Time
}

// NewInterlock makes an interlock that has seen nothing yet.
func NewInterlock(options InterlockOptions) *Interlock {
	if options.Duration <= 0 {
		options.Duration = DefaultLeaseDuration
	}
	if options.Interval <= 0 {
		options.Interval = min(options.Duration/5, time.Second)
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	return &Interlock{options: options}
}

// Alive tells whether a renewal was seen within the lease duration.
func (i *Interlock) Alive() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.renewed.IsZero() && i.options.Clock.Since(i.renewed) <= i.options.Duration
}

// Settled tells whether Alive can be relied upon: a process that has just started
// has seen no renewal, however alive the controller is, and would let pods go
// ungated. It is settled when a renewal was seen, when there was no Lease, and when
// the lease duration has passed; then for good: a first Lease, made by the controllers
// of a new installation, takes nobody's readiness away.
func (i *Interlock) Settled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.renewed.IsZero() || i.absent || !i.since.IsZero() && i.options.Clock.Since(i.since) > i.options.Duration
}

// Run looks at the Lease at each interval until ctx ends.
func (i *Interlock) Run(ctx context.Context) error {
	ticker := i.options.Clock.NewTicker(i.options.Interval)
	defer ticker.Stop()
	for {
		i.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

func (i *Interlock) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, i.options.Duration/2)
	defer cancel()
	lease, err := i.options.Client.Leases(i.options.Namespace).Get(ctx, i.options.Name, metav1.GetOptions{})
	i.mu.Lock()
	i.absent = i.absent || apierrors.IsNotFound(err)
	if i.since.IsZero() {
		i.since = i.options.Clock.Now()
	}
	i.mu.Unlock()
	if err == nil {
		i.observe(lease)
	}
	i.say(err)
}

// observe takes note of a Lease. A change of holder or renewal time between two
// looks is a renewal; a Lease that was given up is none.
func (i *Interlock) observe(lease *coordinationv1.Lease) {
	var now renewal
	if lease.Spec.HolderIdentity != nil {
		now.holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.RenewTime != nil {
		now.at = lease.Spec.RenewTime.Time
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.seen && now.holder != "" && (now.holder != i.last.holder || !now.at.Equal(i.last.at)) {
		i.renewed = i.options.Clock.Now()
	}
	i.seen, i.last = true, now
}

// say logs a change between alive and not.
func (i *Interlock) say(err error) {
	alive := i.Alive()
	i.mu.Lock()
	changed := alive != i.alive
	i.alive = alive
	i.mu.Unlock()
	if !changed {
		return
	}
	lease := fmt.Sprintf("%s/%s", i.options.Namespace, i.options.Name)
	if alive {
		i.options.Log.Info("the placement controller is alive: new pods may be gated", "lease", lease)
		return
	}
	i.options.Log.Warn("the placement controller is not alive: no pod is gated", "lease", lease, "error", err)
}
