package importmode

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/register"
)

// Condition types of the status ConfigMap.
const (
	Available                    = "Available"
	Progressing                  = "Progressing"
	Degraded                     = "Degraded"
	EvaluationConditionsDetected = "EvaluationConditionsDetected"
	ConflictingWriter            = "ConflictingWriter"
	SchemaUnsupported            = "SchemaUnsupported"
	NoConsumer                   = "NoConsumer"
)

// Reasons that are not those of a Decision.
const (
	ReasonSchemaUnsupported = "SchemaUnsupported"
	ReasonConflictingWriter = "ConflictingWriter"
	ReasonObserving         = "Observing"
	ReasonAsExpected        = "AsExpected"
	ReasonWriteFailed       = "WriteFailed"
	reasonWaitingForCRD     = "WaitingForCRD"
	reasonWaitingForObject  = "WaitingForObject"
	reasonStarting          = "Starting"
)

// report is what one look found.
type report struct {
	reason, message string
	step            step
	facts           Facts
	active          bool   // there is an object to keep
	owner           string // who else writes the field
	wrote           Mode
	failure         string
}

// Status is what the status ConfigMap holds under the key "status", as JSON.
type Status struct {
	// Policy is auto, enforce or observe; Writing tells whether it lets us write.
	Policy  Policy `json:"policy"`
	Writing bool   `json:"writing"`
	// Current and Desired are the mode in the cluster and the one decided on;
	// Desired is empty while a decision is held.
	Current Mode `json:"current"`
	Desired Mode `json:"desired"`
	// OtherOwner is who else writes the field.
	OtherOwner string             `json:"otherOwner,omitempty"`
	Conditions []metav1.Condition `json:"conditions"`
}

// report turns one look into conditions, metrics and an event, and stores the
// status when it changed.
func (c *Controller) report(ctx context.Context, now time.Time, r report, waits *deadlines) {
	observing := c.Policy == Observe || (c.Policy == Auto && r.owner != "")
	st := &c.status.now
	st.Policy, st.Writing = c.Policy, r.active && !observing && !r.step.Conflict && !c.unsupported
	st.Current, st.Desired, st.OtherOwner = r.facts.Status, r.step.Want, r.owner
	if r.step.Held {
		st.Desired = Unset
	}

	set := func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		if reason == "" {
			reason = ReasonAsExpected
		}
		changed := meta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
		})
		if changed {
			c.metrics.condition(kind, is)
		}
	}
	fault := c.fault(r)
	if fault.reason == "" {
		c.status.faultSince = time.Time{}
	} else if c.status.faultSince.IsZero() || c.status.faultReason != fault.reason {
		c.status.faultSince = now
	}
	c.status.faultReason = fault.reason
	degraded := fault.reason != "" && now.Sub(c.status.faultSince) >= inertia
	if fault.reason != "" && !degraded {
		waits.add(inertia - now.Sub(c.status.faultSince))
	}

	set(Available, !c.unsupported && r.reason != reasonStarting, r.reason, r.message)
	waiting := r.active && (r.step.Held || r.step.Wait > 0 || (r.failure != "" && !observing))
	progress := r.message
	if r.step.Wait > 0 {
		progress = fmt.Sprintf("%s; %s is written once this has stood for %s", r.message, r.step.Want, r.step.Delay)
	}
	if waiting {
		set(Progressing, true, r.reason, progress)
	} else {
		set(Progressing, false, ReasonAsExpected, "")
	}
	if degraded {
		set(Degraded, true, fault.reason, fault.message)
	} else {
		set(Degraded, false, ReasonAsExpected, "")
	}
	if r.active && r.facts.Spec != Unset {
		set(EvaluationConditionsDetected, true, "OperatorEvaluationConditionDetected",
			fmt.Sprintf("spec.imageStreamImportMode is set to %s, which overrides the payload's value", r.facts.Spec))
	} else {
		set(EvaluationConditionsDetected, false, ReasonAsExpected, "")
	}
	if r.step.Conflict {
		set(ConflictingWriter, true, ReasonConflictingWriter, fmt.Sprintf("another writer undid %s %d times within %s: it is not written again until the decision changes", r.step.Want, maxReverts, revertWindow))
	} else {
		set(ConflictingWriter, false, ReasonAsExpected, "")
	}
	if c.unsupported {
		set(SchemaUnsupported, true, ReasonSchemaUnsupported, r.message)
	} else {
		set(SchemaUnsupported, false, ReasonAsExpected, "")
	}
	if c.Hosted {
		set(NoConsumer, true, "HostedControlPlane", "the API server of a hosted cluster does not read status.imageStreamImportMode")
	} else {
		set(NoConsumer, false, ReasonAsExpected, "")
	}

	c.announce(r, observing)
	if err := c.status.store(ctx); err != nil {
		c.Log.Warn("cannot store the status", "configmap", c.Namespace+"/"+c.Name, "err", err)
		waits.add(retryMax)
	}
}

// fault says what is wrong, if anything.
func (c *Controller) fault(r report) (f struct{ reason, message string }) {
	switch {
	case c.unsupported:
		f.reason, f.message = ReasonSchemaUnsupported, r.message
	case r.step.Conflict:
		f.reason, f.message = ReasonConflictingWriter, "another writer keeps undoing what this controller writes"
	case r.failure != "":
		f.reason, f.message = ReasonWriteFailed, r.failure
	case r.active && r.step.Degraded && r.step.Held:
		f.reason, f.message = r.reason, r.message
	}
	return f
}

// announce sends one event a transition.
func (c *Controller) announce(r report, observing bool) {
	what, kind := r.reason, corev1.EventTypeNormal
	message := r.message
	switch {
	case c.unsupported:
		kind = corev1.EventTypeWarning
	case r.step.Conflict:
		what, kind = ReasonConflictingWriter, corev1.EventTypeWarning
		message = fmt.Sprintf("another writer undid %s %d times: leaving it alone", r.step.Want, maxReverts)
	case r.wrote != Unset:
		message = fmt.Sprintf("status.imageStreamImportMode is now %s: %s", r.wrote, r.message)
	case observing && r.active && !r.step.Settled(r.facts.Status):
		what = ReasonObserving
		message = fmt.Sprintf("would write %s (%s), but only observes", r.step.Want, r.message)
		if r.owner != "" {
			message += ": " + r.owner + " writes the field"
		}
	}
	key := what + "/" + string(r.wrote)
	if r.reason == reasonStarting || !r.active || c.status.announced == key || (r.wrote == Unset && c.status.announced == what+"/"+string(r.facts.Status)) {
		return
	}
	c.status.announced = key
	c.Recorder.Event(imageReference(), kind, what, message)
}

// statusKeeper stores the status when its bytes change.
type statusKeeper struct {
	client          kubernetes.Interface
	namespace, name string
	now             Status
	stored          string
	faultSince      time.Time
	faultReason     string
	announced       string
}

func (k *statusKeeper) store(ctx context.Context) error {
	raw, err := json.Marshal(k.now)
	if err != nil {
		return err
	}
	text := string(raw)
	if text == k.stored {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = kube.KeepConfigMap(ctx, k.client.CoreV1().ConfigMaps(k.namespace), k.name, map[string]string{"status": text}, FieldManager)
	if err != nil {
		return err
	}
	k.stored = text
	return nil
}

// metrics of the controller.
type metrics struct {
	writes     *prometheus.CounterVec
	probes     prometheus.Counter
	conditions *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "archkeeper_importmode_writes_total",
			Help: "Attempts to write status.imageStreamImportMode, by result: written, conflict, unsupported, failed.",
		}, []string{"result"}),
		probes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "archkeeper_importmode_discoveries_total",
			Help: "Discovery requests made while a governed resource or field is missing.",
		}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "archkeeper_importmode_condition",
			Help: "1 while a condition of the import mode controller is true.",
		}, []string{"type"}),
	}
	return m, register.Metrics(reg, "importmode", m.writes, m.probes, m.conditions)
}

func (m *metrics) condition(kind string, is bool) {
	v := 0.0
	if is {
		v = 1
	}
	m.conditions.WithLabelValues(kind).Set(v)
}
