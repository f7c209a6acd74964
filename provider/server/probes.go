package server

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The paths of the probe port.
const (
	PathHealth   = "/healthz"  // 200 while the process runs
	PathReady    = "/readyz"   // 200 while requests should be sent here, else 503 with the reasons
	PathMetrics  = "/metrics"  // Prometheus
	PathLogLevel = "/loglevel" // GET; PUT debug, info, warn or error from the machine itself
)

func (s *Server) probeHandler() http.Handler {
	router := mux.NewRouter()
	get := []string{http.MethodGet, http.MethodHead}
	router.HandleFunc(PathHealth, func(w http.ResponseWriter, _ *http.Request) { plainText(w, http.StatusOK, "ok") }).Methods(get...)
	router.HandleFunc(PathReady, s.serveReady).Methods(get...)
	if s.o.Gatherer != nil {
		router.Handle(PathMetrics, promhttp.HandlerFor(s.o.Gatherer, promhttp.HandlerOpts{
			MaxRequestsInFlight: 4, EnableOpenMetrics: true,
		})).Methods(get...)
	}
	if s.o.LogLevel != nil {
		router.HandleFunc(PathLogLevel, s.serveLogLevel).Methods(http.MethodGet, http.MethodPut)
	}
	if s.o.Pprof {
		router.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		router.HandleFunc("/debug/pprof/profile", pprof.Profile)
		router.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		router.HandleFunc("/debug/pprof/trace", pprof.Trace)
		router.PathPrefix("/debug/pprof/").HandlerFunc(pprof.Index)
	}
	return router
}

func (s *Server) serveReady(w http.ResponseWriter, _ *http.Request) {
	var unready []string
	switch {
	case s.draining.Load():
		unready = append(unready, "the provider is ending")
	case !s.ready.Load():
		unready = append(unready, "the provider is starting")
	}
	for name, condition := range s.o.Ready {
		if err := condition(); err != nil {
			unready = append(unready, name+": "+err.Error())
		}
	}
	if len(unready) > 0 {
		slices.Sort(unready)
		plainText(w, http.StatusServiceUnavailable, strings.Join(unready, "\n"))
		return
	}
	plainText(w, http.StatusOK, "ok")
}

// serveLogLevel shows the level and lets the machine itself, as `kubectl
// port-forward` or `kubectl exec` is, set it.
func (s *Server) serveLogLevel(w http.ResponseWriter, r *http.Request) {
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
		s.o.LogLevel.Set(level)
		s.o.Log.Info("log level set", "level", level)
	}
	body, _ := json.Marshal(map[string]string{"level": strings.ToLower(s.o.LogLevel.Level().String())})
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n'))
}

func plainText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text)
}
