package nodeagent

import (
	"context"
	"maps"
	"net"
	"net/http"

	"github.com/archkeeper/archkeeper/internal/probes"
)

// ServeProbes serves the probe port, with /report (the last Report as JSON) beside
// what the options say, on listener until ctx ends.
func (a *Agent) ServeProbes(ctx context.Context, listener net.Listener, options probes.Options) error {
	more := map[string]http.Handler{"/report": a}
	maps.Copy(more, options.More)
	options.More = more
	return probes.Serve(ctx, listener, options)
}
