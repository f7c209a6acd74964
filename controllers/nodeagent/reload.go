package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ReloadCRIO gives a Reload that sends SIGHUP to the process named crio, which
// it finds below proc (usually /proc; the agent must share the node's process
// names). It signals no other process.
func ReloadCRIO(proc string) func(context.Context) error {
	return func(context.Context) error {
		pid, err := findCRIO(proc)
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGHUP)
	}
}

func findCRIO(proc string) (int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
		if err == nil && strings.TrimSpace(string(comm)) == "crio" {
			return pid, nil
		}
	}
	return 0, errors.New("no process named crio is seen; does the agent share the node's process names (hostPID)?")
}
