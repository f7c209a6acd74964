package credentials

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Bounds of Recheck.
const (
	// recheckInterval is the least time between two looks.
	recheckInterval = time.Second
	// wantedFor is how long after a Lookup its objects are looked at again: more
	// than the longest pause of whoever asks for images again.
	wantedFor = 30 * time.Second
	// maxWanted bounds the objects that are remembered, maxRecheck those of one
	// look; the objects that were looked at longest ago come first.
	maxWanted  = 1024
	maxRecheck = 64
)

// wanted names what is read.
type wanted struct{ kind, namespace, name string }

// sighting is what was last seen of an object on demand.
type sighting struct {
	version string    // its resourceVersion, or why there is none; "" for not yet
	wanted  time.Time // by a Lookup
	looked  time.Time // by Recheck
}

// recheck remembers what was asked for of late, on demand.
type recheck struct {
	looking sync.Mutex // who holds it looks; the others do not wait
	last    time.Time

	mu    sync.Mutex
	asked map[wanted]*sighting
}

// want takes note of an object that a Lookup needs.
func (s *Secrets) want(o wanted) {
	if !s.options.OnDemand || o.name == "" {
		return
	}
	s.recheck.mu.Lock()
	defer s.recheck.mu.Unlock()
	now := s.options.Clock.Now()
	seen := s.recheck.asked[o]
	if seen == nil {
		if len(s.recheck.asked) >= maxWanted {
			s.recheck.drop(now)
		}
		if len(s.recheck.asked) >= maxWanted {
			return
		}
		seen = &sighting{}
		s.recheck.asked[o] = seen
	}
	seen.wanted = now
}

// drop forgets what nobody has wanted for long.
func (r *recheck) drop(now time.Time) {
	for o, seen := range r.asked {
		if now.Sub(seen.wanted) >= wantedFor {
			delete(r.asked, o)
		}
	}
}

// sight takes note of what a GET found, and tells of a change.
func (s *Secrets) sight(o wanted, version string) {
	s.recheck.mu.Lock()
	seen := s.recheck.asked[o]
	changed := seen != nil && seen.version != "" && seen.version != version
	if seen != nil {
		seen.version = version
	}
	s.recheck.mu.Unlock()
	if changed {
		s.options.OnChange()
	}
}

// Recheck looks again at the objects that Lookup needed within the last half
// minute, and calls OnChange when one of them has changed: on demand, where no
// watch tells. It looks at most once a second, at 64 objects at most, and leaves at
// once while another call is looking.
func (s *Secrets) Recheck(ctx context.Context) {
	if !s.options.OnDemand || !s.recheck.looking.TryLock() {
		return
	}
	defer s.recheck.looking.Unlock()
	now := s.options.Clock.Now()
	if now.Sub(s.recheck.last) < recheckInterval {
		return
	}
	s.recheck.last = now
	var running sync.WaitGroup
	places := make(chan struct{}, maxGets)
	for _, o := range s.due(now) {
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			_, _ = s.get(ctx, o.kind, o.namespace, o.name) // sight learns what it gives
		})
	}
	running.Wait()
}

// due gives the objects to look at now.
func (s *Secrets) due(now time.Time) []wanted {
	s.recheck.mu.Lock()
	defer s.recheck.mu.Unlock()
	s.recheck.drop(now)
	objects := make([]wanted, 0, len(s.recheck.asked))
	for o := range s.recheck.asked {
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b wanted) int {
		return s.recheck.asked[a].looked.Compare(s.recheck.asked[b].looked)
	})
	objects = objects[:min(len(objects), maxRecheck)]
	for _, o := range objects {
		s.recheck.asked[o].looked = now
	}
	return objects
}
