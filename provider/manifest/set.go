package manifest

import (
	"errors"
	"maps"
	"slices"

	"github.com/archkeeper/archkeeper/provider"
)

// maxWarnings bounds the warnings that children add to their index's.
const maxWarnings = 8

// platformSet is a set of at most MaxPlatforms platforms. The zero value is
// empty and ready.
type platformSet struct {
	members  map[string]struct{}
	overflow bool
}

func (s *platformSet) add(p string) {
	if s.members == nil {
		s.members = map[string]struct{}{}
	}
	if _, there := s.members[p]; !there && len(s.members) == MaxPlatforms {
		s.overflow = true
		return
	}
	s.members[p] = struct{}{}
}

func (s *platformSet) sorted() []string { return slices.Sorted(maps.Keys(s.members)) }

// tally counts what is left out and keeps the first reason.
type tally struct {
	count int
	first string
}

func (t *tally) add(reason string) {
	if t.count == 0 {
		t.first = reason
	}
	t.count++
}

func (t *tally) warn(facts *Facts, format string) {
	if t.count > 0 {
		facts.warn(format, t.count, t.first)
	}
}

func (t *tally) warnQuoted(facts *Facts, format string) {
	if t.count > 0 {
		facts.warn(format, t.count, provider.Quote(t.first))
	}
}

func classOf(err error) provider.Class {
	var known *provider.Error
	if errors.As(err, &known) {
		return known.Class
	}
	return provider.ClassInternal
}
