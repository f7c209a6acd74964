package admission

import "github.com/prometheus/client_golang/prometheus"

// Metrics of admission. No label has an unbounded set of values.
type Metrics struct {
	seconds   prometheus.Histogram
	decisions *prometheus.CounterVec
	failures  *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them; with nil they count unseen.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "archkeeper_admission_seconds",
			Help:    "Time to answer an AdmissionReview, in seconds.",
			Buckets: []float64{.001, .002, .005, .01, .025, .05, .1, .2, .4, .8, 1.6},
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_admission_decisions_total",
			Help: "Decisions at admission, by action (place, gate, release, ignore) and mode (enforce, observe).",
		}, []string{"action", "mode"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_admission_failures_total",
			Help: "Reviews that could not be judged, by kind (review: it could not be read; internal; panic). The pod is admitted unchanged.",
		}, []string{"kind"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.seconds, m.decisions, m.failures)
	}
	return m
}
