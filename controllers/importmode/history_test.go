package importmode

import (
	"testing"
	"time"
)

// player replays what the cluster shows and writes what it is told to.
type player struct {
	t      *testing.T
	h      history
	now    time.Time
	facts  Facts
	writes []Mode
}

func newPlayer(t *testing.T, f Facts) *player {
	return &player{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), facts: f}
}

func (p *player) after(d time.Duration) step {
	p.now = p.now.Add(d)
	s := p.h.look(p.now, p.facts)
	if s.Write {
		p.writes = append(p.writes, s.Want)
		p.facts.Status = s.Want
		p.h.written(s.Want)
	}
	return s
}

func (p *player) wantWrites(modes ...Mode) {
	p.t.Helper()
	if len(p.writes) != len(modes) {
		p.t.Fatalf("wrote %q, want %q", p.writes, modes)
	}
	for i := range modes {
		if p.writes[i] != modes[i] {
			p.t.Fatalf("wrote %q, want %q", p.writes, modes)
		}
	}
}

func TestAnUpgradeOfAMultiPayloadWritesNothing(t *testing.T) {
	p := newPlayer(t, Facts{Status: PreserveOriginal, Release: &Release{Image: "1", Architecture: "Multi", Completed: true, Latest: "Completed"}})
	p.after(0)
	p.facts.Release = &Release{Image: "2", Completed: true, Latest: "Partial"}
	p.after(time.Second)
	p.after(time.Hour)
	p.facts.Release = &Release{Image: "2", Architecture: "Multi", Completed: true, Latest: "Partial"}
	p.after(time.Second)
	p.facts.Release = &Release{Image: "2", Architecture: "Multi", Completed: true, Latest: "Completed"}
	p.after(time.Hour)
	p.wantWrites()
}

func TestARealMoveToOneArchitectureIsOneWriteAfterTheDelay(t *testing.T) {
	p := newPlayer(t, Facts{Status: PreserveOriginal, Release: &Release{Image: "1", Completed: true, Latest: "Completed"}})
	if s := p.after(0); s.Wait != DemotionDelay {
		t.Errorf("waits %s, want %s", s.Wait, DemotionDelay)
	}
	p.after(DemotionDelay - time.Nanosecond)
	p.wantWrites()
	p.after(time.Nanosecond)
	p.after(time.Hour)
	p.wantWrites(Legacy)
}

func TestADecisionThatDidNotStandIsNotWritten(t *testing.T) {
	single := &Release{Image: "1", Completed: true, Latest: "Completed"}
	p := newPlayer(t, Facts{Status: PreserveOriginal, Release: single})
	p.after(0)
	p.facts.Release = &Release{Image: "1", Completed: true, Latest: "Partial"}
	p.after(DemotionDelay - time.Second)
	p.facts.Release = single
	p.after(time.Second)
	p.after(DemotionDelay - time.Second)
	p.wantWrites()
	p.after(time.Second)
	p.wantWrites(Legacy)
}

func TestAnotherWriterIsYieldedToAfterThreeReverts(t *testing.T) {
	p := newPlayer(t, Facts{Spec: PreserveOriginal, Status: Legacy})
	for range 10 {
		p.after(time.Second)
		p.facts.Status = Legacy
	}
	p.wantWrites(PreserveOriginal, PreserveOriginal, PreserveOriginal)
	if s := p.after(24 * time.Hour); !s.Conflict || s.Write {
		t.Errorf("after a day: conflict %v, write %v; want to stay away", s.Conflict, s.Write)
	}
	p.facts.Spec = Legacy
	p.after(time.Second)
	p.facts.Spec = PreserveOriginal
	p.after(time.Second)
	p.wantWrites(PreserveOriginal, PreserveOriginal, PreserveOriginal, PreserveOriginal)
}

func TestRevertsFarApartAreNotAConflict(t *testing.T) {
	p := newPlayer(t, Facts{Spec: PreserveOriginal, Status: Legacy})
	for range 5 {
		p.after(revertWindow)
		p.facts.Status = Legacy
	}
	if got := len(p.writes); got != 5 {
		t.Errorf("%d writes, want 5", got)
	}
}

func TestAClearedStatusIsRestoredDuringAnUpgrade(t *testing.T) {
	p := newPlayer(t, Facts{Status: PreserveOriginal, Release: &Release{Image: "1", Architecture: "Multi", Completed: true, Latest: "Completed"}})
	p.after(0)
	p.facts.Release = &Release{Image: "2", Completed: true, Latest: "Partial"}
	p.facts.Status = Unset
	p.after(time.Second)
	p.wantWrites(PreserveOriginal)
}

func TestAHundredLooksAfterConvergenceWriteNothing(t *testing.T) {
	p := newPlayer(t, Facts{Release: &Release{Image: "1", Completed: true, Latest: "Completed"}})
	p.after(0)
	p.wantWrites(Legacy)
	for range 100 {
		p.after(time.Second)
	}
	p.wantWrites(Legacy)
}
