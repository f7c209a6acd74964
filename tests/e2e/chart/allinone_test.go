package chart_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

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
	binary, err := archkeeper.Binary(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	doctor := exec.CommandContext(t.Context(), binary, "doctor", "-n", s.namespace, "--kubeconfig", cluster.Kubeconfig)
	if out, err := doctor.CombinedOutput(); err != nil {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	s.leave(t)
}
