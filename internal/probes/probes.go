// Package probes is the port without TLS that every service has: health,
// readiness, metrics, the log level, and profiles when asked.
package probes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The paths.
const (
	PathHealth   = "/healthz"  // 200 while the process runs
	PathReady    = "/readyz"   // 200 while the service does its work, else 503 with the reasons
	PathMetrics  = "/metrics"  // Prometheus
	PathLogLevel = "/loglevel" // GET; PUT debug, info, warn or error from the machine itself
)

// Conditions of readiness, by name: nil when met, else why not.
type Conditions map[string]func() error

// Unmet gives "NAME: WHY" of each condition that is not met, sorted.
func (c Conditions) Unmet() []string {
	var unmet []string
	for name, condition := range c {
		if err := condition(); err != nil {
			unmet = append(unmet, name+": "+err.Error())
		}
	}
	slices.Sort(unmet)
	return unmet
}

// Options say what the port shows. The zero value shows health and readiness.
type Options struct {
	// Unready gives the reasons for which the service is not ready; nil: it is.
	Unready func() []string
	// Gatherer of the metrics; nil: none are shown.
	Gatherer prometheus.Gatherer
	// LogLevel is shown, and from the machine itself changed; nil: not at all.
	LogLevel *slog.LevelVar
	// Pprof serves Go's profiles.
	Pprof bool
	// More are further paths to GET.
	More map[string]http.Handler
	// Log takes a line when the level is changed; nil for none.
	Log *slog.Logger
}

// Handler serves the port.
func Handler(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	router := mux.NewRouter()
	get := []string{http.MethodGet, http.MethodHead}
	router.HandleFunc(PathHealth, func(w http.ResponseWriter, _ *http.Request) { plainText(w, http.StatusOK, "ok") }).Methods(get...)
	router.HandleFunc(PathReady, o.serveReady).Methods(get...)
	if o.Gatherer != nil {
		router.Handle(PathMetrics, promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{
			MaxRequestsInFlight: 4, EnableOpenMetrics: true,
		})).Methods(get...)
	}
	if o.LogLevel != nil {
		router.HandleFunc(PathLogLevel, o.serveLogLevel).Methods(http.MethodGet, http.MethodPut)
	}
	if o.Pprof {
		router.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		router.HandleFunc("/debug/pprof/profile", pprof.Profile)
		router.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		router.HandleFunc("/debug/pprof/trace", pprof.Trace)
		router.PathPrefix("/debug/pprof/").HandlerFunc(pprof.Index)
	}
	for path, handler := range o.More {
		router.Handle(path, handler).Methods(get...)
	}
	return router
}

func (o Options) serveReady(w http.ResponseWriter, _ *http.Request) {
	if o.Unready != nil {
		if reasons := o.Unready(); len(reasons) > 0 {
			plainText(w, http.StatusServiceUnavailable, strings.Join(reasons, "\n"))
			return
		}
	}
	plainText(w, http.StatusOK, "ok")
}

// serveLogLevel shows the level and lets the machine itself, as `kubectl
// port-forward` or `kubectl exec` is, set it.
func (o Options) serveLogLevel(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		if host, _, err := net.SplitHostPort(r.RemoteAddr); err != nil || !net.ParseIP(host).IsLoopback() {
			plainText(w, http.StatusForbidden, "the log level is set from the machine itself, for example through kubectl port-forward")
			return
		}
		text, err := io.ReadAll(io.LimitReader(r.Body, 16))
		var level slog.Level
		if err != nil || level.UnmarshalText([]byte(strings.TrimSpace(string(text)))) != nil {
			plainText(w, http.StatusBadRequest, "the level is one of debug, info, warn, error")
			return
		}
		o.LogLevel.Set(level)
		o.Log.Info("log level set", "level", level)
	}
	body, _ := json.Marshal(map[string]string{"level": strings.ToLower(o.LogLevel.Level().String())})
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n'))
}

func plainText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text)
}

// grace is how long a scrape that has begun may take once the port is to close.
const grace = 5 * time.Second

// Serve serves the port on listener, which it closes, until ctx ends. The error
// is nil unless serving failed before.
func Serve(ctx context.Context, listener net.Listener, o Options) error {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	server := &http.Server{
		Handler:           Handler(o),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      time.Minute, // a profile takes half of it
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(listener)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", listener.Addr(), err)
	}
	<-ended
	return nil
}
