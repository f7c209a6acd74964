package registry

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// bodySize says how many bodies larger than above, in bytes, are read at the
// same time: of one host, and of all.
type bodySize struct {
	above, ofHost, ofAll int64
}

// bodySizes bound memory however many images of however many hosts are read at
// once: a body keeps what it has read while it waits for its next place. Most
// manifests and configs are smaller than the first.
var bodySizes = [...]bodySize{ //nolint:gochecknoglobals // a constant
	{above: 32 << 10, ofHost: 16, ofAll: 128},
	{above: 512 << 10, ofHost: 4, ofAll: 16},
}

// A body that others wait for is cut off when it comes more slowly than
// trickle, in bytes a second, for trickleTime, or has its place for placeTime: some
// hosts that send next to nothing must not keep all others waiting.
const (
	trickle     = 32 << 10
	trickleTime = time.Second
	placeTime   = 5 * time.Second

	// slowLife is how long a host is remembered for it. Meanwhile it has one
	// place.
	slowLife = time.Minute
)

// errSlowBody is why a body was not read to its end when its host is at fault.
var errSlowBody = errors.New("its body comes too slowly")

// hostPlaces are those of one host for each of bodySizes.
type hostPlaces [len(bodySizes)]*semaphore.Weighted

func placesOfHost() (p hostPlaces) {
	for n, size := range bodySizes {
		p[n] = semaphore.NewWeighted(size.ofHost)
	}
	return p
}

// slowness says that a host's body was cut off.
type slowness struct {
	mu    sync.Mutex
	until time.Time
	only  *semaphore.Weighted // the place that is left
}

func (s *slowness) set(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = now.Add(slowLife)
}

// acquire waits for the one place of a slow host, and not at all for another.
func (s *slowness) acquire(ctx context.Context, now time.Time) (release func(), err error) {
	s.mu.Lock()
	slow := now.Before(s.until)
	s.mu.Unlock()
	if !slow {
		return func() {}, nil
	}
	if err := s.only.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return func() { s.only.Release(1) }, nil
}

// allPlaces are those that all hosts share for each of bodySizes.
type allPlaces [len(bodySizes)]*places

func placesOfAll() (p allPlaces) {
	for n, size := range bodySizes {
		p[n] = &places{free: semaphore.NewWeighted(size.ofAll), holders: map[*holder]struct{}{}}
	}
	return p
}

// places are given in the order in which they are asked for. Who waits has the
// slowest of those cut off that have had their time.
type places struct {
	free *semaphore.Weighted

	mu      sync.Mutex
	holders map[*holder]struct{}
}

// holder is a body that has a place.
type holder struct {
	since time.Time
	// cut ends the reading; nil once it was called. fault tells whether the body
	// came slowly, or only has to wait for others itself.
	cut func(fault bool)

	// dry is when the body will have been slower than trickle for trickleTime,
	// in Unix nanoseconds: each byte puts it off, to trickleTime from now at most.
	dry atomic.Int64
}

// pause and resume stand around a wait that is not the host's fault.
func (h *holder) pause()               { h.dry.Store(math.MaxInt64) }
func (h *holder) resume(now time.Time) { h.dry.Store(now.Add(trickleTime).UnixNano()) }

// got notes that so many bytes came. The body's reader alone calls it.
func (h *holder) got(bytes int, now time.Time) {
	dry := max(h.dry.Load(), now.UnixNano()) + int64(bytes)*int64(time.Second)/trickle
	h.dry.Store(min(dry, now.Add(trickleTime).UnixNano()))
}

// acquire waits for a place. Call release when it returns nil.
func (p *places) acquire(ctx context.Context, cut func(fault bool)) (*holder, error) {
	if !p.free.TryAcquire(1) {
		p.cutSlowest()
		timer := time.NewTimer(trickleTime)
		defer timer.Stop()
		waiting, done := context.WithCancel(ctx)
		defer done()
		go func() {
			for {
				select {
				case <-timer.C:
					p.cutSlowest()
					timer.Reset(trickleTime)
				case <-waiting.Done():
					return
				}
			}
		}()
		if err := p.free.Acquire(ctx, 1); err != nil {
			return nil, err
		}
	}
	h := &holder{since: time.Now(), cut: cut}
	h.resume(h.since)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holders[h] = struct{}{}
	return h, nil
}

func (p *places) release(h *holder) {
	p.mu.Lock()
	delete(p.holders, h)
	p.mu.Unlock()
	p.free.Release(1)
}

// cutSlowest cuts off one body that has had its time, if there is one.
func (p *places) cutSlowest() {
	if cut, fault := p.slowest(); cut != nil {
		cut(fault) // without the lock: nobody knows what it waits for
	}
}

func (p *places) slowest() (cut func(fault bool), fault bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var slowest *holder
	now := time.Now()
	for h := range p.holders {
		over := now.Sub(h.since) >= placeTime || now.UnixNano() >= h.dry.Load()
		if h.cut != nil && over && (slowest == nil || h.dry.Load() < slowest.dry.Load()) {
			slowest = h
		}
	}
	if slowest == nil {
		return nil, false
	}
	cut, slowest.cut = slowest.cut, nil
	return cut, slowest.dry.Load() != math.MaxInt64
}
