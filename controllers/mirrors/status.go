package mirrors

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/internal/register"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// Condition types of the status ConfigMap.
const (
	// Accepted: every part of every object counts.
	Accepted = "Accepted"
	// Stored: the ConfigMap holds what the objects mean.
	Stored = "Stored"
	// Delivered: the MachineConfigs hold it too, or there are none.
	Delivered = "Delivered"
)

// maxStatusObjects and maxStatusBytes bound what is written out of objects;
// those with something to tell come first.
const (
	maxStatusObjects = 500
	maxStatusBytes   = 512 << 10
)

// Status is what the status ConfigMap holds under the key "status", as JSON.
type Status struct {
	// Probed is true once the API server has told what it serves.
	Probed     bool               `json:"-"`
	SHA256     string             `json:"sha256"`
	Delivery   mirrors.Delivery   `json:"delivery"`
	Conditions []metav1.Condition `json:"conditions"`
	// Disruption is what the last change of a MachineConfig does to nodes.
	Disruption string         `json:"disruption,omitempty"`
	Objects    []ObjectStatus `json:"objects"`
	// Omitted is how many objects had no room.
	Omitted int `json:"omitted,omitempty"`
}

func (s Status) encode() (string, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the status: %w", err)
	}
	return string(raw), nil
}

// outcome is what became of a plan.
type outcome struct {
	notStored, notDelivered error
	held                    string // the changes that wait, and why; empty for none
}

// describe fills in the status.
func (c *Controller) describe(now time.Time, o outcome) {
	p, st := c.plan, &c.status
	st.SHA256, st.Delivery = p.Data[mirrors.KeySHA256], p.Delivery
	set := func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
		})
	}
	rejected, conflicts := len(p.Result.Rejected), len(p.Result.Conflicts)
	switch {
	case rejected > 0:
		set(Accepted, false, "PartsRejected", fmt.Sprintf("%d parts are rejected, %d sources have contradicting policies", rejected, conflicts))
	case conflicts > 0:
		set(Accepted, false, "PolicyConflict", fmt.Sprintf("%d sources have contradicting policies", conflicts))
	default:
		set(Accepted, true, "AsExpected", "")
	}
	switch {
	case p.Data == nil:
		set(Stored, false, "TooLarge", fmt.Sprintf("the result has %d bytes, more than the %d that a ConfigMap holds; what is there stays", p.Size, Limit))
	case o.notStored != nil:
		set(Stored, false, "WriteFailed", o.notStored.Error())
	default:
		set(Stored, true, "AsExpected", "")
	}
	switch {
	case o.notDelivered != nil:
		set(Delivered, false, "WriteFailed", o.notDelivered.Error())
	case o.held != "":
		set(Delivered, false, "DisruptionHeld", o.held)
	case p.Delivery == mirrors.DeliveryInspector && c.operator:
		set(Delivered, true, "InspectorOnly", "the machine-config operator owns the nodes' files; inspection alone uses the mirrors")
	default:
		set(Delivered, true, "AsExpected", "")
	}
	st.Objects, st.Omitted = shorten(p.Objects)
}

// shorten keeps the objects with something to tell, then the others, up to the
// bounds.
func shorten(objects []ObjectStatus) ([]ObjectStatus, int) {
	kept := make([]ObjectStatus, 0, min(len(objects), maxStatusObjects))
	room := maxStatusBytes
	for _, told := range []bool{true, false} {
		for _, o := range objects {
			tells := !o.Accepted || len(o.Warnings)+len(o.UnsupportedByContainerd) > 0
			if tells != told || len(kept) == maxStatusObjects {
				continue
			}
			o = clip(o)
			raw, err := json.Marshal(o)
			if err != nil || len(raw) > room {
				continue
			}
			room -= len(raw)
			kept = append(kept, o)
		}
	}
	return kept, len(objects) - len(kept)
}

// clip bounds the lists of one object.
func clip(o ObjectStatus) ObjectStatus {
	for _, list := range []*[]string{&o.Rejected, &o.Conflicts, &o.Warnings, &o.UnsupportedByContainerd} {
		const most = 8
		if n := len(*list); n > most {
			*list = append((*list)[:most:most], fmt.Sprintf("and %d more", n-most))
		}
	}
	return o
}

type metrics struct {
	writes    *prometheus.CounterVec
	objects   *prometheus.GaugeVec
	problems  *prometheus.GaugeVec
	entries   prometheus.Gauge
	size      prometheus.Gauge
	merges    prometheus.Histogram
	delivered *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_mirrors_writes_total",
			Help: "Writes of the mirror controller's ConfigMaps, by result: created, updated, failed.",
		}, []string{"result"}),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "archkeeper_mirrors_objects", Help: "Mirror objects that are merged, by kind.",
		}, []string{"kind"}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "archkeeper_mirrors_problems", Help: "Parts of mirror objects, by what is the matter: rejected, conflict, warning.",
		}, []string{"type"}),
		entries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "archkeeper_mirrors_entries", Help: "Entries of the merged registries.conf.",
		}),
		size: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "archkeeper_mirrors_bytes", Help: "Size of the merged data.",
		}),
		merges: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "archkeeper_mirrors_merge_seconds", Help: "Time to merge all mirror objects.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 7),
		}),
		delivered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_mirrors_machineconfig_changes_total",
			Help: "Changes of MachineConfigs, by what they do to nodes and by whether they were written or held.",
		}, []string{"disruption", "result"}),
	}
	return m, register.Metrics(reg, "mirrors", m.writes, m.objects, m.problems, m.entries, m.size, m.merges, m.delivered)
}

func (m *metrics) describe(p Plan) {
	m.objects.Reset()
	for _, o := range p.Objects {
		m.objects.WithLabelValues(o.Kind).Inc()
	}
	m.problems.WithLabelValues("rejected").Set(float64(len(p.Result.Rejected)))
	m.problems.WithLabelValues("conflict").Set(float64(len(p.Result.Conflicts)))
	m.problems.WithLabelValues("warning").Set(float64(len(p.Result.Warnings)))
	m.entries.Set(float64(len(p.Result.Config.Entries())))
	m.size.Set(float64(p.Size))
}
