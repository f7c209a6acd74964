package nodeagent

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

func TestProbes(t *testing.T) {
	reg := prometheus.NewRegistry()
	a := agent(t, t.TempDir(), CRIO, func(o *Options) { o.Metrics = reg })
	a.once(t.Context(), handed(oneMirror, mirrors.DeliveryNodes))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.ServeProbes(ctx, listener, probes.Options{Gatherer: reg}) }()
	for path, want := range map[string]string{
		"/healthz": "", "/metrics": `archkeeper_nodeagent_changes_total{action="write"} 1`, "/report": `"files":["/etc/containers/registries.conf.d/60-archkeeper.conf"]`,
	} {
		res, err := http.Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s %v", path, res.StatusCode, body, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
