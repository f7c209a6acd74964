package cache

import "sync"

const (
	// shapeLimit is the size in bytes up to which lists of platforms are shared.
	shapeLimit = 4 << 10
	// maxShapes bounds the number of shared lists: real images have a few hundred.
	maxShapes = 2048
)

// shapes keeps one copy of each common pair of platform and architecture lists.
type shapes struct {
	mu    sync.RWMutex
	known map[string]uint16 // position in all, by both lists, as appendList writes them
	all   []shape           // only grows
}

type shape struct{ platforms, architectures []string }

// at gives a pair of lists by its position.
func (s *shapes) at(n uint16) shape {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[n]
}

// find gives the position of the lists that b holds when they are known.
func (s *shapes) find(b []byte) (uint16, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n, ok := s.known[string(b)]
	return n, ok
}

// share gives equal lists, once for all that ask; shared is false when they are
// not kept.
func (s *shapes) share(platforms, architectures []string) (p, a []string, shared bool) {
	if sliceCost(platforms)+sliceCost(architectures) > shapeLimit {
		return platforms, architectures, false
	}
	var buffer [512]byte
	b := appendList(appendList(buffer[:0], platforms), architectures)
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.known[string(b)]; ok {
		return s.all[known].platforms, s.all[known].architectures, true
	}
	if len(s.all) >= maxShapes {
		return platforms, architectures, false
	}
	s.known[string(b)] = uint16(len(s.all)) //nolint:gosec // G115: below maxShapes
	s.all = append(s.all, shape{platforms, architectures})
	return platforms, architectures, true
}

// read gives the lists that b holds. Those that are known cost nothing.
func (s *shapes) read(b []byte) (p, a []string, shared bool, err error) {
	if n, ok := s.find(b); ok {
		known := s.at(n)
		return known.platforms, known.architectures, true, nil
	}
	r := reader{rest: b}
	p, a = r.list(), r.list()
	if r.failed || len(r.rest) > 0 {
		return nil, nil, false, errDamaged
	}
	if a == nil {
		a = []string{} // never nil in an answer
	}
	p, a, shared = s.share(p, a)
	return p, a, shared, nil
}
