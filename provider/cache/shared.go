package cache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"k8s.io/utils/clock"
)

const (
	// sharedPrefix begins every key, with the format of the records.
	sharedPrefix = "archkeeper:1:"
	sharedLife   = 24 * time.Hour

	// DefaultSharedTimeout of one question to the shared tier.
	DefaultSharedTimeout = 50 * time.Millisecond

	sharedQueue    = 4096
	sharedBatch    = 256
	sharedMaxValue = 64 << 10

	// After sharedFailures in a row the tier is left alone, for sharedFirstRest
	// and then twice as long each time, at most sharedMaxRest.
	sharedFailures  = 3
	sharedFirstRest = 2 * time.Second
	sharedMaxRest   = time.Minute
)

// SharedOptions of a Shared tier.
type SharedOptions struct {
	// URL as redis://[user:password@]host[:port][/database], rediss:// for TLS.
	URL string
	// KeyFile has keys, one a line, each of at least 32 characters: entries are
	// signed with the first, and only those that one of them signed are
	// believed. Without it, whoever may write to the tier is believed.
	KeyFile string
	// Metrics are registered here; nil for none.
	Metrics prometheus.Registerer
	// Timeout of one question; DefaultSharedTimeout when 0.
	Timeout time.Duration
	// Log hears once of each outage and of its end.
	Log *slog.Logger
	// Clock; nil for the real one.
	Clock clock.Clock
}

// Shared is a Redis or Valkey that several replicas share, behind the local
// cache. It holds what anonymous callers may know and nothing else. Without keys,
// whoever may write to it can make images look as if they ran elsewhere; with
// them, he can take entries away, or put back what was said before.
//
// Its outage costs nothing but hits: a question has a short deadline, writes
// wait in a bounded queue and are dropped beyond it, and after some failures it
// is not asked for a while.
type Shared struct {
	client  *redis.Client
	keys    signer // nil when entries are not signed
	refused *prometheus.CounterVec
	timeout time.Duration
	log     *slog.Logger
	clock   clock.Clock

	mu       sync.Mutex
	failures int
	rest     time.Duration
	until    time.Time
	down     bool

	queue         chan sharedWrite
	stop, stopped chan struct{}
	once          sync.Once
}

type sharedWrite struct {
	key    string
	record []byte // nil to remove
}

// OpenShared makes a Shared. Nothing is connected yet: the error is one of the
// keys or of the URL, and does not show it, for it may hold a password.
func OpenShared(o SharedOptions) (*Shared, error) {
	settings, err := redis.ParseURL(o.URL)
	if err != nil {
		return nil, errors.New("the shared cache's address is not of the form redis://[user:password@]host[:port][/database]")
	}
	var keys signer
	if o.KeyFile != "" {
		if keys, err = readKeys(o.KeyFile); err != nil {
			return nil, err
		}
	}
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "archkeeper_shared_cache_refused_total",
		Help: "Entries of the shared cache that were not believed, by reason: unsigned (by no known key), forged (its signature is wrong), damaged.",
	}, []string{"reason"})
	if o.Metrics != nil {
		if err := o.Metrics.Register(refused); err != nil {
			return nil, fmt.Errorf("registering the shared cache's metrics: %w", err)
		}
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultSharedTimeout
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	settings.ContextTimeoutEnabled = true
	settings.DialTimeout, settings.ReadTimeout, settings.WriteTimeout = 10*o.Timeout, 10*o.Timeout, 10*o.Timeout
	settings.MaxRetries, settings.DialerRetries = -1, 1
	settings.PoolSize = 16
	settings.DisableIdentity = true
	settings.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// The client reports each failure by a logger of its own, for the whole
	// process; report does so once for an outage.
	redis.SetLogger(silence{})
	s := &Shared{
		client: redis.NewClient(settings), keys: keys, refused: refused, timeout: o.Timeout, log: o.Log, clock: o.Clock,
		queue: make(chan sharedWrite, sharedQueue), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go s.run()
	return s, nil
}

// silence is a logger of go-redis that says nothing.
type silence struct{}

// Printf does nothing.
func (silence) Printf(context.Context, string, ...any) {}

func sharedKey(kind byte, k Key) string {
	return sharedPrefix + string(kind) + ":" + hex.EncodeToString(k[:])
}

// get gives the payload of a record; false when there is none, or no answer in
// time, or it is damaged.
func (s *Shared) get(ctx context.Context, kind byte, k Key) ([]byte, bool) {
	if !s.rested() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	key := sharedKey(kind, k)
	record, err := s.client.Get(ctx, key).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		s.report(nil)
		return nil, false
	case err != nil:
		s.report(err)
		return nil, false
	}
	s.report(nil)
	payload, err := s.believe(key, record)
	if err != nil {
		reason := "damaged"
		switch {
		case errors.Is(err, errUnsigned):
			reason = "unsigned"
		case errors.Is(err, errForged):
			reason = "forged"
		}
		s.refused.WithLabelValues(reason).Inc()
	}
	return payload, err == nil
}

// believe gives the payload of a record that may be believed.
func (s *Shared) believe(key string, record []byte) ([]byte, error) {
	if s.keys != nil {
		return s.keys.verify(key, record)
	}
	return unseal([]byte(key), record)
}

// vouch gives the record of a payload that was appended to four bytes of room.
func (s *Shared) vouch(key string, record []byte) []byte {
	if s.keys != nil {
		return s.keys.sign(key, record[checksumSize:])
	}
	return seal([]byte(key), record)
}

// put has a record written behind. The first four bytes are room for its
// checksum.
func (s *Shared) put(kind byte, k Key, record []byte) {
	if len(record) > sharedMaxValue {
		return
	}
	key := sharedKey(kind, k)
	select {
	case s.queue <- sharedWrite{key, s.vouch(key, record)}:
	default: // full: a cache may forget
	}
}

// remove has a record removed behind.
func (s *Shared) remove(kind byte, k Key) {
	select {
	case s.queue <- sharedWrite{key: sharedKey(kind, k)}:
	default: // full: as old as it says it is, it stays
	}
}

func (s *Shared) run() {
	defer close(s.stopped)
	for {
		select {
		case first := <-s.queue:
			s.write(first)
		case <-s.stop:
			for {
				select {
				case first := <-s.queue:
					s.write(first)
				default:
					return
				}
			}
		}
	}
}

// write writes what waits in one pipeline, or drops it while the tier rests.
func (s *Shared) write(first sharedWrite) {
	batch := append(make([]sharedWrite, 0, sharedBatch), first)
	for len(batch) < sharedBatch {
		select {
		case next := <-s.queue:
			batch = append(batch, next)
			continue
		default:
		}
		break
	}
	if !s.rested() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*s.timeout)
	defer cancel()
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, w := range batch {
			if w.record == nil {
				p.Del(ctx, w.key)
				continue
			}
			p.Set(ctx, w.key, w.record, sharedLife)
		}
		return nil
	})
	s.report(err)
}

// rested tells whether the tier may be asked.
func (s *Shared) rested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.clock.Now().Before(s.until)
}

// report learns from a question how the tier does.
func (s *Shared) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		if s.down {
			s.log.Info("the shared cache answers again")
		}
		s.failures, s.rest, s.down = 0, 0, false
		return
	}
	s.failures++
	if s.failures < sharedFailures {
		return
	}
	s.rest = min(max(2*s.rest, sharedFirstRest), sharedMaxRest)
	s.until = s.clock.Now().Add(s.rest)
	if !s.down {
		s.log.Warn("the shared cache does not answer and is left alone for a while", "error", err)
	}
	s.down = true
}

// Close writes what waits, within a second, and closes the connections.
func (s *Shared) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		select {
		case <-s.stopped:
		case <-time.After(time.Second):
		}
		if err = s.client.Close(); err != nil {
			err = fmt.Errorf("closing the shared cache: %w", err)
		}
	})
	return err
}

// SharedTag asks the shared tier for an answer that everybody may know, and
// keeps it here. It never waits longer than the tier's timeout, twice.
func (c *Cache) SharedTag(ctx context.Context, k Key) (Tag, *Facts, bool) {
	if c.shared == nil {
		return Tag{}, nil, false
	}
	payload, ok := c.shared.get(ctx, recordTag, k)
	if !ok {
		return Tag{}, nil, false
	}
	e, err := readTag(payload)
	if err != nil || e.checked > c.shared.clock.Now().Add(time.Hour).UnixMilli() {
		return Tag{}, nil, false
	}
	facts, ok := c.facts.get(e.facts)
	if !ok || !facts.Public { // the tier's word alone gives nobody what was learnt with a credential
		if facts, ok = c.SharedFacts(ctx, e.facts); !ok {
			return Tag{}, nil, false
		}
	}
	c.tags.put(k, e)
	return Tag{Facts: e.facts, Checked: time.UnixMilli(e.checked), Candidate: e.candidate, Credential: e.credential, Public: true}, facts, true
}

// SharedFacts asks the shared tier for public facts, and keeps them here.
func (c *Cache) SharedFacts(ctx context.Context, k Key) (*Facts, bool) {
	if c.shared == nil {
		return nil, false
	}
	payload, ok := c.shared.get(ctx, recordFacts, k)
	if !ok {
		return nil, false
	}
	facts, err := readFacts(payload, &c.shapes)
	if err != nil || !facts.Public {
		return nil, false
	}
	c.facts.put(k, facts)
	return facts, true
}
