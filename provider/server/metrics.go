package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/provider"
)

// metrics are counted under bounded labels only: a path of ours or "other", a
// status, a class of the closed list. No image, key, user or host is a label.
type metrics struct {
	requests     *prometheus.CounterVec // path, code
	duration     *prometheus.HistogramVec
	inFlight     prometheus.Gauge
	keys         *prometheus.CounterVec // path
	errors       *prometheus.CounterVec // path, class, form
	deadlineHits *prometheus.CounterVec // path
	refusals     *prometheus.CounterVec // reason
	panics       prometheus.Counter
	reloads      *prometheus.CounterVec // file
}

// The forms in which an image's error leaves us.
const (
	formItem         = "item"         // cached by Gatekeeper
	formUndetermined = "undetermined" // in systemError, cached by nobody
)

// pathOther is the label of requests whose path is not ours.
const pathOther = "other"

// The kinds of files that are followed, as a label.
const (
	fileCertificate    = "certificate"
	fileClientCA       = "client-ca"
	fileAdmissionToken = "admission-token"
)

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_provider_requests_total",
			Help: "Requests on the data and admission ports, by path and HTTP status.",
		}, []string{"path", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "archkeeper_provider_request_duration_seconds",
			Help:    "Time from a request's headers to the end of its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, .75, 1, 2.5, 5},
		}, []string{"path"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "archkeeper_provider_requests_in_flight",
			Help: "Requests that are being answered.",
		}),
		keys: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_provider_keys_total",
			Help: "Distinct keys that were asked.",
		}, []string{"path"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_provider_key_errors_total",
			Help: "Keys that got no value, by class, and by form: item (a durable verdict) or undetermined (named in systemError).",
		}, []string{"path", "class", "form"}),
		deadlineHits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_provider_deadline_hits_total",
			Help: "Requests whose deadline came before all of their keys were known.",
		}, []string{"path"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_provider_refused_callers_total",
			Help: "Requests whose caller was not proven or not allowed, by reason.",
		}, []string{"reason"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "archkeeper_provider_panics_total",
			Help: "Panics that were recovered while answering; each is a bug of ours.",
		}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_provider_reload_failures_total",
			Help: "Files that changed and could not be used; the last good content stays in use.",
		}, []string{"file"}),
	}
	for _, reason := range []string{reasonNoProof, reasonCertificate, reasonToken, reasonForbidden, reasonUnchecked} {
		m.refusals.WithLabelValues(reason)
	}
	for _, file := range []string{fileCertificate, fileClientCA, fileAdmissionToken} {
		m.reloads.WithLabelValues(file)
	}
	for _, path := range []string{PathPublic, PathNamespaced, PathPin} {
		m.keys.WithLabelValues(path)
		m.deadlineHits.WithLabelValues(path)
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.duration, m.inFlight, m.keys, m.errors, m.deadlineHits, m.refusals, m.panics, m.reloads,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// expiry registers a gauge of a certificate's end, in seconds since the epoch;
// 0 when there is none.
func expiry(registerer prometheus.Registerer, name, help string, notAfter func() time.Time) error {
	return registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		end := notAfter()
		if end.IsZero() {
			return 0
		}
		return float64(end.Unix())
	}))
}

func (m *metrics) keyError(path string, class provider.Class, form string) {
	m.errors.WithLabelValues(path, string(class), form).Inc()
}

// counted counts the requests of one path.
func (m *metrics) counted(path string, next http.Handler) http.Handler {
	duration := m.duration.WithLabelValues(path)
	ok := m.requests.WithLabelValues(path, "200")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		m.inFlight.Inc()
		defer m.inFlight.Dec()
		status := &statusWriter{ResponseWriter: w}
		next.ServeHTTP(status, r)
		duration.Observe(time.Since(start).Seconds())
		if status.code == http.StatusOK || status.code == 0 {
			ok.Inc()
			return
		}
		m.requests.WithLabelValues(path, strconv.Itoa(status.code)).Inc()
	})
}

// statusWriter remembers the status that was written; 0 while there is none.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
