package chart_test

import "testing"

// Provider and controllers in one process, which makes its own certificates: the
// Deployment, rights and removal that the chart renders for it.
func TestAllInOne(t *testing.T) {
	s := begin(t, "all-in-one", "mode: allInOne\n"+theirValues("{}"))
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.trust(t)
	s.works(t)
	if len(s.started) != 1 {
		t.Errorf("%d processes run", len(s.started))
	}
	s.leave(t)
}
