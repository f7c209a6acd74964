package registry

import (
	"sync"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// plan is what a reference means under one mirror configuration, whoever asks.
// It is immutable and shared.
type plan struct {
	config *mirrors.Config
	target target          // for a caller without credentials
	err    *provider.Error // why there is no place to look
}

// maxPlanBytes bounds what each of the two generations of plans may take, about.
const maxPlanBytes = 4 << 20

// plans remembers plans by the image as it was written. It holds two
// generations: when the young one is full, the old one is forgotten and the
// young one takes its place. What is used moves to the young one.
type plans struct {
	mu         sync.Mutex
	young, old map[string]*plan
	bytes      int // of the young one
}

// get gives the plan that was made under a configuration. Another configuration
// is another pointer, for the plan keeps the one it was made under.
func (s *plans) get(image string, config *mirrors.Config) (*plan, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.young[image]
	if !ok {
		if p, ok = s.old[image]; ok && p.config == config {
			s.keep(image, p)
		}
	}
	return p, ok && p.config == config
}

func (s *plans) put(image string, p *plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(image, p)
}

// keep puts a plan into the young generation. The lock is held.
func (s *plans) keep(image string, p *plan) {
	if s.young == nil || s.bytes > maxPlanBytes {
		s.young, s.old, s.bytes = map[string]*plan{}, s.young, 0
	}
	s.young[image] = p
	s.bytes += p.cost(image)
}

// cost of a plan in bytes, about.
func (p *plan) cost(image string) int {
	bytes := 512 + 2*len(image)
	for n := range p.target.candidates {
		bytes += 384 + 4*len(p.target.candidates[n].place)
	}
	return bytes
}

// plan gives where an image is to be looked for, or an error that the reference
// is malformed. Everything in it follows from the image, the configuration and
// what was fixed when the Inspector was made.
func (i *Inspector) plan(image string) (*plan, *provider.Error) {
	config := i.options.Mirrors()
	if p, ok := i.plans.get(image, config); ok {
		return p, nil
	}
	ref, err := imageref.Parse(image)
	if err != nil {
		return nil, asError(err)
	}
	p := &plan{config: config, target: target{ref: ref, public: true}}
	p.err = i.places(image, p)
	for n := range p.target.candidates {
		c := &p.target.candidates[n]
		c.canonical, c.place = c.source.String(), c.ref.Name()
	}
	p.target.canonical = p.target.ref.String()
	p.target.key = p.target.keyFor(func(c *candidate) string { return c.content() })
	i.plans.put(image, p)
	return p, nil
}

// places fills in the candidates of a plan.
func (i *Inspector) places(image string, p *plan) *provider.Error {
	tg := &p.target
	sources := []imageref.Reference{tg.ref}
	if searched := searchedAt(image, p.config.SearchRegistries()); len(searched) > 0 {
		sources, tg.ref = searched, searched[0]
	}
	var resolveErr *provider.Error
	for _, source := range sources {
		resolution := p.config.Resolve(source)
		tg.blocked = tg.blocked || resolution.Blocked
		if resolution.Err != nil {
			resolveErr = resolution.Err
		}
		for _, place := range resolution.Candidates {
			if len(tg.candidates) == maxCandidates {
				break
			}
			tg.candidates = append(tg.candidates, candidate{
				location: location{
					registry: place.Reference.Registry(), host: dialHost(place.Reference.Registry()),
					repository: place.Reference.Repository(), insecure: place.Insecure,
				},
				ref: place.Reference, source: source, mirror: place.Reference.Name() != source.Name(),
			})
		}
	}
	if len(tg.candidates) == 0 {
		if resolveErr != nil {
			return resolveErr
		}
		return provider.Errorf(provider.ClassBlocked, "%s is blocked by the registry configuration", tg.ref.Name())
	}
	return i.permit(tg)
}
