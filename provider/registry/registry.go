// Package registry asks container registries which platforms an image runs on.
// It alone speaks to them.
//
// The package answers three questions, each in a file of its own:
//
//   - where may this caller look, and with what (target.go);
//   - what is there (content.go, over transport.go, auth.go and gate.go);
//   - who else wants to know, and who may be told (inspect.go, over package cache).
//
// Registries are taken for adversaries: every wait has a deadline, every body a
// limit, every digest is computed here, and nothing that one host does slows or
// changes the answers of another.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/reach"
)

// Defaults of Options.
const (
	DefaultFetchTimeout = 30 * time.Second
	DefaultTagTTL       = 10 * time.Minute
	DefaultMaxStale     = 24 * time.Hour
	DefaultDigestTTL    = 24 * time.Hour
	DefaultAccessTTL    = time.Hour
)

// Options of an Inspector. The zero value works: anonymous, no mirrors, the
// system's trust store.
type Options struct {
	// Keychain finds credentials; nil for none.
	Keychain credentials.Keychain
	// Reach makes connections; nil for the zero reach.Config.
	Reach *reach.Reach
	// Mirrors gives the mirror configuration in force; nil, or a nil Config,
	// for none. It is called for each query, so that a new file takes effect at
	// once.
	Mirrors func() *mirrors.Config
	// Cache of answers; nil for one of the default size.
	Cache *cache.Cache
	// Clock; nil for the real one. Deadlines of contexts are real all the same.
	Clock clock.Clock
	// Log hears of causes that messages leave out; nil for none.
	Log *slog.Logger
	// Metrics are registered here; nil for none.
	Metrics prometheus.Registerer
	// UserAgent of requests; "archkeeper" when empty.
	UserAgent string

	// Timeout of one image, for the caller who waits; 0 for none but the
	// context's. The look-up goes on in the background.
	Timeout time.Duration
	// FetchTimeout ends a look-up, waited for or not; DefaultFetchTimeout when 0.
	FetchTimeout time.Duration
	// TagTTL is how long the answer for a tag is given without asking again;
	// DefaultTagTTL when 0.
	TagTTL time.Duration
	// MaxStale is how long after that it is given while it is confirmed in the
	// background; DefaultMaxStale when 0, not at all when negative.
	MaxStale time.Duration
	// DigestTTL is how long the answer for a digest, which never changes, is
	// given without asking whether the registry still has it; DefaultDigestTTL
	// when 0. AccessTTL is the same for callers with credentials, who may lose
	// their access; DefaultAccessTTL when 0.
	DigestTTL, AccessTTL time.Duration
}

// Inspector implements provider.Inspector. Call Close when done.
type Inspector struct {
	options   Options
	transport *transport
	cache     *cache.Cache
	clock     clock.Clock
	log       *slog.Logger
	metrics   *metrics
	plans     plans

	ended   context.Context // has ended: for asking a Keychain what it holds
	base    context.Context // of detached look-ups; ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	flights map[cache.Key]*flight
	leaders map[cache.Key]chan struct{}
}

var _ provider.Inspector = (*Inspector)(nil)

// New makes an Inspector.
func New(o Options) (*Inspector, error) {
	if o.Reach == nil {
		var err error
		if o.Reach, err = reach.New(reach.Config{}); err != nil {
			return nil, fmt.Errorf("connecting to registries: %w", err)
		}
	}
	if o.Mirrors == nil {
		o.Mirrors = func() *mirrors.Config { return nil }
	}
	if o.Cache == nil {
		o.Cache = cache.New(cache.Options{})
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.UserAgent == "" {
		o.UserAgent = "archkeeper"
	}
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{
		{&o.FetchTimeout, DefaultFetchTimeout}, {&o.TagTTL, DefaultTagTTL}, {&o.MaxStale, DefaultMaxStale},
		{&o.DigestTTL, DefaultDigestTTL}, {&o.AccessTTL, DefaultAccessTTL},
	} {
		if *d.value == 0 {
			*d.value = d.byDefault
		}
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("registering the inspector's metrics: %w", err)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	base, stop := context.WithCancel(context.Background())
	i := &Inspector{
		options: o, cache: o.Cache, clock: o.Clock, log: o.Log, metrics: m, ended: ended, base: base, stop: stop,
		flights: map[cache.Key]*flight{}, leaders: map[cache.Key]chan struct{}{},
	}
	i.transport = &transport{
		reach: o.Reach, clock: o.Clock, log: o.Log, metrics: m, agent: o.UserAgent,
		tokens: newTokens(o.Clock, i.background),
		bodies: placesOfAll(),
		hosts:  map[hostKey]*hostState{},
	}
	return i, nil
}

// Close ends the look-ups that are under way and waits for them. Queries that
// come later are answered from the cache or with ClassTimeout.
func (i *Inspector) Close() {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.stop()
	i.running.Wait()
}

var errClosed = errors.New("the inspector is closed")

// background runs work that no caller waits for, within FetchTimeout. It tells
// whether it was begun.
func (i *Inspector) background(work func(context.Context)) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	i.running.Add(1)
	go func() {
		defer i.running.Done()
		ctx, cancel := context.WithTimeout(i.base, i.options.FetchTimeout)
		defer cancel()
		work(ctx)
	}()
	return true
}
