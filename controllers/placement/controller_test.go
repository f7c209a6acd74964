package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/rego"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// builtin compiles the policy once for all tests.
var builtin = sync.OnceValues(func() (*rego.Evaluator, error) { return rego.New(context.Background(), rego.Options{}) })

// world is two registries, an API server and the controller between them.
type world struct {
	*Reconciler
	good, bad *registrytest.Registry
	api       client.WithWatch
	clock     *clocktesting.FakeClock
	placed    config.Placement
	recorder  *events.FakeRecorder

	mu      sync.Mutex
	patches []string
	refuse  func(pod string) error // before a patch is applied
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		good: registrytest.New(), bad: registrytest.New(),
		clock:    clocktesting.NewFakeClock(time.Now().Truncate(time.Second)),
		placed:   config.Default().Placement,
		recorder: events.NewFakeRecorder(100),
	}
	t.Cleanup(w.good.Close)
	t.Cleanup(w.bad.Close)
	w.good.PutIndex("both", "v1", "linux/amd64", "linux/arm64")
	w.good.PutImage("amd64", "v1", "linux/amd64")
	w.good.PutImage("arm64", "v1", "linux/arm64")
	w.bad.PutImage("amd64", "v1", "linux/amd64")
	connections, err := reach.New(reach.Config{PlainHTTPHosts: []string{w.good.Host(), w.bad.Host()}})
	if err != nil {
		t.Fatal(err)
	}
	inspector, err := registry.New(registry.Options{Reach: connections, Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inspector.Close() })
	w.api = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			raw, err := p.Data(o)
			if err != nil {
				return err
			}
			w.mu.Lock()
			w.patches = append(w.patches, string(raw))
			refuse := w.refuse
			w.mu.Unlock()
			if refuse != nil {
				if err := refuse(o.GetName()); err != nil {
					return err
				}
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
	}).Build()
	evaluator, err := builtin()
	if err != nil {
		t.Fatal(err)
	}
	w.Reconciler = New(Options{
		Reader: w.api, Live: w.api, Writer: w.api, Inspector: inspector, Evaluator: evaluator, Recorder: w.recorder,
		Placement: func() config.Placement { return w.placed }, Clock: w.clock,
		Jitter: func(time.Duration) time.Duration { return 0 },
	})
	w.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(w.queue.ShutDown)
	return w
}

const gate = "archkeeper.io/architecture"

// pod makes a gated pod, one container for each image; G/ and B/ stand for the registries.
func (w *world) pod(t *testing.T, name, spec string, images ...string) types.NamespacedName {
	t.Helper()
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	pod.Name, pod.Namespace, pod.UID = name, "shop", types.UID("uid-"+name)
	pod.CreationTimestamp = metav1.NewTime(w.clock.Now())
	pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
	for i, image := range images {
		image = strings.NewReplacer("G/", w.good.Host()+"/", "B/", w.bad.Host()+"/").Replace(image)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: image})
	}
	if err := w.api.Create(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	return client.ObjectKeyFromObject(&pod)
}

func (w *world) reconcile(t *testing.T, pod types.NamespacedName) time.Duration {
	t.Helper()
	result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: pod})
	if err != nil {
		t.Fatal(err)
	}
	return result.RequeueAfter
}

func (w *world) get(t *testing.T, name types.NamespacedName) corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := w.api.Get(t.Context(), name, &pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// state writes a pod's gates and required architectures in short.
func state(pod corev1.Pod) string {
	var words []string
	for _, g := range pod.Spec.SchedulingGates {
		words = append(words, g.Name)
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				words = append(words, strings.TrimPrefix(e.Key, "kubernetes.io/")+"="+strings.Join(e.Values, ","))
			}
		}
	}
	return strings.Join(words, " ")
}

func (w *world) events() []string {
	var all []string
	for {
		select {
		case e := <-w.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func TestAGatedPodIsPlacedByOneGuardedPatch(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "schedulingGates: [{name: other}]", "G/both:v1", "G/arm64:v1")
	before := w.get(t, name)
	if wait := w.reconcile(t, name); wait != 0 {
		t.Errorf("looked at again after %s", wait)
	}
	after := w.get(t, name)
	if got, want := state(after), "other arch=arm64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if after.Annotations["archkeeper.io/architectures"] != "arm64" || after.Labels["architecture.archkeeper.io/arm64"] != "supported" {
		t.Errorf("marks %v %v", after.Annotations, after.Labels)
	}
	if len(w.patches) != 1 || !strings.HasPrefix(w.patches[0], fmt.Sprintf(`[{"op":"replace","path":"/metadata/resourceVersion","value":%q},`, before.ResourceVersion)) {
		t.Errorf("patches %q", w.patches)
	}
	w.reconcile(t, name)
	if len(w.patches) != 1 {
		t.Errorf("%d patches", len(w.patches))
	}
	if got := w.events(); len(got) > 0 {
		t.Errorf("events %q", got)
	}
	if len(w.pods) != 0 {
		t.Errorf("%d pods remembered that wait for nothing", len(w.pods))
	}
}

// stale gives a pod as it was, as an informer does that is behind.
type stale struct {
	client.Reader
	pod *corev1.Pod
}

func (s stale) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if pod, ok := o.(*corev1.Pod); ok {
		s.pod.DeepCopyInto(pod)
		return nil
	}
	return s.Reader.Get(ctx, key, o, opts...)
}

func TestAnInformerThatIsBehindCausesNoSecondWrite(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/both:v1")
	before := w.get(t, name)
	w.options.Reader = stale{w.api, &before}
	w.reconcile(t, name)
	w.reconcile(t, name)
	if len(w.patches) != 1 {
		t.Errorf("%d patches", len(w.patches))
	}
}

func TestAPodThatChangedInBetweenIsDecidedFromFresh(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/both:v1")
	before := w.get(t, name)
	changed := before.DeepCopy()
	changed.Spec.SchedulingGates = append([]corev1.PodSchedulingGate{{Name: "other"}}, changed.Spec.SchedulingGates...)
	changed.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}},
	}}}
	if err := w.api.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	w.options.Reader = stale{w.api, &before}
	w.reconcile(t, name)
	if got, want := state(w.get(t, name)), "other zone=a arch=amd64,arm64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if len(w.patches) != 2 {
		t.Errorf("%d patches", len(w.patches))
	}
}

func TestAPatchThatIsRefusedReleasesThePod(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/both:v1")
	times := 0
	w.refuse = func(string) error {
		if times++; times == 1 {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil)
		}
		return nil
	}
	w.reconcile(t, name)
	if got := state(w.get(t, name)); got != "" {
		t.Errorf("%q", got)
	}
	if got := w.events(); len(got) != 1 || !strings.Contains(got[0], "refused") {
		t.Errorf("events %q", got)
	}
}

func TestAPatchThatHasBegunIsSeenToItsEnd(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(t, "web", "", "G/arm64:v1")
	ctx, stop := context.WithCancel(t.Context())
	w.refuse = func(string) error {
		stop() // the leader is told to end while its request is under way
		return nil
	}
	if _, err := w.Reconcile(ctx, reconcile.Request{NamespacedName: pod}); err != nil {
		t.Error(err)
	}
	if got, want := state(w.get(t, pod)), "arch=arm64"; got != want {
		t.Errorf("the pod is %q, want %q", got, want)
	}
	pod = w.pod(t, "next", "", "G/arm64:v1")
	if _, err := w.Reconcile(ctx, reconcile.Request{NamespacedName: pod}); !errors.Is(err, context.Canceled) {
		t.Errorf("one that has not begun: %v", err)
	}
	if got := state(w.get(t, pod)); got != gate {
		t.Errorf("the pod is %q", got)
	}
}

func TestWhatMayPassIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/both:v1")
	w.refuse = func(string) error { return errors.New("the API server is away") }
	if _, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: name}); err == nil {
		t.Error("no error, and so no second try")
	}
	w.refuse = nil
	w.reconcile(t, name)
	if got, want := state(w.get(t, name)), "arch=amd64,arm64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAMissingImageIsAskedForOnceMoreAndThenReleased(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/nothing:v1", "G/both:v1")
	if wait := w.reconcile(t, name); wait <= 0 || wait > 5*time.Second {
		t.Errorf("asked again after %s", wait)
	}
	if got := state(w.get(t, name)); got != gate {
		t.Errorf("%q", got)
	}
	asked := w.good.Count(func(r registrytest.Request) bool { return strings.Contains(r.Path, "/nothing/") })
	w.clock.SetTime(w.clock.Now().Add(2 * time.Second))
	w.reconcile(t, name)
	if again := w.good.Count(func(r registrytest.Request) bool { return strings.Contains(r.Path, "/nothing/") }); again == asked {
		t.Error("the registry was not asked again")
	}
	if got := state(w.get(t, name)); got != "" {
		t.Errorf("%q", got)
	}
	if got := w.events(); len(got) != 1 || !strings.Contains(got[0], "ImageUnusable") || !strings.Contains(got[0], "nothing:v1: not-found") || !strings.Contains(got[0], w.good.Host()) {
		t.Errorf("events %q", got)
	}
}

func TestAnImageThatTurnsUpIsPlaced(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/late:v1")
	w.reconcile(t, name)
	w.good.PutImage("late", "v1", "linux/arm64")
	w.reconcile(t, name)
	if got, want := state(w.get(t, name)), "arch=arm64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestARegistryThatFailsHoldsItsPodsAndNoOthers(t *testing.T) {
	w := newWorld(t)
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusServiceUnavailable))
	var stuck []types.NamespacedName
	for i := range 20 {
		stuck = append(stuck, w.pod(t, fmt.Sprintf("stuck-%d", i), "", "B/amd64:v1"))
	}
	for _, name := range stuck {
		if wait := w.reconcile(t, name); wait <= 0 || wait > backoffMax {
			t.Errorf("looked at again after %s", wait)
		}
	}
	first := len(w.bad.Requests())
	for range 5 {
		for _, name := range stuck {
			w.reconcile(t, name)
		}
	}
	if again := len(w.bad.Requests()); again != first {
		t.Errorf("a registry that backs off was asked %d times more", again-first)
	}
	healthy := w.pod(t, "healthy", "", "G/both:v1")
	w.reconcile(t, healthy)
	if got, want := state(w.get(t, healthy)), "arch=amd64,arm64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, name := range stuck {
		if got := state(w.get(t, name)); got != gate {
			t.Errorf("%s is %q", name, got)
		}
	}

	// It comes back: the pod that probes it wakes the others.
	w.bad.Misbehave()
	w.clock.SetTime(w.clock.Now().Add(30 * time.Second))
	for i := 0; state(w.get(t, stuck[0])) == gate; i++ {
		if i > 60 { // the pod's deadline is after 90
			t.Fatal("the registry came back and nobody noticed")
		}
		w.reconcile(t, stuck[0])
		w.clock.SetTime(w.clock.Now().Add(time.Second)) // the inspector has a back-off of its own
	}
	if got := w.queue.Len(); got < len(stuck)-1 {
		t.Errorf("%d pods woken", got)
	}
	for w.queue.Len() > 0 {
		request, _ := w.queue.Get()
		w.reconcile(t, request.NamespacedName)
		w.queue.Done(request)
	}
	for _, name := range stuck {
		if got, want := state(w.get(t, name)), "arch=amd64"; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestTheDeadlineCountsFromThePodsCreation(t *testing.T) {
	for name, tc := range map[string]struct {
		fallback, want, event string
	}{
		"released unchanged":           {"", "", "DeadlineExceeded"},
		"placed on the fallback":       {"arm64", "arch=arm64", "FallbackArchitecture"},
		"the fallback does not fit it": {"s390x", "arch=s390x", "FallbackArchitecture"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
			w.placed.FallbackArchitecture = tc.fallback
			pod := w.pod(t, "p", "", "B/amd64:v1")
			w.clock.SetTime(w.clock.Now().Add(119 * time.Second))
			if wait := w.reconcile(t, pod); wait > time.Second {
				t.Errorf("the deadline is in a second, looked at again after %s", wait)
			}
			w.clock.SetTime(w.clock.Now().Add(time.Second))
			w.reconcile(t, pod)
			if got := state(w.get(t, pod)); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			got := w.events()
			if len(got) != 2 || !strings.Contains(got[0], "Normal ImagesUnknown") || !strings.Contains(got[1], "Warning "+tc.event) || !strings.Contains(got[1], "rate-limited") {
				t.Errorf("events %q", got)
			}
		})
	}
}

func TestAHeldPodIsSaidOnce(t *testing.T) {
	w := newWorld(t)
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	pod := w.pod(t, "p", "", "B/amd64:v1")
	for range 10 {
		w.reconcile(t, pod)
		w.clock.SetTime(w.clock.Now().Add(5 * time.Second))
	}
	if got := w.events(); len(got) != 1 {
		t.Errorf("events %q", got)
	}
}

func TestWhatIsNotOursIsReleasedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	pod := w.pod(t, "p", "nodeSelector: {node-role.kubernetes.io/control-plane: ''}", "B/amd64:v1")
	w.reconcile(t, pod)
	if got := state(w.get(t, pod)); got != "" {
		t.Errorf("%q", got)
	}
	if got := w.events(); len(got) != 0 {
		t.Errorf("events %q", got)
	}
}

func TestObserveTakesTheGateOffAndSaysSoOnceAnOwner(t *testing.T) {
	w := newWorld(t)
	w.placed.Mode = config.ModeObserve
	for i := range 3 {
		name := w.pod(t, fmt.Sprintf("p-%d", i), "", "G/amd64:v1", "G/arm64:v1")
		pod := w.get(t, name)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r-1", Controller: ptr.To(true)}}
		if err := w.api.Update(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
		w.reconcile(t, name)
		if got := state(w.get(t, name)); got != "" {
			t.Errorf("%q", got)
		}
	}
	if got := w.events(); len(got) != 1 || !strings.Contains(got[0], "would place (NoCommonArchitecture)") {
		t.Errorf("events %q", got)
	}
}

func TestANamespaceMayOverride(t *testing.T) {
	w := newWorld(t)
	if err := w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "shop", Annotations: map[string]string{config.AnnotationHoldDeadline: "1s"},
	}}); err != nil {
		t.Fatal(err)
	}
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	pod := w.pod(t, "p", "", "B/amd64:v1")
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	w.reconcile(t, pod)
	if got := state(w.get(t, pod)); got != "" {
		t.Errorf("%q", got)
	}
}

func TestAChangedConfigurationIsHeardByHeldPods(t *testing.T) {
	w := newWorld(t)
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	held := w.pod(t, "p", "", "B/amd64:v1")
	w.pod(t, "q", "", "B/amd64:v1")
	w.reconcile(t, held)
	w.placed.ExcludedNamespaces = []string{"shop"}
	if err := w.Reevaluate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.queue.Len(); got != 2 {
		t.Errorf("%d pods queued", got)
	}
	w.reconcile(t, held)
	if got := state(w.get(t, held)); got != "" {
		t.Errorf("%q", got)
	}
}

func TestPodsThatGoAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.bad.Behave("", "/v2/", registrytest.Status(http.StatusTooManyRequests))
	for i := range 5 {
		name := w.pod(t, fmt.Sprintf("p-%d", i), "", "B/amd64:v1")
		w.reconcile(t, name)
		pod := w.get(t, name)
		if err := w.api.Delete(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
		w.reconcile(t, name)
	}
	if len(w.pods) != 0 {
		t.Errorf("%d pods remembered", len(w.pods))
	}
	for host, b := range w.registries.hosts {
		if len(b.waiting) != 0 {
			t.Errorf("%d pods wait for %s", len(b.waiting), host)
		}
	}
}

func TestAPodOfTheSameNameIsAnotherPod(t *testing.T) {
	w := newWorld(t)
	name := w.pod(t, "p", "", "G/nothing:v1")
	w.reconcile(t, name)
	pod := w.get(t, name)
	if err := w.api.Delete(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	pod.ResourceVersion, pod.UID = "", "another"
	if err := w.api.Create(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	w.reconcile(t, name)
	if got := state(w.get(t, name)); got != gate {
		t.Errorf("%q: the other pod's first try was taken for this one's", got)
	}
}

// What the controller decides about a stripped pod is what it would decide about
// the whole one, patch bytes included.
func TestStrippingChangesNoDecision(t *testing.T) {
	evaluator, err := builtin()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"annotations of others": "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}', a: b}}",
		"labels of others":      "metadata: {labels: {a: b, architecture.archkeeper.io/s390x: supported}}",
		"everything": `
metadata: {labels: {a: b}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: u, controller: true}], managedFields: [{manager: m}]}
spec:
  os: {name: linux}
  tolerations: [{key: a, operator: Exists}]
  nodeSelector: {disk: ssd}
  volumes: [{name: e, emptyDir: {}}, {name: v, image: {reference: v}}]
  initContainers: [{name: i, image: i, command: [x]}]
  affinity: {podAffinity: {}, nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}, {matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}
status: {phase: Pending}`,
	} {
		t.Run(name, func(t *testing.T) {
			var pod corev1.Pod
			if err := yaml.UnmarshalStrict([]byte(text), &pod); err != nil {
				t.Fatal(err)
			}
			pod.APIVersion, pod.Kind, pod.Name, pod.Namespace = "v1", "Pod", "p", "shop"
			pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "a", Args: []string{"x"}, ImagePullPolicy: corev1.PullAlways}}
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}, {Name: gate}}
			known := rego.Image{Status: rego.StatusKnown, Architectures: []string{"amd64"}}
			decide := func(pod *corev1.Pod) string {
				raw, err := json.Marshal(pod)
				if err != nil {
					t.Fatal(err)
				}
				d, err := evaluator.Decide(t.Context(), rego.Input{Phase: rego.PhaseResolve, Pod: raw, Images: map[string]rego.Image{"a": known, "i": known, "v": known}})
				if err != nil {
					t.Fatal(err)
				}
				text, err := json.Marshal(d)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			whole := decide(&pod)
			slim, err := Strip(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if got := decide(slim.(*corev1.Pod)); got != whole {
				t.Errorf("whole    %s\nstripped %s", whole, got)
			}
		})
	}
}

func TestAPodWithoutGatesIsStrippedToItsName(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u", ResourceVersion: "1", Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: make([]corev1.Container, 100)}}
	slim, err := Strip(pod)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(slim)
	if err != nil || len(raw) > 200 {
		t.Errorf("%d bytes: %s, %v", len(raw), raw, err)
	}
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	r := &registries{clock: clock, jitter: func(time.Duration) time.Duration { return 0 }, hosts: map[string]*backoff{}}
	pod := types.NamespacedName{Name: "p"}
	failure := &rateLimited
	var pauses []time.Duration
	for range 8 {
		if last, wait := r.ask("h", pod); last != nil {
			t.Fatalf("not asked, wait %s", wait)
		}
		pauses = append(pauses, r.failed("h", pod, failure))
		r.failed("h", pod, failure) // under way at the same time: counts once
		if last, wait := r.ask("h", pod); last != failure || wait <= 0 {
			t.Errorf("asked while it backs off, wait %s", wait)
		}
		clock.SetTime(r.hosts["h"].until)
	}
	want := []time.Duration{
		250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
		10 * time.Second, 10 * time.Second,
	}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	// One pod probes, the others wait for it.
	if last, _ := r.ask("h", pod); last != nil {
		t.Error("nobody probes")
	}
	if last, wait := r.ask("h", types.NamespacedName{Name: "q"}); last == nil || wait > probeTime {
		t.Errorf("two probe at once, wait %s", wait)
	}
	clock.SetTime(clock.Now().Add(probeTime))
	if last, _ := r.ask("h", types.NamespacedName{Name: "q"}); last != nil {
		t.Error("a probe that never came back keeps others away for ever")
	}
	if woken := r.answered("h"); len(woken) != 2 {
		t.Errorf("%v woken", woken)
	}
	if last, _ := r.ask("h", pod); last != nil {
		t.Error("an answer is not forgiveness")
	}
	for i := range 2 * maxRegistries {
		r.failed(fmt.Sprintf("h%d", i), pod, failure)
	}
	if len(r.hosts) > maxRegistries {
		t.Errorf("%d registries remembered", len(r.hosts))
	}
}
