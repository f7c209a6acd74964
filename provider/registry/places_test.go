package registry

import (
	"context"
	"testing"
	"time"
)

func TestWhoIsCutOff(t *testing.T) {
	long := time.Now().Add(-2 * placeTime)
	for name, test := range map[string]struct {
		set        func(h *holder)
		cut, fault bool
	}{
		"nobody who is quick and new":                   {func(*holder) {}, false, false},
		"who is slow":                                   {func(h *holder) { h.dry.Store(long.UnixNano()) }, true, true},
		"who has had its time":                          {func(h *holder) { h.since = long }, true, true},
		"who has had its time waiting, by no own fault": {func(h *holder) { h.since = long; h.pause() }, true, false},
		"nobody who waits, within its time":             {func(h *holder) { h.pause() }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := placesOfAll()[1]
			cuts, faults := 0, 0
			h, err := p.acquire(t.Context(), func(fault bool) {
				cuts++
				if fault {
					faults++
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			test.set(h)
			p.cutSlowest()
			p.cutSlowest() // nobody twice
			if (cuts == 1) != test.cut || (faults == 1) != test.fault {
				t.Errorf("cut off %d times, at fault %d times", cuts, faults)
			}
		})
	}
}

// TestACutThatHangsHoldsUpNobody: the host that is cut off may be why it hangs.
func TestACutThatHangsHoldsUpNobody(t *testing.T) {
	p := placesOfAll()[1]
	hang, hanging := make(chan struct{}), make(chan struct{})
	defer close(hang)
	h, err := p.acquire(t.Context(), func(bool) { close(hanging); <-hang })
	if err != nil {
		t.Fatal(err)
	}
	h.dry.Store(1)
	go p.cutSlowest()
	<-hanging
	done := make(chan error, 1)
	go func() {
		other, err := p.acquire(context.Background(), func(bool) {})
		if err == nil {
			p.release(other)
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it holds up others")
	}
}
