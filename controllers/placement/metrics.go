package placement

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/rego"
)

// Metrics of placement. No label has an unbounded set of values.
type Metrics struct {
	pods     *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	steps    *prometheus.HistogramVec
	holding  prometheus.Gauge
	failures *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them; with nil they count unseen.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		pods: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_placement_pods_total",
			Help: "Gated pods that were let go, by action (place, release, observe) and reason; reasons of a user policy are Other.",
		}, []string{"action", "reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "archkeeper_placement_held_seconds",
			Help:    "Time from a pod's creation until it was let go, in seconds, by action.",
			Buckets: []float64{.1, .25, .5, 1, 2, 5, 10, 30, 60, 120, 300},
		}, []string{"action"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "archkeeper_placement_step_seconds",
			Help:    "Time that a worker needs for a step with one pod, in seconds, by step (ask, decide, write).",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"step"}),
		holding: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "archkeeper_placement_held_pods",
			Help: "Gated pods whose images are not known yet.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_placement_failures_total",
			Help: "Patches that the API server did not take, by kind (conflict, invalid, error), and decisions that failed (decision).",
		}, []string{"kind"}),
	}
	// What alerts watch is there from the start: an increase from nothing is none
	// to Prometheus.
	for _, reason := range []string{rego.ReasonDeadlineExceeded, rego.ReasonImageUnusable} {
		m.pods.WithLabelValues(string(rego.ActionRelease), reason)
	}
	for _, kind := range []string{"conflict", "invalid", "error", "decision"} {
		m.failures.WithLabelValues(kind)
	}
	if registerer != nil {
		registerer.MustRegister(m.pods, m.seconds, m.steps, m.holding, m.failures)
	}
	return m
}

// reasons that a metric may carry.
func reasonLabel(reason string) string {
	switch reason {
	case rego.ReasonPlaced, rego.ReasonNoCommonArchitecture, rego.ReasonArchitectureContradiction, rego.ReasonFallbackArchitecture,
		rego.ReasonImageUnusable, rego.ReasonDeadlineExceeded, rego.ReasonPolicyFailed,
		"UserArchitecture", "ContentOnly", "NoUsableTerm", "RunsEverywhere", "NodeNameSet", "DaemonSetPod", "OptedOut",
		"ExcludedNamespace", "ControlPlanePod", "NotSelected", "Exempt":
		return reason
	}
	return "Other"
}
