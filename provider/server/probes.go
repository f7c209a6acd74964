package server

import (
	"net/http"

	"github.com/archkeeper/archkeeper/internal/probes"
)

// The paths of the probe port.
const (
	PathHealth   = probes.PathHealth
	PathReady    = probes.PathReady
	PathMetrics  = probes.PathMetrics
	PathLogLevel = probes.PathLogLevel
)

func (s *Server) probeHandler() http.Handler {
	return probes.Handler(probes.Options{
		Unready: s.Unready, Gatherer: s.o.Gatherer, LogLevel: s.o.LogLevel, Pprof: s.o.Pprof, Log: s.o.Log,
	})
}

// Unready gives the reasons for which no requests should be sent here: the
// server is starting or ending, or a condition of Options.Ready is not met.
func (s *Server) Unready() []string {
	var reasons []string
	switch {
	case s.draining.Load():
		reasons = append(reasons, "the provider is ending")
	case !s.ready.Load():
		reasons = append(reasons, "the provider is starting")
	}
	return append(reasons, s.o.Ready.Unmet()...)
}
