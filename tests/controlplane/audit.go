package controlplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditSize is the length of the API server's audit log so far, in bytes, for
// Audit.
func (c *Cluster) AuditSize() int64 {
	info, err := os.Stat(c.path("audit.log"))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Audit returns the events of the API server's audit log from the given byte
// on that match: who asked for what, and what was answered. The log is written
// before the answer is sent; watches that are still open are in it, too. A
// nil match takes all.
func (c *Cluster) Audit(offset int64, match func(*auditv1.Event) bool) ([]auditv1.Event, error) {
	f, err := os.Open(c.path("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	var events []auditv1.Event
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, nil // what stands after the last newline is still being written
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if match == nil || match(&event) {
			events = append(events, event)
		}
	}
}
