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
	mu    sync.Mutex
	known map[string]shape // by both lists, as appendList writes them
}

type shape struct{ platforms, architectures []string }

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
		return known.platforms, known.architectures, true
	}
	if len(s.known) >= maxShapes {
		return platforms, architectures, false
	}
	s.known[string(b)] = shape{platforms, architectures}
	return platforms, architectures, true
}

// read gives the lists that b holds. Those that are known cost nothing.
func (s *shapes) read(b []byte) (p, a []string, shared bool, err error) {
	s.mu.Lock()
	known, ok := s.known[string(b)]
	s.mu.Unlock()
	if ok {
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
