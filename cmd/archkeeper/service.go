package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/probes"
)

// serviceFlags are those of every service: how it logs, where it is looked at, and
// how it reaches the API server.
type serviceFlags struct {
	log        logFlags
	probe      string
	pprof      bool
	kubeconfig string
}

// add adds the flags; needs says what the API server is for.
func (f *serviceFlags) add(flags *pflag.FlagSet, needs string) {
	flags.StringVar(&f.probe, "probe-listen", ":9090", "`ADDRESS` of health, readiness, metrics and log level, without TLS")
	flags.BoolVar(&f.pprof, "pprof", false, "serve Go's profiles on the probe port")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server, for "+needs+"; else KUBECONFIG, else the pod's own access")
	f.log.add(flags)
}

// metricsRegistry takes metrics and shows them.
type metricsRegistry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// service is what the parts of a service are made with.
type service struct {
	log     *slog.Logger
	level   *slog.LevelVar
	pprof   bool
	metrics metricsRegistry
	cluster *rest.Config // nil without an API server
	probe   net.Listener
}

// open makes the log, finds the API server, and opens the probe port.
func (f *serviceFlags) open(std streams, metrics metricsRegistry, userAgent string) (*service, error) {
	s := &service{pprof: f.pprof, metrics: metrics}
	var err error
	if s.log, s.level, err = f.log.open(std.err); err != nil {
		return nil, err
	}
	if s.cluster, err = kube.Config(f.kubeconfig, os.Getenv, userAgent+"/"+version); err != nil {
		return nil, err
	}
	if s.probe, err = net.Listen("tcp", f.probe); err != nil { //nolint:noctx // at the start
		return nil, fmt.Errorf("--probe-listen: %w", err)
	}
	return s, nil
}

// probes are what the probe port shows.
func (s *service) probes(unready func() []string) probes.Options {
	return probes.Options{Unready: unready, Gatherer: s.metrics, LogLevel: s.level, Pprof: s.pprof, Log: s.log}
}

// notYet makes a condition of readiness.
func notYet(synced func() bool) func() error {
	return func() error {
		if !synced() {
			return errNotYetRead
		}
		return nil
	}
}

// missing gives the first of the files that is not there, "" when all are.
func missing(files []string) string {
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return file
		}
	}
	return ""
}

// awaitFiles waits until all files are there, or ctx ends.
func awaitFiles(ctx context.Context, log *slog.Logger, files []string) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for said := ""; ; {
		file := missing(files)
		if file == "" {
			return
		}
		if file != said {
			said = file
			log.Info("waiting for a file", "file", file)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
