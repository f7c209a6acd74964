package importmode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/internal/loop"
	"github.com/archkeeper/archkeeper/internal/served"
)

// FieldManager owns the field in managedFields.
const FieldManager = "archkeeper-importmode"

// Times of the controller. Every call to an API server ends within callTimeout.
const (
	probeInterval = time.Minute      // between two discoveries, while something is missing
	ownerInterval = time.Minute      // between two looks at the other owner
	inertia       = 2 * time.Minute  // before Degraded becomes true
	retryInterval = time.Second      // after a failed write, doubled up to retryMax
	retryMax      = 30 * time.Second //
	callTimeout   = 10 * time.Second //
)

// Policy says what the controller may do.
type Policy string

// The policies of --mode.
const (
	// Auto writes unless another owner of the field is found.
	Auto Policy = "auto"
	// Enforce writes whoever else may.
	Enforce Policy = "enforce"
	// Observe never writes.
	Observe Policy = "observe"
)

// ParsePolicy reads a value of --mode.
func ParsePolicy(s string) (Policy, error) {
	switch p := Policy(s); p {
	case Auto, Enforce, Observe:
		return p, nil
	}
	return "", fmt.Errorf("mode %q: want auto, enforce or observe", s)
}

// The one object of each kind that matters, and the operator that writes the
// field on OpenShift.
const (
	imageName          = "cluster"
	versionName        = "version"
	otherOwnerOperator = "image-registry"
)

// configGroup is the API group of Image, ClusterVersion and ClusterOperator.
func configGroup() schema.GroupVersion {
	return schema.GroupVersion{Group: "config.openshift.io", Version: "v1"}
}

func imagesResource() schema.GroupVersionResource { return configGroup().WithResource("images") }

func versionsResource() schema.GroupVersionResource {
	return configGroup().WithResource("clusterversions")
}

func operatorsResource() schema.GroupVersionResource {
	return configGroup().WithResource("clusteroperators")
}

// Options of a Controller. Every field without a default is required.
type Options struct {
	// Governed reaches the cluster whose Image/cluster is kept; Discovery its
	// list of resources and schemas. For a hosted control plane these are the
	// hosted cluster's.
	Governed  dynamic.Interface
	Discovery discovery.DiscoveryInterface
	// Own reaches the cluster in which this controller keeps its status.
	Own kubernetes.Interface
	// Namespace and Name of the status ConfigMap.
	Namespace, Name string
	// Policy; default Auto.
	Policy Policy
	// WhenMissing is the mode to take without a ClusterVersion; default Unset: hold.
	WhenMissing Mode
	// Hosted marks a hosted control plane, whose API server does not read the field.
	Hosted bool
	// Clock; default the real one. Recorder gets one event a transition.
	Clock    clock.WithTicker
	Recorder record.EventRecorder
	// Metrics registers the controller's metrics; nil for none.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Controller keeps the field. Make one with New, run it once.
type Controller struct {
	Options
	loop     *loop.Loop
	metrics  *metrics
	history  history
	watching served.Set
	written  *unstructured.Unstructured // what the last patch returned
	before   string                     // resourceVersion that the last patch was made from

	probed      time.Time // last discovery
	unsupported bool      // the CRD lacks the field
	idleSaid    bool
	owner       string // another owner of the field; empty when there is none
	ownerAt     time.Time
	failure     string // why the last write failed
	retry       time.Duration
	retryAt     time.Time
	status      statusKeeper
}

// New makes a Controller and registers its metrics.
func New(o Options) (*Controller, error) {
	switch {
	case o.Governed == nil || o.Discovery == nil || o.Own == nil:
		return nil, errors.New("importmode: clients are missing")
	case o.Namespace == "" || o.Name == "":
		return nil, errors.New("importmode: the status ConfigMap has no name")
	case o.WhenMissing != Unset && o.WhenMissing != Legacy:
		return nil, fmt.Errorf("importmode: without a ClusterVersion the mode may be held or Legacy, not %q", o.WhenMissing)
	}
	if o.Policy == "" {
		o.Policy = Auto
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Recorder == nil {
		o.Recorder = &record.FakeRecorder{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		Options: o,
		loop:    loop.New(o.Clock),
		metrics: m,
		status:  statusKeeper{client: o.Own, namespace: o.Namespace, name: o.Name},
	}
	c.watching = served.Set{Client: o.Governed, Log: o.Log, Changed: c.loop.Nudge, Gone: c.loop.Nudge}
	return c, nil
}

// NeedLeaderElection tells controller-runtime's manager that one replica writes.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start runs the controller until ctx ends; its error is always nil. Failures
// of the API server are retried and reported in conditions.
func (c *Controller) Start(ctx context.Context) error {
	defer c.watching.Stop()
	c.loop.Run(ctx, c.once)
	return nil
}

// once looks at the cluster once, writes at most once, and tells how long to
// wait for something to happen before looking again; 0 means without limit.
func (c *Controller) once(ctx context.Context) time.Duration {
	now := c.Clock.Now()
	var waits deadlines
	if slices.Contains(c.watching.DropGone(), imagesResource()) {
		c.unsupported, c.written, c.history = false, nil, history{}
	}
	if !c.watching.Following(imagesResource()) || !c.watching.Following(versionsResource()) || c.unsupported {
		if since := now.Sub(c.probed); c.probed.IsZero() || since >= probeInterval {
			c.probe(ctx)
			c.probed = now
		}
		waits.add(probeInterval - now.Sub(c.probed))
	}
	r := c.look(ctx, now, &waits)
	c.report(ctx, now, r, &waits)
	return waits.next
}

// look decides and writes.
func (c *Controller) look(ctx context.Context, now time.Time, waits *deadlines) report {
	image, ready := c.watching.Get(imagesResource(), imageName)
	if !c.watching.Following(imagesResource()) {
		return report{reason: reasonWaitingForCRD, message: "the cluster does not serve images.config.openshift.io/v1: nothing to do"}
	}
	if !ready {
		return report{reason: reasonStarting, message: "reading the governed objects"}
	}
	if image == nil {
		return report{reason: reasonWaitingForObject, message: "there is no Image named cluster; it is never created here"}
	}
	if c.written != nil && image.GetResourceVersion() == c.before {
		image = c.written // the watch has not shown our own write yet
	}
	version, versionReady := c.watching.Get(versionsResource(), versionName)
	if c.watching.Following(versionsResource()) && !versionReady {
		return report{reason: reasonStarting, message: "reading the governed objects"}
	}
	facts := Facts{Spec: mode(image, "spec"), Status: mode(image, "status"), Release: release(version), WhenMissing: c.WhenMissing}
	s := c.history.look(now, facts)
	r := report{reason: s.Reason, message: s.Message, step: s, facts: facts, active: true}
	waits.add(s.Wait)
	if c.unsupported {
		r.reason, r.message = ReasonSchemaUnsupported, "the CRD images.config.openshift.io has no field status.imageStreamImportMode"
		return r
	}
	r.owner = c.otherOwner(ctx, now, image)
	if !s.Write {
		return r
	}
	if c.Policy == Observe || (c.Policy == Auto && r.owner != "") {
		waits.add(ownerInterval)
		return r
	}
	if left := c.retryAt.Sub(now); left > 0 {
		waits.add(left)
		r.failure = c.failure
		return r
	}
	c.write(ctx, now, image, s, &r, waits)
	return r
}

// write patches the one field and nothing else.
func (c *Controller) write(ctx context.Context, now time.Time, image *unstructured.Unstructured, s step, r *report, waits *deadlines) {
	got, err := c.patch(ctx, image.GetResourceVersion(), s.Want)
	switch {
	case err == nil && mode(got, "status") == s.Want:
		c.history.written(s.Want)
		c.written, c.before = got, image.GetResourceVersion()
		c.failure, c.retry, c.retryAt = "", 0, time.Time{}
		c.metrics.writes.WithLabelValues("written").Inc()
		c.Log.Info("wrote status.imageStreamImportMode", "from", string(r.facts.Status), "to", string(s.Want), "reason", s.Reason)
		r.wrote, r.facts.Status = s.Want, s.Want
	case err == nil || unknownField(err):
		c.unsupported = true
		c.metrics.writes.WithLabelValues("unsupported").Inc()
		r.reason, r.message = ReasonSchemaUnsupported, "the CRD images.config.openshift.io has no field status.imageStreamImportMode"
		waits.add(probeInterval)
	case apierrors.IsConflict(err):
		c.metrics.writes.WithLabelValues("conflict").Inc()
		waits.add(retryInterval) // the watch usually brings the newer object before
	default:
		c.metrics.writes.WithLabelValues("failed").Inc()
		c.retry = min(max(2*c.retry, retryInterval), retryMax)
		c.retryAt, c.failure = now.Add(c.retry), fmt.Sprintf("patch images/status of Image cluster: %v", err)
		r.failure = c.failure
		c.Log.Warn("cannot write status.imageStreamImportMode", "to", string(s.Want), "err", err, "again in", c.retry)
		waits.add(c.retry)
	}
}

func (c *Controller) patch(ctx context.Context, resourceVersion string, want Mode) (*unstructured.Unstructured, error) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion},
		"status":   map[string]any{"imageStreamImportMode": want},
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Governed.Resource(imagesResource()).Patch(ctx, imageName, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: FieldManager, FieldValidation: metav1.FieldValidationStrict}, "status")
}

// unknownField tells whether strict validation refused our field, in which
// case the CRD does not have it.
func unknownField(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return (code == http.StatusBadRequest || code == http.StatusUnprocessableEntity) &&
		strings.Contains(status.Status().Message, "unknown field") && strings.Contains(status.Status().Message, "imageStreamImportMode")
}

// otherOwner names who else writes the field; empty for nobody.
func (c *Controller) otherOwner(ctx context.Context, now time.Time, image *unstructured.Unstructured) string {
	if mode(image, "status") != Unset {
		for _, f := range image.GetManagedFields() {
			if f.Manager != FieldManager && f.FieldsV1 != nil && ownsStatus(f.FieldsV1.GetRawBytes()) {
				return "field manager " + f.Manager
			}
		}
	}
	if c.ownerAt.IsZero() || now.Sub(c.ownerAt) >= ownerInterval {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_, err := c.Governed.Resource(operatorsResource()).Get(ctx, otherOwnerOperator, metav1.GetOptions{})
		switch {
		case err == nil:
			c.owner = "ClusterOperator " + otherOwnerOperator
		case apierrors.IsNotFound(err):
			c.owner = ""
		default:
			// Not known: stay with what was known, and assume an owner at first.
			if c.ownerAt.IsZero() {
				c.owner = "ClusterOperator " + otherOwnerOperator + " (cannot be read: " + string(apierrors.ReasonForError(err)) + ")"
			}
		}
		c.ownerAt = now
	}
	return c.owner
}

// ownsStatus tells whether a managedFields entry owns status.imageStreamImportMode.
func ownsStatus(raw []byte) bool {
	var f struct {
		Status map[string]json.RawMessage `json:"f:status"`
	}
	if json.Unmarshal(raw, &f) != nil {
		return false
	}
	_, ok := f.Status["f:imageStreamImportMode"]
	return ok
}

// probe asks once which of the two resources are served, starts watches for
// new ones, and looks whether a missing field has come.
func (c *Controller) probe(ctx context.Context) {
	c.metrics.probes.Inc()
	list, err := c.Discovery.ServerResourcesForGroupVersion(configGroup().String())
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		c.Log.Warn("discovery of config.openshift.io/v1 failed", "err", err)
		return
	}
	there := map[string]bool{}
	if err == nil {
		for _, r := range list.APIResources {
			there[r.Name] = true
		}
	}
	if there[imagesResource().Resource] {
		c.watching.Follow(ctx, served.Watch{Resource: imagesResource(), Name: imageName})
	}
	if there[versionsResource().Resource] {
		c.watching.Follow(ctx, served.Watch{Resource: versionsResource(), Name: versionName})
	}
	if !there[imagesResource().Resource] {
		if !c.idleSaid {
			c.Log.Info("the cluster does not serve images.config.openshift.io: idle", "look again every", probeInterval)
			c.idleSaid = true
		}
		return
	}
	c.idleSaid = false
	if c.unsupported && c.hasField() {
		c.unsupported = false
	}
}

// hasField looks into the published schema for status.imageStreamImportMode.
func (c *Controller) hasField() bool {
	paths, err := c.Discovery.OpenAPIV3().Paths()
	if err != nil {
		return false
	}
	group, ok := paths["apis/"+configGroup().String()]
	if !ok {
		return false
	}
	raw, err := group.Schema("application/json")
	if err != nil {
		return false
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Kinds []struct {
					Kind string `json:"kind"`
				} `json:"x-kubernetes-group-version-kind"`
				Properties map[string]struct {
					Properties map[string]json.RawMessage `json:"properties"`
				} `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return false
	}
	for _, s := range doc.Components.Schemas {
		for _, k := range s.Kinds {
			if _, has := s.Properties["status"].Properties["imageStreamImportMode"]; has && k.Kind == "Image" {
				return true
			}
		}
	}
	return false
}

// mode reads imageStreamImportMode below spec or status; Unset when there is none.
func mode(o *unstructured.Unstructured, part string) Mode {
	if o == nil {
		return Unset
	}
	s, _, _ := unstructured.NestedString(o.Object, part, "imageStreamImportMode")
	return Mode(s)
}

// release reads what decides of a ClusterVersion; nil for nil.
func release(o *unstructured.Unstructured) *Release {
	if o == nil {
		return nil
	}
	r := &Release{}
	r.Image, _, _ = unstructured.NestedString(o.Object, "status", "desired", "image")
	r.Architecture, _, _ = unstructured.NestedString(o.Object, "status", "desired", "architecture")
	entries, _, _ := unstructured.NestedSlice(o.Object, "status", "history")
	for i, e := range entries {
		entry, _ := e.(map[string]any)
		state, _ := entry["state"].(string)
		if i == 0 {
			r.Latest = state
		}
		r.Completed = r.Completed || state == "Completed"
	}
	return r
}

// deadlines collects the earliest of several waits.
type deadlines struct{ next time.Duration }

func (d *deadlines) add(wait time.Duration) {
	if wait > 0 && (d.next == 0 || wait < d.next) {
		d.next = wait
	}
}

// imageReference is what events are about.
func imageReference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: configGroup().String(), Kind: "Image", Name: imageName}
}
