// Package register makes what a room counts visible.
package register

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics registers the collectors of a room; with a nil registerer they count
// unseen. The error names the room and the first that cannot be registered, such
// as one that is there already.
func Metrics(registerer prometheus.Registerer, room string, collectors ...prometheus.Collector) error {
	if registerer == nil {
		return nil
	}
	for _, c := range collectors {
		if err := registerer.Register(c); err != nil {
			return fmt.Errorf("%s: register metrics: %w", room, err)
		}
	}
	return nil
}
