package nodeagent

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sleeper starts a process that ends at a signal, and that proc shows by a name.
func sleeper(t *testing.T, proc, name string) (*exec.Cmd, <-chan error) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	put(t, proc, strconv.Itoa(cmd.Process.Pid)+"/comm", name+"\n")
	return cmd, ended
}

func hungUp(cmd *exec.Cmd) bool {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGHUP
}

// Any process may call itself crio, one in a pod too: it must not keep the
// signal from the real one.
func TestReloadSignalsEveryProcessNamedCRIOAndNoOther(t *testing.T) {
	proc := t.TempDir()
	put(t, proc, "self/comm", "crio\n")
	one, oneEnded := sleeper(t, proc, "crio")
	two, twoEnded := sleeper(t, proc, "crio")
	other, otherEnded := sleeper(t, proc, "crio-wipe")
	if err := ReloadCRIO(proc)(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, ended := range []<-chan error{oneEnded, twoEnded} {
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("a process named crio had no signal")
		}
	}
	if !hungUp(one) || !hungUp(two) {
		t.Errorf("ended by %v and %v", one.ProcessState, two.ProcessState)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if <-otherEnded; hungUp(other) {
		t.Error("a process of another name was signalled")
	}
}

func TestReloadWithoutCRIO(t *testing.T) {
	t.Run("no process of that name", func(t *testing.T) {
		if err := ReloadCRIO(t.TempDir())(t.Context()); err == nil || !strings.Contains(err.Error(), "hostPID") {
			t.Errorf("%v", err)
		}
	})
	t.Run("one that has just ended", func(t *testing.T) {
		proc := t.TempDir()
		cmd, ended := sleeper(t, proc, "crio")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-ended
		if err := ReloadCRIO(proc)(t.Context()); err == nil || !strings.Contains(err.Error(), "crio") {
			t.Errorf("%v", err)
		}
	})
}
