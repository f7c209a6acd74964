package rego

import "github.com/prometheus/client_golang/prometheus"

// Metrics of policy evaluation. No label has an unbounded set of values.
type Metrics struct {
	decisions *prometheus.CounterVec
	failures  *prometheus.CounterVec
	reloads   *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them; with nil they count unseen.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_policy_decisions_total",
			Help: "Placement decisions, by phase (admit, resolve) and action (place, gate, hold, release, ignore).",
		}, []string{"phase", "action"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_policy_failures_total",
			Help: "Decisions for which a policy was set aside, by policy (user, builtin) and kind (error, guard, deadline).",
		}, []string{"policy", "kind"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_policy_reloads_total",
			Help: "Changes of the user policy, by result (loaded, failed).",
		}, []string{"result"}),
	}
	// There from the start: an increase from nothing is none to Prometheus, and
	// the first failure is one that an alert should see.
	for _, policy := range []string{"user", "builtin"} {
		for _, kind := range []string{"error", "guard", "deadline"} {
			m.failures.WithLabelValues(policy, kind)
		}
	}
	if registerer != nil {
		registerer.MustRegister(m.decisions, m.failures, m.reloads)
	}
	return m
}
