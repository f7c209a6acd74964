package nodeagent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ServeProbes answers /healthz, /metrics and /report (the last Report as JSON)
// on listener until ctx ends; then it finishes what it has begun.
func (a *Agent) ServeProbes(ctx context.Context, listener net.Listener, gatherer prometheus.Gatherer) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{Timeout: callTimeout}))
	mux.Handle("GET /report", a)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: callTimeout, ReadTimeout: callTimeout, WriteTimeout: 2 * callTimeout,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			_ = server.Close()
		}
	}()
	err := server.Serve(listener)
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped
	return nil
}
