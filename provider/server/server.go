package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/internal/probes"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/reload"
)

// Defaults of Options.
const (
	// DefaultDeadline leaves a tenth of a second of a Provider timeout of one
	// second for the network.
	DefaultDeadline = 900 * time.Millisecond
	// DefaultPinDeadline keeps two turns of Gatekeeper's mutation loop below
	// the timeout of its mutating webhook.
	DefaultPinDeadline = 600 * time.Millisecond
	// DefaultMaxConnections is the bound on the connections of each HTTPS
	// port. A connection carries one request at a time.
	DefaultMaxConnections = 1024
	// DefaultDrainTimeout is how long answers that are being made when the
	// server is told to end may take.
	DefaultDrainTimeout = 15 * time.Second
)

// Options say what the server is made of. Inspector, CertFile, KeyFile, Data,
// Registerer and one of ClientCAFiles, Tokens and Open are needed.
type Options struct {
	// Inspector answers the questions.
	Inspector provider.Inspector
	// HasTagMirrors tells whether a reference by tag may be answered by a
	// mirror of tags (ImageTagMirrorSet): its digest is then not pinned,
	// because a digest is looked for in other places than the tag. Nil: none.
	HasTagMirrors func(imageref.Reference) bool
	// Generation is served at PathGeneration; nil: that path is not there.
	Generation *Generation

	// Data is where the external data paths are served, Admission where
	// Kubernetes' admission requests are, Probe where health and metrics are,
	// without TLS. Admission and Probe may be nil. The server closes them.
	Data, Admission, Probe net.Listener

	// CertFile and KeyFile are the PEM certificate chain and key of Data and
	// Admission. They, like all files here, may change at any time: a new
	// handshake sees the new content; a broken file is counted, logged once,
	// and leaves the last good content in use.
	CertFile, KeyFile string
	// ClientCAFiles are PEM bundles of the CAs whose client certificates prove
	// a caller of Data. Empty: no certificate does.
	ClientCAFiles []string
	// LiveCAs are trusted beside those of ClientCAFiles; nil for none.
	LiveCAs *LiveCAs
	// ClientNames are the subject alternative names of known callers; a
	// certificate needs one of them: a DNS name (case does not matter), URI,
	// e-mail or IP address, compared whole. The common name does not count.
	// Empty: every client certificate of the CAs will do.
	ClientNames []string
	// Tokens prove callers of Data; nil: bearer tokens are refused.
	Tokens *Tokens
	// Open answers everybody.
	Open bool

	// AdmissionHandler answers an AdmissionReview whose path has shown the
	// token that AdmissionTokenFile holds. Both are needed with Admission.
	AdmissionHandler   http.Handler
	AdmissionTokenFile string

	// Deadline of a request of keys; DefaultDeadline when 0.
	Deadline time.Duration
	// PinDeadline is that of PathPin; the smaller of DefaultPinDeadline and
	// Deadline when 0.
	PinDeadline time.Duration
	// MaxConnections of each HTTPS port; DefaultMaxConnections when 0.
	MaxConnections int
	// DrainDelay is how long the server goes on as before, but not ready,
	// after it was told to end: long enough for the endpoints of its Service
	// to be taken out everywhere.
	DrainDelay time.Duration
	// DrainTimeout is how long what is then still in flight may take;
	// DefaultDrainTimeout when 0.
	DrainTimeout time.Duration

	// Registerer takes the metrics, and Gatherer shows them on Probe.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// Ready are further conditions of readiness, by name.
	Ready probes.Conditions
	// LogLevel is shown, and from the machine itself changed, on Probe; nil:
	// not at all.
	LogLevel *slog.LevelVar
	// Pprof serves Go's profiles on Probe.
	Pprof bool

	Log   *slog.Logger
	Clock clock.WithTicker
}

// Server is the provider's HTTPS service.
type Server struct {
	o              Options
	metrics        *metrics
	guard          guard
	certificate    *servingCertificate
	admissionToken *reload.Value[string] // nil without an admission port
	follow         []func(context.Context)
	ready          atomic.Bool // listening, and not told to end
	draining       atomic.Bool
}

// New checks the options, reads the files and registers the metrics. It serves
// nothing yet. An error names the file that is missing or broken.
func New(o Options) (*Server, error) {
	switch {
	case o.Inspector == nil:
		return nil, errors.New("server: no inspector")
	case o.Data == nil:
		return nil, errors.New("server: nowhere to listen")
	case o.Registerer == nil:
		return nil, errors.New("server: no metrics registerer")
	case len(o.ClientCAFiles) == 0 && o.Tokens == nil && !o.Open:
		return nil, errors.New("server: no caller could ever be proven")
	case o.Admission != nil && (o.AdmissionHandler == nil || o.AdmissionTokenFile == ""):
		return nil, errors.New("server: an admission listener needs a handler and a token")
	}
	o = o.withDefaults()
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("server: metrics: %w", err)
	}
	s := &Server{o: o, metrics: m, guard: guard{tokens: o.Tokens, open: o.Open}}
	if err := s.readFiles(); err != nil {
		return nil, err
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Deadline <= 0 {
		o.Deadline = DefaultDeadline
	}
	if o.PinDeadline <= 0 {
		o.PinDeadline = min(DefaultPinDeadline, o.Deadline)
	}
	if o.MaxConnections <= 0 {
		o.MaxConnections = DefaultMaxConnections
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
	if o.HasTagMirrors == nil {
		o.HasTagMirrors = func(imageref.Reference) bool { return false }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// readFiles makes what follows files, and the gauges of when it ends.
func (s *Server) readFiles() error {
	followed := func(kind string) reload.Options {
		failures := s.metrics.reloads.WithLabelValues(kind)
		return reload.Options{
			Clock: s.o.Clock, Log: s.o.Log.With("file", kind),
			OnFailure: func(error) { failures.Inc() },
		}
	}
	var err error
	if s.certificate, err = newServingCertificate(s.o.CertFile, s.o.KeyFile, followed(fileCertificate)); err != nil {
		return err
	}
	s.follow = append(s.follow, s.certificate.pair.Run)
	if err = expiry(s.o.Registerer, "archkeeper_provider_certificate_expiry_timestamp_seconds",
		"When the serving certificate in use ends, in seconds since the epoch.", s.certificate.notAfter); err != nil {
		return fmt.Errorf("server: metrics: %w", err)
	}
	if len(s.o.ClientCAFiles) > 0 || s.o.LiveCAs != nil {
		cas, err := newClientCAs(s.o.ClientCAFiles, s.o.LiveCAs, followed(fileClientCA))
		if err != nil {
			return err
		}
		for _, file := range cas.files {
			s.follow = append(s.follow, file.Run)
		}
		s.guard.certificates = &clientCertificates{cas: cas, names: s.o.ClientNames, clock: s.o.Clock}
		if err := expiry(s.o.Registerer, "archkeeper_provider_client_ca_expiry_timestamp_seconds",
			"When the first of the client CAs in use ends, in seconds since the epoch.", cas.notAfter); err != nil {
			return fmt.Errorf("server: metrics: %w", err)
		}
	}
	if s.o.Admission != nil {
		if s.admissionToken, err = newAdmissionToken(s.o.AdmissionTokenFile, followed(fileAdmissionToken)); err != nil {
			return err
		}
		s.follow = append(s.follow, s.admissionToken.Run)
	}
	return nil
}

// Run serves until ctx ends, and then drains: readiness goes first, the
// listeners stay for DrainDelay, and what is in flight has DrainTimeout to
// end. The error is nil after a complete drain.
func (s *Server) Run(ctx context.Context) error {
	files, stopFiles := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFiles()
	var background sync.WaitGroup
	defer background.Wait()
	defer stopFiles()
	for _, follow := range s.follow {
		background.Go(func() { follow(files) })
	}

	servers := []*http.Server{}
	failed := make(chan error, 3)
	serve := func(server *http.Server, listener net.Listener) {
		servers = append(servers, server)
		background.Go(func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving %s: %w", listener.Addr(), err)
			}
		})
	}
	serve(s.https(s.dataHandler()), s.secured(s.o.Data))
	if s.o.Admission != nil {
		serve(s.https(s.admissionHandler()), s.secured(s.o.Admission))
	}
	// Probes are served to the very end: they tell that we are ending.
	var probe *http.Server
	if s.o.Probe != nil {
		probe = s.plain(s.probeHandler())
		background.Go(func() {
			if err := probe.Serve(s.o.Probe); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serving %s: %w", s.o.Probe.Addr(), err)
			}
		})
	}
	s.ready.Store(true)

	var fault error
	select {
	case <-ctx.Done():
	case fault = <-failed:
	}
	s.ready.Store(false)
	s.draining.Store(true)
	if s.o.DrainDelay > 0 && fault == nil {
		s.o.Log.Info("no longer ready; still answering", "for", s.o.DrainDelay)
		timer := s.o.Clock.NewTimer(s.o.DrainDelay)
		select {
		case <-timer.C():
		case fault = <-failed:
			timer.Stop()
		}
	}
	return errors.Join(fault, s.shutDown(context.WithoutCancel(ctx), servers, probe))
}

// shutDown ends all servers, the probe server last.
func (s *Server) shutDown(ctx context.Context, servers []*http.Server, probe *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.DrainTimeout)
	defer cancel()
	faults := make([]error, len(servers))
	var ending sync.WaitGroup
	for i, server := range servers {
		ending.Go(func() {
			if err := server.Shutdown(ctx); err != nil {
				faults[i] = fmt.Errorf("requests were still in flight after %s: %w", s.o.DrainTimeout, err)
				_ = server.Close()
			}
		})
	}
	ending.Wait()
	if probe != nil {
		_ = probe.Close()
	}
	return errors.Join(faults...)
}

func (s *Server) secured(listener net.Listener) net.Listener {
	return tls.NewListener(netutil.LimitListener(listener, s.o.MaxConnections), s.certificate.tlsConfig())
}

// https makes a server for a port on which strangers may knock.
func (s *Server) https(handler http.Handler) *http.Server {
	server := s.plain(handler)
	server.ConnContext = withProof
	return server
}

func (s *Server) plain(handler http.Handler) *http.Server {
	// One request at a time on a connection, so that the bound on connections
	// is one on requests. Gatekeeper speaks HTTP/1.1 anyway.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second, // the TLS handshake's bound as well
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      60 * time.Second,
		// Above the 90 s for which Gatekeeper keeps an idle connection: we do
		// not hang up just as it asks.
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               32 << 10,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
}
