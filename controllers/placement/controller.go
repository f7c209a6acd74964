// Package placement frees gated pods: it asks the provider about their images,
// lets the placement policy decide, and writes once.
package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/rego"
)

// Times of a reconciliation.
const (
	// askTimeout bounds one question to the provider, which answers sooner.
	askTimeout = 3 * time.Second
	// writeTimeout bounds one request to the API server.
	writeTimeout = 10 * time.Second
	// secondAsk is when an image that was not found, or not shown to us, is asked
	// for once more: within five seconds with its jitter.
	secondAsk = 2 * time.Second
	// quietHold is how long a pod is held without an event.
	quietHold = 5 * time.Second
	// DefaultWorkers is how many pods are worked on at the same time.
	DefaultWorkers = 16
)

// Evaluator decides.
type Evaluator interface {
	Decide(ctx context.Context, in rego.Input) (rego.Decision, error)
}

// Options say what the controller is made of. Reader, Live, Writer, Inspector,
// Evaluator, Placement and Recorder are needed.
type Options struct {
	// Reader reads pods and namespaces from the informers.
	Reader client.Reader
	// Live reads a pod from the API server, after a conflict.
	Live client.Reader
	// Writer patches pods.
	Writer client.Writer
	// Inspector is the provider.
	Inspector provider.Inspector
	Evaluator Evaluator
	// Placement is the configuration now.
	Placement func() config.Placement
	// Cluster is what is known of the nodes; nil: nothing.
	Cluster func() rego.Cluster
	// Pin gives the references by digest of those images that may be pinned; nil: none.
	Pin      func(ctx context.Context, references []string) map[string]string
	Recorder events.EventRecorder
	// Workers at the same time; DefaultWorkers when 0.
	Workers int
	// Acts tells whether this replica frees pods now; nil: always. Two that act at a
	// time do no harm, since each patch is guarded by the resourceVersion, but the
	// work twice.
	Acts func() bool

	Clock   clock.PassiveClock
	Jitter  func(time.Duration) time.Duration
	Metrics *Metrics
	Log     *slog.Logger
}

// Reconciler frees gated pods. Pods carry no state of ours: what is remembered of
// one is small, and lost without harm when the leader changes.
type Reconciler struct {
	options    Options
	registries *registries
	passedOver atomic.Bool // a gated pod, while this replica did not act

	mu       sync.Mutex
	pods     map[types.NamespacedName]*memory
	observed map[types.UID]struct{} // owners of which an observed decision was said
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// memory is what is remembered of a gated pod.
type memory struct {
	uid types.UID
	// written is the resourceVersion that our patch was made from: until the
	// informer has seen a later one there is nothing to do.
	written string
	// missed counts, for each image, how often it was not found or not shown.
	missed map[string]misses
	// said is the last event, so that it is said once.
	said string
	// holds is set while the pod counts as held.
	holds bool
}

// misses of an image that are apart in time: what is asked for again sooner, because
// something has changed, had no second chance yet.
type misses struct {
	times int
	last  time.Time
}

// New makes a Reconciler.
func New(options Options) *Reconciler {
	if options.Cluster == nil {
		options.Cluster = func() rego.Cluster { return rego.Cluster{} }
	}
	if options.Workers <= 0 {
		options.Workers = DefaultWorkers
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Jitter == nil {
		options.Jitter = func(d time.Duration) time.Duration {
			if d <= 0 {
				return 0
			}
			return rand.N(d) //nolint:gosec // G404: it spreads load, it guards nothing
		}
	}
	if options.Metrics == nil {
		options.Metrics = NewMetrics(nil)
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	return &Reconciler{
		options:    options,
		registries: &registries{clock: options.Clock, jitter: options.Jitter, hosts: map[string]*backoff{}},
		pods:       map[types.NamespacedName]*memory{},
		observed:   map[types.UID]struct{}{},
	}
}

// SetupWithManager adds the controller to a manager whose cache holds pods as
// CacheOptions says.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	if err := followEverywhere(m.GetCache()); err != nil {
		return err
	}
	waits := func(o client.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && r.gated(pod)
	}
	return builder.ControllerManagedBy(m).
		Named("placement").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return waits(e.Object) },
			// The last sight of a pod that lost its gate lets us forget it.
			UpdateFunc:  func(e event.UpdateEvent) bool { return waits(e.ObjectOld) || waits(e.ObjectNew) },
			DeleteFunc:  func(e event.DeleteEvent) bool { return waits(e.Object) },
			GenericFunc: func(event.GenericEvent) bool { return true },
		})).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.queue = queue
			return nil
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: r.options.Workers,
			// Who acts is for Options.Acts to say: a replica may before it leads.
			NeedLeaderElection: ptr.To(false),
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, 30*time.Second),
			NewQueue:           newQueue,
		}).
		Complete(r)
}

// newQueue makes the queue of client-go. The priority queue, which is the default of
// controller-runtime 0.24, may be about to hand an item to a worker that leaves because
// the queue is shut down: it then waits for ever with its locks held, the other workers
// with it, and the Lease is not given up before the manager's grace has passed.
func newQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})
}

func (r *Reconciler) gated(pod *corev1.Pod) bool {
	gate := r.options.Placement().Gate
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gate })
}

// Reevaluate looks again at every gated pod: the configuration, the mirrors or
// the policy have changed, and what was held against registries is forgotten.
func (r *Reconciler) Reevaluate(ctx context.Context) error {
	r.registries.reset()
	var pods corev1.PodList
	if err := r.options.Reader.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing gated pods: %w", err)
	}
	var names []types.NamespacedName
	for i := range pods.Items {
		if r.gated(&pods.Items[i]) {
			names = append(names, client.ObjectKeyFromObject(&pods.Items[i]))
		}
	}
	r.enqueue(names)
	return nil
}

func (r *Reconciler) enqueue(names []types.NamespacedName) {
	r.mu.Lock()
	queue := r.queue
	r.mu.Unlock()
	if queue == nil {
		return
	}
	for _, name := range names {
		queue.Add(reconcile.Request{NamespacedName: name})
	}
}

// Reconcile brings one gated pod a step further: it is freed by one patch, or
// looked at again later. An error is for what may pass; the queue backs off.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	err := r.options.Reader.Get(ctx, request.NamespacedName, &pod)
	switch {
	case apierrors.IsNotFound(err):
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading pod %s: %w", request.NamespacedName, err)
	case !r.gated(&pod) || pod.DeletionTimestamp != nil:
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	case !r.acts():
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	known := r.remember(request.NamespacedName, pod.UID)
	if known.written == pod.ResourceVersion {
		return reconcile.Result{}, nil // the informer has not seen our own patch yet
	}
	wait, err := r.step(ctx, &pod, known)
	if !apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	// Somebody else has written in between: decide again, from fresh.
	r.options.Metrics.failures.WithLabelValues("conflict").Inc()
	live, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var fresh corev1.Pod
	switch err := r.options.Live.Get(live, request.NamespacedName, &fresh); {
	case apierrors.IsNotFound(err):
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading pod %s after a conflict: %w", request.NamespacedName, err)
	case fresh.UID != pod.UID || !r.gated(&fresh) || fresh.DeletionTimestamp != nil:
		return reconcile.Result{}, nil // its event is on the way
	}
	slim, err := Strip(&fresh)
	if err != nil {
		return reconcile.Result{}, err
	}
	wait, err = r.step(ctx, slim.(*corev1.Pod), known) //nolint:forcetypeassert // what Strip gives for a pod
	return reconcile.Result{RequeueAfter: wait}, err
}

// step asks, decides and writes. It gives the time after which a held pod is
// looked at again.
func (r *Reconciler) step(ctx context.Context, pod *corev1.Pod, known *memory) (time.Duration, error) {
	name := client.ObjectKeyFromObject(pod)
	namespace := r.namespace(ctx, pod.Namespace)
	placement, err := r.options.Placement().ForNamespace(namespace.Annotations)
	if err != nil {
		r.options.Log.Warn("an annotation of a namespace is without effect", "namespace", pod.Namespace, "error", err)
	}
	queries, err := rego.Queries(pod.Namespace, &pod.Spec)
	if err != nil {
		return 0, fmt.Errorf("pod %s: %w", name, err)
	}
	began := r.options.Clock.Now()
	answers, wait := r.ask(ctx, name, queries, known)
	r.took("ask", began)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	in, err := r.input(ctx, pod, namespace, placement, answers, known)
	if err != nil {
		return 0, err
	}
	began = r.options.Clock.Now()
	decision, err := r.options.Evaluator.Decide(ctx, in)
	r.took("decide", began)
	if err != nil {
		r.options.Metrics.failures.WithLabelValues("decision").Inc()
		return 0, fmt.Errorf("deciding about pod %s: %w", name, err)
	}
	if placement.Mode == config.ModeObserve {
		return 0, r.observe(ctx, pod, placement, decision, known)
	}
	if decision.Action == rego.ActionHold {
		r.hold(name, known, true)
		r.say(pod, known, decision)
		deadline := pod.CreationTimestamp.Add(time.Duration(placement.HoldDeadline)).Sub(r.options.Clock.Now())
		return max(min(wait, deadline), 10*time.Millisecond), nil
	}
	err = r.write(ctx, pod, decision.Patch, known)
	if apierrors.IsInvalid(err) {
		// Never hold a pod for ever over a patch that the API server refuses.
		r.options.Metrics.failures.WithLabelValues("invalid").Inc()
		r.options.Log.Error("the API server refuses a placement; the pod is released", "pod", name, "reason", decision.Reason, "error", err)
		decision.Action, decision.Reason = rego.ActionRelease, rego.ReasonPolicyFailed
		decision.Message = "the API server refused the placement, the pod is released unchanged: " + err.Error()
		err = r.write(ctx, pod, rego.RemoveGate(pod.Spec.SchedulingGates, placement.Gate), known)
	}
	switch {
	case apierrors.IsNotFound(err):
		r.forget(name)
		return 0, nil
	case err != nil:
		return 0, err
	}
	r.freed(pod, known, string(decision.Action), decision)
	r.say(pod, known, decision)
	return 0, nil
}

// observe records a decision and changes nothing, but for the gate: in this mode
// nobody else would take it off.
func (r *Reconciler) observe(ctx context.Context, pod *corev1.Pod, placement config.Placement, decision rego.Decision, known *memory) error {
	err := r.write(ctx, pod, rego.RemoveGate(pod.Spec.SchedulingGates, placement.Gate), known)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	r.freed(pod, known, "observe", decision)
	if r.firstOfItsOwner(pod) {
		r.options.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Observed", "Place", "%s",
			note(fmt.Sprintf("would %s (%s): %s", decision.Action, decision.Reason, decision.Message)))
	}
	return nil
}

// maxObserved bounds the owners that are remembered.
const maxObserved = 10000

func (r *Reconciler) firstOfItsOwner(pod *corev1.Pod) bool {
	owner := pod.UID
	if controller := metav1.GetControllerOf(pod); controller != nil {
		owner = controller.UID
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, said := r.observed[owner]; said {
		return false
	}
	if len(r.observed) >= maxObserved {
		clear(r.observed)
	}
	r.observed[owner] = struct{}{}
	return true
}

// ask gives an answer for each query, and the time after which the open ones are
// worth asking again. A registry that backs off is not asked; its last error stands.
func (r *Reconciler) ask(ctx context.Context, pod types.NamespacedName, queries []provider.Query, known *memory) ([]provider.Answer, time.Duration) {
	answers := make([]provider.Answer, len(queries))
	wait := backoffMax
	var asked []provider.Query
	var at []int
	hosts := make([]string, len(queries))
	probing := map[string]bool{} // hosts that this pod may ask
	for i, query := range queries {
		if ref, err := imageref.Parse(query.Image); err == nil {
			hosts[i] = ref.Registry()
		}
		if !probing[hosts[i]] {
			if last, pause := r.registries.ask(hosts[i], pod); last != nil {
				answers[i] = provider.Answer{Image: query.Image, Err: last}
				wait = min(wait, pause)
				continue
			}
			probing[hosts[i]] = true
		}
		// A second question is meant: an answer from before would be no second one.
		query.Revalidate = query.Revalidate || known.missed[query.Image].times > 0
		asked, at = append(asked, query), append(at, i)
	}
	if len(asked) == 0 {
		return answers, wait
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for j, answer := range r.options.Inspector.Inspect(asking, asked) {
		i := at[j]
		answers[i] = answer
		switch {
		case ctx.Err() != nil: // we are told to end; nobody failed
		case answer.Err == nil || !failing(answer.Err):
			r.enqueue(r.registries.answered(hosts[i]))
		default:
			wait = min(wait, r.registries.failed(hosts[i], pod, answer.Err))
		}
		if answer.Err != nil && (answer.Err.Class == provider.ClassNotFound || answer.Err.Class == provider.ClassUnauthorized) {
			now, miss := r.options.Clock.Now(), known.missed[answer.Image]
			if miss.times == 0 || now.Sub(miss.last) >= secondAsk {
				miss = misses{times: miss.times + 1, last: now}
				known.missed[answer.Image] = miss
			}
			wait = min(wait, miss.last.Add(secondAsk).Sub(now)+r.options.Jitter(secondAsk))
		}
	}
	return answers, wait
}

func (r *Reconciler) input(ctx context.Context, pod *corev1.Pod, namespace *metav1.PartialObjectMetadata, placement config.Placement, answers []provider.Answer, known *memory) (rego.Input, error) {
	now := r.options.Clock.Now()
	images := rego.Answers(&pod.Spec, answers, now)
	for ref, miss := range known.missed {
		if image, ok := images[ref]; ok && miss.times > 1 && image.Status == rego.StatusUnknown && image.Class.Retryable() {
			images[ref] = image.Settled()
		}
	}
	if placement.Pin && r.options.Pin != nil {
		r.pin(ctx, images)
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		return rego.Input{}, fmt.Errorf("encoding pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	about, err := json.Marshal(namespace)
	if err != nil {
		return rego.Input{}, fmt.Errorf("encoding namespace %s: %w", pod.Namespace, err)
	}
	settings, err := placement.JSON()
	if err != nil {
		return rego.Input{}, err
	}
	return rego.Input{
		Phase: rego.PhaseResolve, Pod: raw, Namespace: about, Images: images, Cluster: r.options.Cluster(),
		ControllerAlive: true, Config: settings,
		HeldSeconds: max(0, now.Sub(pod.CreationTimestamp.Time).Seconds()),
	}, nil
}

func (r *Reconciler) pin(ctx context.Context, images map[string]rego.Image) {
	var refs []string
	for ref, image := range images {
		if image.Status == rego.StatusKnown {
			refs = append(refs, ref)
		}
	}
	slices.Sort(refs)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for ref, pinned := range r.options.Pin(ctx, refs) {
		if image, ok := images[ref]; ok && pinned != ref {
			image.Pinned = pinned
			images[ref] = image
		}
	}
}

// namespace gives the labels and annotations of a namespace; the name alone when
// the informer does not know it.
func (r *Reconciler) namespace(ctx context.Context, name string) *metav1.PartialObjectMetadata {
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	if err := r.options.Reader.Get(ctx, types.NamespacedName{Name: name}, found); err != nil {
		found = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if !apierrors.IsNotFound(err) {
			r.options.Log.Warn("could not read a namespace", "namespace", name, "error", err)
		}
	}
	return found
}

// write sends one JSON patch, guarded by the resourceVersion that the decision was
// made on: a pod that has changed since gives a conflict. A patch that has begun is
// seen to its end when we are told to stop: one that is cut off may have been
// applied or not, and the manager waits for us before it gives up its Lease.
func (r *Reconciler) write(ctx context.Context, pod *corev1.Pod, patch []rego.Operation, known *memory) error {
	guarded := append([]rego.Operation{{Op: "replace", Path: "/metadata/resourceVersion", Value: pod.ResourceVersion}}, patch...)
	raw, err := json.Marshal(guarded)
	if err != nil {
		return fmt.Errorf("encoding the patch of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	defer r.took("write", r.options.Clock.Now())
	err = r.options.Writer.Patch(ctx, target, client.RawPatch(types.JSONPatchType, raw))
	if err == nil {
		r.mu.Lock()
		known.written = pod.ResourceVersion
		r.mu.Unlock()
		return nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) && !errors.Is(err, context.Canceled) {
		r.options.Metrics.failures.WithLabelValues("error").Inc()
	}
	return fmt.Errorf("patching pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// took counts the time that a step of a worker needed.
func (r *Reconciler) took(step string, began time.Time) {
	r.options.Metrics.steps.WithLabelValues(step).Observe(max(0, r.options.Clock.Since(began).Seconds()))
}

// freed counts a pod that was let go.
func (r *Reconciler) freed(pod *corev1.Pod, known *memory, action string, decision rego.Decision) {
	r.hold(client.ObjectKeyFromObject(pod), known, false)
	r.options.Metrics.pods.WithLabelValues(action, reasonLabel(decision.Reason)).Inc()
	r.options.Metrics.seconds.WithLabelValues(action).Observe(max(0, r.options.Clock.Since(pod.CreationTimestamp.Time).Seconds()))
	r.options.Log.Debug("let a pod go", "namespace", pod.Namespace, "pod", pod.Name, "action", action, "reason", decision.Reason)
}

// say records an event for what a person should know, once. A pod that is placed
// as usual shows it in its annotation.
func (r *Reconciler) say(pod *corev1.Pod, known *memory, decision rego.Decision) {
	kind, said := corev1.EventTypeWarning, decision.Reason+": "+decision.Message
	if decision.Action == rego.ActionHold {
		if r.options.Clock.Since(pod.CreationTimestamp.Time) < quietHold {
			return
		}
		kind, said = corev1.EventTypeNormal, decision.Reason // its message changes with every answer
	} else if decision.Outcome() == rego.OutcomeSettled && decision.Reason != rego.ReasonFallbackArchitecture {
		return
	}
	r.mu.Lock()
	repeated := known.said == said
	known.said = said
	r.mu.Unlock()
	if repeated {
		return
	}
	r.options.Recorder.Eventf(pod, nil, kind, decision.Reason, "Place", "%s", note(decision.Message))
}

// note cuts a message to what an Event takes: 1024 bytes.
func note(message string) string {
	const limit = 1000
	if len(message) <= limit {
		return message
	}
	cut := limit
	for cut > 0 && message[cut]&0xC0 == 0x80 {
		cut--
	}
	return message[:cut] + "..."
}

func (r *Reconciler) remember(name types.NamespacedName, uid types.UID) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.pods[name]
	if known == nil || known.uid != uid {
		if known != nil && known.holds {
			r.options.Metrics.holding.Dec()
		}
		known = &memory{uid: uid, missed: map[string]misses{}}
		r.pods[name] = known
	}
	return known
}

func (r *Reconciler) hold(name types.NamespacedName, known *memory, holds bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known.holds != holds && r.pods[name] == known {
		known.holds = holds
		if holds {
			r.options.Metrics.holding.Inc()
		} else {
			r.options.Metrics.holding.Dec()
		}
	}
}

func (r *Reconciler) forget(name types.NamespacedName) {
	r.mu.Lock()
	if known := r.pods[name]; known != nil {
		if known.holds {
			r.options.Metrics.holding.Dec()
		}
		delete(r.pods, name)
	}
	r.mu.Unlock()
	r.registries.forget(name)
}
