package client

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
)

// Deferred is a Client whose files may come later: in an installation that keeps
// its own certificates, the process that asks the provider is also the one that
// makes the certificate with which it asks. Until then every question has a
// passing failure. Run it.
type Deferred struct {
	options Options
	clock   clock.WithTicker
	client  atomic.Pointer[Client]
	failure atomic.Pointer[string]
}

var _ provider.Inspector = (*Deferred)(nil)

// NewDeferred makes a Deferred, which tries at once.
func NewDeferred(o Options) *Deferred {
	d := &Deferred{options: o, clock: o.Clock}
	if d.clock == nil {
		d.clock = clock.RealClock{}
	}
	d.try()
	return d
}

func (d *Deferred) try() bool {
	if d.client.Load() != nil {
		return true
	}
	c, err := New(d.options)
	if err != nil {
		text := err.Error()
		d.failure.Store(&text)
		return false
	}
	d.client.Store(c)
	return true
}

// Ready tells whether the files are there.
func (d *Deferred) Ready() bool { return d.client.Load() != nil }

// Run waits for the files, and then follows them, until ctx ends.
func (d *Deferred) Run(ctx context.Context) {
	ticker := d.clock.NewTicker(time.Second)
	for !d.try() {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C():
		}
	}
	ticker.Stop()
	c := d.client.Load()
	defer c.Close()
	c.Run(ctx)
}

// Inspect implements provider.Inspector.
func (d *Deferred) Inspect(ctx context.Context, queries []provider.Query) []provider.Answer {
	if c := d.client.Load(); c != nil {
		return c.Inspect(ctx, queries)
	}
	answers := make([]provider.Answer, len(queries))
	for i, query := range queries {
		answers[i] = provider.Answer{Image: query.Image, Err: provider.Errorf(provider.ClassInternal,
			"the provider cannot be asked yet: %s", *d.failure.Load())}
	}
	return answers
}

// Pin gives the references by digest of the images that may be pinned.
func (d *Deferred) Pin(ctx context.Context, images []string) map[string]string {
	if c := d.client.Load(); c != nil {
		return c.Pin(ctx, images)
	}
	return nil
}
