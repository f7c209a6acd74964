package importmode

import (
	"time"
)

// maxReverts within revertWindow is how often another writer may undo our
// write before this controller yields.
const (
	maxReverts   = 3
	revertWindow = 10 * time.Minute
)

// history is what the controller remembers between two looks at the cluster.
// Time is an argument; the zero value remembers nothing.
type history struct {
	verdict verdict     // the decision that stands
	since   time.Time   // since when it has stood
	last    Mode        // what was written last, or found to be right
	wrote   Mode        // what was written and not yet seen undone
	reverts []time.Time // when another writer undid it, within the window
	yielded Mode        // the mode over which this controller yielded
}

// verdict is the part of a decision whose change restarts the clock.
type verdict struct {
	want   Mode
	held   bool
	reason string
}

// step is what to do now.
type step struct {
	Decision
	// Write asks for Decision.Want to be written.
	Write bool
	// Wait is how long to wait before looking again without an event; 0 for ever.
	Wait time.Duration
	// Stood is how long the decision has stood.
	Stood time.Duration
	// Conflict is true while this controller yields to another writer.
	Conflict bool
}

// look takes the facts at a time and says what to do.
func (h *history) look(now time.Time, f Facts) step {
	f.Last = h.last
	d := Decide(f)
	if v := (verdict{d.Want, d.Held, d.Reason}); v != h.verdict || h.since.IsZero() {
		h.verdict, h.since = v, now
	}
	h.countRevert(now, f.Status, d)
	s := step{Decision: d, Stood: now.Sub(h.since)}
	if d.Settled(f.Status) {
		if d.Want != Unset {
			h.last = d.Want
		}
		return s
	}
	if h.yielded == d.Want {
		s.Conflict = true
		return s
	}
	if left := d.Delay - s.Stood; left > 0 {
		s.Wait = left
		return s
	}
	s.Write = true
	return s
}

// countRevert notices that what was written is no longer there although it is
// still wanted.
func (h *history) countRevert(now time.Time, status Mode, d Decision) {
	if h.yielded != Unset && (d.Want != h.yielded || status == h.yielded) {
		h.yielded, h.reverts = Unset, nil
	}
	if h.wrote == Unset || h.wrote == status {
		return
	}
	if h.wrote == d.Want {
		kept := h.reverts[:0]
		for _, at := range h.reverts {
			if now.Sub(at) < revertWindow {
				kept = append(kept, at)
			}
		}
		h.reverts = append(kept, now)
		if len(h.reverts) >= maxReverts {
			h.yielded = d.Want
		}
	}
	h.wrote = Unset
}

// written records that the API server took mode.
func (h *history) written(mode Mode) { h.wrote, h.last = mode, mode }
