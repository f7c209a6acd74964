package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ReloadCRIO gives a Reload that sends SIGHUP to every process named crio, which
// it finds below proc (usually /proc; the agent must share the node's process
// names). Any process may take that name, but none can keep the signal from
// CRI-O. It is an error when none could be signalled.
func ReloadCRIO(proc string) func(context.Context) error {
	return func(context.Context) error {
		pids, err := findCRIO(proc)
		if err != nil {
			return err
		}
		var failures []error
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
				failures = append(failures, fmt.Errorf("signal crio, process %d: %w", pid, err))
			}
		}
		if len(failures) < len(pids) {
			return nil
		}
		return errors.Join(failures...)
	}
}

func findCRIO(proc string) ([]int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
		if err == nil && strings.TrimSpace(string(comm)) == "crio" {
			pids = append(pids, pid)
		}
	}
	if len(pids) > 0 {
		return pids, nil
	}
	return nil, errors.New("no process named crio is seen; does the agent share the node's process names (hostPID)?")
}
