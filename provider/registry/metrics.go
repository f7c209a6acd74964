package registry

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxLabels bounds the registries that have a label of their own; later ones
// share "other". Images name hosts, so their number is not ours to choose.
const maxLabels = 32

// metrics of the inspector. No label ever holds an image.
type metrics struct {
	requests *prometheus.CounterVec
	inFlight prometheus.Gauge
	circuits *prometheus.GaugeVec
	lookups  *prometheus.CounterVec
	fetches  prometheus.Gauge
	hits     prometheus.Counter // of lookups

	mu     sync.Mutex
	labels map[string]struct{}
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_registry_requests_total",
			Help: "Requests to registries and their token services, by registry (the first 32, then \"other\") and outcome: 2xx, 3xx, 401, 403, 404, 429, 4xx, 5xx, error, canceled.",
		}, []string{"registry", "outcome"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "archkeeper_registry_requests_in_flight",
			Help: "Requests to registries that are under way.",
		}),
		circuits: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "archkeeper_registry_circuit_open",
			Help: "1 while a registry is left alone because it did not answer.",
		}, []string{"registry"}),
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_inspector_lookups_total",
			Help: "Queries by how they were answered: hit, stale (and refreshed behind), failure (a remembered one), miss, malformed, blocked.",
		}, []string{"result"}),
		fetches: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "archkeeper_inspector_fetches",
			Help: "Shared look-ups that are under way, waited for or not.",
		}),
		labels: map[string]struct{}{},
	}
	m.hits = m.lookups.WithLabelValues("hit")
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.inFlight, m.circuits, m.lookups, m.fetches} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) label(host string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.labels[host]; ok {
		return host
	}
	if len(m.labels) >= maxLabels {
		return "other"
	}
	m.labels[host] = struct{}{}
	return host
}

func (m *metrics) started() (done func(host string, status int, v verdict)) {
	m.inFlight.Inc()
	return func(host string, status int, v verdict) {
		m.inFlight.Dec()
		m.requests.WithLabelValues(m.label(host), outcome(status, v)).Inc()
	}
}

func (m *metrics) circuit(host string, open bool) {
	label := m.label(host)
	if label == "other" {
		return // one gauge cannot say which of many is open
	}
	value := 0.0
	if open {
		value = 1
	}
	m.circuits.WithLabelValues(label).Set(value)
}

func outcome(status int, v verdict) string {
	switch {
	case status == 0 && v == verdictAbandoned:
		return "canceled"
	case status == 0:
		return "error"
	case status == 401 || status == 403 || status == 404 || status == 429:
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status/100) + "xx"
}
