package mirrors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/archkeeper/archkeeper/internal/kube"
	"github.com/archkeeper/archkeeper/internal/loop"
	"github.com/archkeeper/archkeeper/internal/served"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// FieldManager owns what the controller writes.
const FieldManager = "archkeeper-mirrors"

// Times of the controller.
const (
	probeInterval = 15 * time.Second // between two discoveries
	checkInterval = 30 * time.Second // between two looks at what was written
	retryInterval = time.Second      // after a failed write, doubled up to retryMax
	retryMax      = 30 * time.Second
	callTimeout   = 10 * time.Second // every call to the API server

	// DefaultQuiet is how long objects must have stood still before they are
	// merged, and DefaultMaxDelay how long that may be put off.
	DefaultQuiet    = time.Second
	DefaultMaxDelay = 10 * time.Second
)

//nolint:gochecknoglobals // never changed: struct constants, which the language lacks
var (
	configGV  = schema.GroupVersion{Group: "config.openshift.io", Version: "v1"}
	contentGV = schema.GroupVersion{Group: "operator.openshift.io", Version: "v1alpha1"}
	machineGV = schema.GroupVersion{Group: "machineconfiguration.openshift.io", Version: "v1"}

	digestSets     = configGV.WithResource("imagedigestmirrorsets")
	tagSets        = configGV.WithResource("imagetagmirrorsets")
	images         = configGV.WithResource("images")
	contentSources = contentGV.WithResource("imagecontentsourcepolicies")
	machineConfigs = machineGV.WithResource("machineconfigs")
)

const imageName = "cluster"

// followed lists the resources whose objects are merged.
func followed() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{digestSets, tagSets, images, contentSources}
}

// Options of a Controller. Every field without a default is required.
type Options struct {
	Dynamic   dynamic.Interface
	Discovery discovery.DiscoveryInterface
	Client    kubernetes.Interface
	// Namespace and Name of the ConfigMap; that of the status is Name-status.
	Namespace, Name string
	// Delivery; default DeliveryAuto.
	Delivery mirrors.Delivery
	// Pools of nodes that get a MachineConfig; default master and worker.
	Pools []string
	// MaxDisruption is the worst that a MachineConfig may do to nodes; default
	// a reload. A worse change waits.
	MaxDisruption mirrors.Disruption
	// Policy writes policy.json too.
	Policy bool
	// Protected images stay reachable whatever is blocked.
	Protected []imageref.Reference
	// Quiet and MaxDelay; default DefaultQuiet and DefaultMaxDelay.
	Quiet, MaxDelay time.Duration
	// Clock; default the real one. Recorder gets one event for each transition
	// of an object.
	Clock    clock.WithTicker
	Recorder record.EventRecorder
	// Metrics registers the controller's metrics; nil for none.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Controller keeps the ConfigMap. Make one with New, run it once.
type Controller struct {
	Options
	metrics *metrics
	loop    *loop.Loop
	changed chan struct{} // an object has changed

	watching served.Set
	operator bool // the machine-config operator is there
	probed   time.Time
	idleSaid bool

	dirtySince, dirtyLast time.Time // zero when nothing has changed since the last merge
	checked               time.Time
	plan                  *Plan
	retry                 time.Duration
	retryAt               time.Time
	status                Status
	announced             map[objectID]string
	heldFor               map[string]string // by pool, the change that waits
}

type objectID struct{ kind, name string }

// New makes a Controller and registers its metrics.
func New(o Options) (*Controller, error) {
	switch {
	case o.Dynamic == nil || o.Discovery == nil || o.Client == nil:
		return nil, errors.New("mirrors: clients are missing")
	case o.Namespace == "" || o.Name == "":
		return nil, errors.New("mirrors: the ConfigMap has no name")
	}
	if o.Delivery == "" {
		o.Delivery = mirrors.DeliveryAuto
	}
	if len(o.Pools) == 0 {
		o.Pools = []string{"master", "worker"}
	}
	if o.MaxDisruption == mirrors.DisruptionNone {
		o.MaxDisruption = mirrors.DisruptionReload
	}
	if o.Quiet <= 0 {
		o.Quiet = DefaultQuiet
	}
	if o.MaxDelay <= 0 {
		o.MaxDelay = DefaultMaxDelay
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
		Options: o, metrics: m,
		loop: loop.New(o.Clock), changed: make(chan struct{}, 1),
		announced: map[objectID]string{}, heldFor: map[string]string{},
	}
	c.watching = served.Set{
		Client: o.Dynamic, Log: o.Log,
		Changed: func() { c.markChanged(); c.loop.Nudge() },
		Gone:    c.loop.Nudge,
	}
	return c, nil
}

// NeedLeaderElection tells controller-runtime's manager that one replica writes.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start runs the controller until ctx ends; its error is always nil. Failures
// of the API server are retried and reported in the status.
func (c *Controller) Start(ctx context.Context) error {
	defer c.watching.Stop()
	c.loop.Run(ctx, c.once)
	return nil
}

// markChanged notes that the objects may mean something else now.
func (c *Controller) markChanged() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// once looks at the cluster, writes what has changed, and tells how long to
// wait for something to happen before looking again.
func (c *Controller) once(ctx context.Context) time.Duration {
	now := c.Clock.Now()
	if len(c.watching.DropGone()) > 0 {
		c.markChanged()
	}
	if c.probed.IsZero() || now.Sub(c.probed) >= probeInterval {
		c.probe(ctx)
		c.probed = now
	}
	wait := probeInterval - now.Sub(c.probed)
	select {
	case <-c.changed:
		if c.dirtySince.IsZero() {
			c.dirtySince = now
		}
		c.dirtyLast = now
	default:
	}
	if !c.ready() {
		return wait
	}
	if !c.dirtySince.IsZero() || c.plan == nil {
		if due := c.due(now); due > 0 {
			return min(wait, due)
		}
		c.merge()
	}
	if left := c.retryAt.Sub(now); left > 0 {
		return min(wait, left)
	}
	if c.checked.IsZero() || now.Sub(c.checked) >= checkInterval {
		if err := c.write(ctx, now); err != nil {
			c.retry = min(max(2*c.retry, retryInterval), retryMax)
			c.retryAt = now.Add(c.retry)
			c.metrics.writes.WithLabelValues("failed").Inc()
			c.Log.Warn("cannot write the mirror configuration", "configmap", c.Namespace+"/"+c.Name, "err", err, "again in", c.retry)
			return min(wait, c.retry)
		}
		c.retry, c.retryAt, c.checked = 0, time.Time{}, now
	}
	return min(wait, checkInterval-now.Sub(c.checked))
}

// due tells how long to wait for objects to stand still.
func (c *Controller) due(now time.Time) time.Duration {
	if c.dirtySince.IsZero() {
		return 0
	}
	quiet := c.Quiet - now.Sub(c.dirtyLast)
	if most := c.MaxDelay - now.Sub(c.dirtySince); quiet > most {
		return most
	}
	return quiet
}

// ready tells whether a first look has told which kinds are served, and all of
// them have been listed.
func (c *Controller) ready() bool {
	return c.status.Probed && c.watching.Synced()
}

// merge recomputes the plan from full lists.
func (c *Controller) merge() {
	var objects []mirrors.Object
	c.watching.Each(func(u *unstructured.Unstructured) {
		if o, ok := mirrors.FromMap(u.Object); ok {
			objects = append(objects, o)
		}
	})
	start := c.Clock.Now()
	plan, err := Make(Facts{
		Objects: objects, Protected: c.Protected, Delivery: c.Delivery, MachineConfigOperator: c.operator, Policy: c.Policy,
	})
	if err != nil {
		c.Log.Error("cannot merge the mirror objects", "err", err)
		return
	}
	c.metrics.merges.Observe(c.Clock.Since(start).Seconds())
	c.metrics.describe(plan)
	c.dirtySince, c.dirtyLast = time.Time{}, time.Time{}
	c.plan, c.checked, c.retryAt = &plan, time.Time{}, time.Time{}
	c.announce(plan)
}

// write brings the cluster to the plan. What is equal is not written.
func (c *Controller) write(ctx context.Context, now time.Time) error {
	if c.plan == nil {
		return nil
	}
	var notStored error
	if c.plan.Data != nil {
		notStored = c.store(ctx, c.Name, c.plan.Data)
	}
	held, notDelivered := c.deliver(ctx)
	c.describe(now, outcome{notStored: notStored, notDelivered: notDelivered, held: held})
	text, err := c.status.encode()
	if err == nil {
		err = c.store(ctx, c.Name+"-status", map[string]string{"status": text})
	}
	return errors.Join(notStored, notDelivered, err)
}

// store creates or updates a ConfigMap when its data differ.
func (c *Controller) store(ctx context.Context, name string, data map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	wrote, err := kube.KeepConfigMap(ctx, c.Client.CoreV1().ConfigMaps(c.Namespace), name, data, FieldManager)
	if wrote != kube.WroteNothing {
		c.metrics.writes.WithLabelValues(string(wrote)).Inc()
	}
	return err
}

// announce sends one event for each transition of an object.
func (c *Controller) announce(plan Plan) {
	seen := map[objectID]bool{}
	for _, o := range plan.Objects {
		id := objectID{o.Kind, o.Name}
		seen[id] = true
		problems := slices.Concat(o.Rejected, o.Conflicts)
		text := fmt.Sprint(problems)
		before, known := c.announced[id]
		c.announced[id] = text
		if before == text || !known && len(problems) == 0 {
			continue
		}
		about := &corev1.ObjectReference{APIVersion: apiVersion(o.Kind), Kind: o.Kind, Name: o.Name}
		switch {
		case len(o.Rejected) > 0:
			c.Recorder.Eventf(about, corev1.EventTypeWarning, "PartsRejected", "%s", summary(problems))
		case len(o.Conflicts) > 0:
			c.Recorder.Eventf(about, corev1.EventTypeWarning, "PolicyConflict", "%s", summary(problems))
		default:
			c.Recorder.Event(about, corev1.EventTypeNormal, "Accepted", "every part is accepted now")
		}
	}
	for id := range c.announced {
		if !seen[id] {
			delete(c.announced, id)
		}
	}
}

// summary gives the first problem and how many follow: an event is short.
func summary(problems []string) string {
	if len(problems) == 1 {
		return problems[0]
	}
	return fmt.Sprintf("%s (and %d more)", problems[0], len(problems)-1)
}

func apiVersion(kind string) string {
	if kind == mirrors.KindContentSourcePolicy {
		return contentGV.String()
	}
	return configGV.String()
}

// probe asks which of the kinds are served and follows the new ones.
func (c *Controller) probe(ctx context.Context) {
	there := map[schema.GroupVersionResource]bool{}
	for _, gv := range []schema.GroupVersion{configGV, contentGV, machineGV} {
		list, err := c.Discovery.ServerResourcesForGroupVersion(gv.String())
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			c.Log.Warn("discovery failed", "group", gv.String(), "err", err)
			return // what is known stays
		}
		for _, r := range list.APIResources {
			there[gv.WithResource(r.Name)] = true
		}
	}
	for _, r := range followed() {
		switch {
		case there[r]:
			c.watching.Follow(ctx, watch(r))
		case c.watching.Following(r):
			c.watching.Leave(r)
			c.markChanged()
		}
	}
	if operator := there[machineGV.WithResource("machineconfigpools")]; operator != c.operator {
		c.operator = operator
		c.markChanged()
	}
	c.status.Probed = true
	if c.watching.Len() == 0 && !c.idleSaid {
		c.Log.Info("the cluster serves no mirror objects: nothing to merge", "look again every", probeInterval)
	}
	c.idleSaid = c.watching.Len() == 0
}

// watch says what of a resource is followed: all of its objects, or
// Image/cluster alone.
func watch(r schema.GroupVersionResource) served.Watch {
	w := served.Watch{Resource: r, Transform: slim, Same: func(before, after any) bool { return generation(before) == generation(after) }}
	if r == images {
		w.Name = imageName
	}
	return w
}

// slim drops what is large and never read.
func slim(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
		unstructured.RemoveNestedField(u.Object, "status")
		annotations := u.GetAnnotations()
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		u.SetAnnotations(annotations)
	}
	return obj, nil
}

// generation counts changes of a spec: edits of metadata and status do not
// matter here. Without one, every change counts.
func generation(obj any) string {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return ""
	}
	if u.GetGeneration() == 0 {
		return u.GetResourceVersion()
	}
	return fmt.Sprint(u.GetUID(), "/", u.GetGeneration())
}
