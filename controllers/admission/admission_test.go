package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/controllers/admission"
	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/rego"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// world is a registry, an inspector that asks it, and the handler between them and
// an API server that we play.
type world struct {
	*registrytest.Registry
	options admission.Options
	placed  config.Placement
	alive   bool
}

// builtin compiles the policy once for all tests.
var builtin = sync.OnceValues(func() (*rego.Evaluator, error) { return rego.New(context.Background(), rego.Options{}) })

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{Registry: registrytest.New(), alive: true, placed: config.Default().Placement}
	t.Cleanup(w.Close)
	w.PutIndex("both", "v1", "linux/amd64", "linux/arm64")
	w.PutImage("amd64", "v1", "linux/amd64")
	w.PutImage("arm64", "v1", "linux/arm64")
	w.Behave("", "/v2/busy/", registrytest.Status(http.StatusTooManyRequests))
	connections, err := reach.New(reach.Config{PlainHTTPHosts: []string{w.Host()}})
	if err != nil {
		t.Fatal(err)
	}
	inspector, err := registry.New(registry.Options{Reach: connections})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inspector.Close() })
	evaluator, err := builtin()
	if err != nil {
		t.Fatal(err)
	}
	w.options = admission.Options{
		Inspector: inspector, Evaluator: evaluator, Budget: 20 * time.Second,
		Placement: func() config.Placement { return w.placed },
		Alive:     func() bool { return w.alive },
	}
	return w
}

// pod is a pod as YAML; R/ stands for the registry.
func (w *world) pod(t testing.TB, text string) []byte {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte("apiVersion: v1\nkind: Pod\n" + strings.ReplaceAll(text, "R/", w.Host()+"/")))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func review(pod []byte, change ...func(*admissionv1.AdmissionRequest)) []byte {
	request := &admissionv1.AdmissionRequest{
		UID: "u-1", Operation: admissionv1.Create, Namespace: "shop",
		Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Object:   runtime.RawExtension{Raw: pod},
	}
	for _, f := range change {
		f(request)
	}
	raw, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	})
	if err != nil {
		panic(err)
	}
	return raw
}

// admit plays the API server: it posts the review and applies the patch.
func (w *world) admit(t *testing.T, pod []byte, change ...func(*admissionv1.AdmissionRequest)) (corev1.Pod, []byte, *admissionv1.AdmissionResponse) {
	t.Helper()
	recorder := httptest.NewRecorder()
	admission.New(w.options).ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/v1/admit/token?timeout=30s", bytes.NewReader(review(pod, change...))))
	if recorder.Code != http.StatusOK {
		t.Fatalf("status %d: %s", recorder.Code, recorder.Body)
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Kind != "AdmissionReview" || answer.Response == nil || answer.Response.UID != "u-1" || !answer.Response.Allowed {
		t.Fatalf("not an answer to the review: %s", recorder.Body)
	}
	patched := pod
	if len(answer.Response.Patch) > 0 {
		if answer.Response.PatchType == nil || *answer.Response.PatchType != admissionv1.PatchTypeJSONPatch {
			t.Error("a patch without its type")
		}
		patch, err := jsonpatch.DecodePatch(answer.Response.Patch)
		if err != nil {
			t.Fatal(err)
		}
		if patched, err = patch.Apply(pod); err != nil {
			t.Fatalf("%v: %s", err, answer.Response.Patch)
		}
	}
	var after corev1.Pod
	if err := json.Unmarshal(patched, &after); err != nil {
		t.Fatal(err)
	}
	return after, patched, answer.Response
}

func gates(pod corev1.Pod) string {
	var names []string
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return strings.Join(names, " ")
}

func architectures(pod corev1.Pod) string {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	var words []string
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			words = append(words, strings.Join(e.Values, ","))
		}
	}
	return strings.Join(words, " ")
}

const ours = "archkeeper.io/architecture"

func TestAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		pod     string
		config  func(*config.Placement)
		dead    bool
		gates   string
		archs   string
		decided bool
		same    bool // the pod is not changed at all
	}{
		"known images are placed at once":                          {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/both:v1}]}", archs: "amd64,arm64", decided: true},
		"a gate of Gatekeeper's comes off again":                   {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/both:v1}], schedulingGates: [{name: archkeeper.io/architecture}]}", archs: "amd64,arm64", decided: true},
		"a gate of others stays":                                   {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/amd64:v1}], schedulingGates: [{name: x}, {name: archkeeper.io/architecture}]}", archs: "amd64", gates: "x", decided: true},
		"an unknown image gates":                                   {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/busy:v1}]}", gates: ours},
		"an unknown image with Gatekeeper's gate":                  {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/busy:v1}], schedulingGates: [{name: archkeeper.io/architecture}]}", gates: ours, same: true},
		"an unknown image, controller dead":                        {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/busy:v1}]}", dead: true, same: true},
		"an unknown image, controller dead, Gatekeeper's gate":     {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/busy:v1}], schedulingGates: [{name: archkeeper.io/architecture}]}", dead: true, decided: true},
		"a known image, controller dead":                           {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/amd64:v1}]}", dead: true, archs: "amd64", decided: true},
		"a bad image is left alone":                                {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: 'R/UPPER:v1'}]}", same: true},
		"a bad image with Gatekeeper's gate":                       {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: 'R/UPPER:v1'}], schedulingGates: [{name: archkeeper.io/architecture}]}", decided: true},
		"a pod of a DaemonSet, which Gatekeeper cannot see":        {pod: "metadata: {name: p, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u, controller: true}]}\nspec: {containers: [{name: a, image: R/both:v1}], schedulingGates: [{name: archkeeper.io/architecture}]}", decided: true},
		"a bound pod with Gatekeeper's gate":                       {pod: "metadata: {name: p}\nspec: {nodeName: n-1, containers: [{name: a, image: R/both:v1}], schedulingGates: [{name: archkeeper.io/architecture}]}", decided: true},
		"generateName":                                             {pod: "metadata: {generateName: p-}\nspec: {containers: [{name: a, image: R/amd64:v1}]}", archs: "amd64", decided: true},
		"observe changes nothing":                                  {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/both:v1}]}", config: func(p *config.Placement) { p.Mode = config.ModeObserve }, same: true},
		"observe gates nothing":                                    {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/busy:v1}]}", config: func(p *config.Placement) { p.Mode = config.ModeObserve }, same: true},
		"observe takes off the gate that nobody else would":        {pod: "metadata: {name: p}\nspec: {containers: [{name: a, image: R/busy:v1}], schedulingGates: [{name: archkeeper.io/architecture}]}", config: func(p *config.Placement) { p.Mode = config.ModeObserve }, decided: true},
		"a pod without containers is left to the API server":       {pod: "metadata: {name: p}\nspec: {}", same: true},
		"a container without an image is left to the API server":   {pod: "metadata: {name: p}\nspec: {containers: [{name: a}]}", same: true},
		"a preset label that pretends that we have decided, gated": {pod: "metadata: {name: p, labels: {archkeeper.io/decided: 'true'}}\nspec: {containers: [{name: a, image: R/busy:v1}]}", gates: ours},
		"preset marks are stripped":                                {pod: "metadata: {name: p, labels: {architecture.archkeeper.io/s390x: supported}, annotations: {archkeeper.io/architectures: s390x}}\nspec: {containers: [{name: a, image: R/busy:v1}]}", gates: ours},
		"an opt-out is kept":                                       {pod: "metadata: {name: p, labels: {archkeeper.io/placement: disabled}}\nspec: {containers: [{name: a, image: R/both:v1}]}", same: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.alive = !tc.dead
			if tc.config != nil {
				tc.config(&w.placed)
			}
			pod := w.pod(t, tc.pod)
			after, patched, response := w.admit(t, pod)
			if got := gates(after); got != tc.gates {
				t.Errorf("gates %q, want %q", got, tc.gates)
			}
			if got := architectures(after); got != tc.archs {
				t.Errorf("architectures %q, want %q", got, tc.archs)
			}
			if _, decided := after.Labels[admission.DecidedLabel]; decided != tc.decided {
				t.Errorf("labelled as decided: %t", decided)
			}
			if same := len(response.Patch) == 0; same != tc.same {
				t.Errorf("patch %s", response.Patch)
			}
			for key := range after.Labels {
				if strings.HasPrefix(key, "architecture.") && tc.archs == "" {
					t.Errorf("label %s on a pod that is not placed", key)
				}
			}
			// The API server asks again when a later webhook changed the pod.
			if _, _, second := w.admit(t, patched); len(second.Patch) > 0 {
				t.Errorf("a second pass changes something: %s", second.Patch)
			}
		})
	}
}

// Gatekeeper's Assign injects the gate into every new pod that does not carry the
// label of our decision.
func gatekeeper(t *testing.T, pod []byte) []byte {
	t.Helper()
	var object corev1.Pod
	if err := json.Unmarshal(pod, &object); err != nil {
		t.Fatal(err)
	}
	if _, decided := object.Labels[admission.DecidedLabel]; decided || strings.Contains(gates(object), ours) {
		return pod
	}
	object.Spec.SchedulingGates = append(object.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: ours})
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestBesideGatekeeper(t *testing.T) {
	for name, passes := range map[string]string{
		"before us":                             "gw",
		"before us, and once more":              "gwg",
		"before us, and both once more":         "gwgw",
		"after us, and we once more":            "wgw",
		"after us, and both once more":          "wgwg",
		"without Gatekeeper, and we once more":  "ww",
		"before us, another webhook between us": "gwxw",
	} {
		for image, want := range map[string]string{"R/both:v1": "", "R/busy:v1": ours, "R/UPPER:v1": ""} {
			t.Run(name+" "+image, func(t *testing.T) {
				w := newWorld(t)
				pod := w.pod(t, "metadata: {name: p}\nspec: {containers: [{name: a, image: '"+image+"'}]}")
				for _, pass := range passes {
					switch pass {
					case 'g':
						pod = gatekeeper(t, pod)
					case 'x':
						pod = bytes.Replace(pod, []byte(`"spec":{`), []byte(`"spec":{"priority":5,`), 1)
					case 'w':
						_, pod, _ = w.admit(t, pod)
					}
				}
				var after corev1.Pod
				if err := json.Unmarshal(pod, &after); err != nil {
					t.Fatal(err)
				}
				if got := gates(after); got != want {
					t.Errorf("gates %q, want %q", got, want)
				}
			})
		}
	}
}

func TestOtherReviewsAreAllowedUnchanged(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(t, "metadata: {name: p}\nspec: {containers: [{name: a, image: R/both:v1}]}")
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"an update":     func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update },
		"a subresource": func(r *admissionv1.AdmissionRequest) { r.SubResource = "ephemeralcontainers" },
		"another kind":  func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "ConfigMap" },
		"a pod of the wrong shape": func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = []byte(`{"spec": {"containers": "x"}}`)
		},
		"no object": func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil },
	} {
		t.Run(name, func(t *testing.T) {
			_, _, response := w.admit(t, pod, change)
			if len(response.Patch) > 0 {
				t.Errorf("patch %s", response.Patch)
			}
		})
	}
	if got := len(w.Requests()); got != 0 {
		t.Errorf("%d requests to the registry", got)
	}
	t.Run("a dry run is answered like any other", func(t *testing.T) {
		after, _, _ := w.admit(t, pod, func(r *admissionv1.AdmissionRequest) { r.DryRun = ptr.To(true) })
		if architectures(after) != "amd64,arm64" {
			t.Error("not placed")
		}
	})
}

func TestBrokenReviewsAreClearErrors(t *testing.T) {
	w := newWorld(t)
	for name, tc := range map[string]struct {
		method, body string
		status       int
		want         string
	}{
		"no JSON":            {body: "x", status: 400, want: "no AdmissionReview"},
		"nothing":            {status: 400, want: "no AdmissionReview"},
		"another kind":       {body: `{"apiVersion": "v1", "kind": "Pod"}`, status: 400, want: `kind "Pod"`},
		"an older version":   {body: `{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}`, status: 400, want: "v1beta1"},
		"no request":         {body: `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}`, status: 400, want: "no request"},
		"no uid":             {body: `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}`, status: 400, want: "uid"},
		"a body without end": {body: strings.Repeat("x", admission.MaxBody+1), status: 413, want: "at most"},
		"a GET":              {method: http.MethodGet, status: 405, want: "posted"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.method == "" {
				tc.method = http.MethodPost
			}
			recorder := httptest.NewRecorder()
			admission.New(w.options).ServeHTTP(recorder, httptest.NewRequest(tc.method, "/v1/admit/token", strings.NewReader(tc.body)))
			if recorder.Code != tc.status || !strings.Contains(recorder.Body.String(), tc.want) {
				t.Errorf("status %d: %s", recorder.Code, recorder.Body)
			}
		})
	}
}

func TestTheBudgetEndsTheWaiting(t *testing.T) {
	w := newWorld(t)
	w.Behave("", "/v2/slow/", w.Stall())
	w.options.Budget = 50 * time.Millisecond
	pod := w.pod(t, "metadata: {name: p}\nspec: {containers: [{name: a, image: R/slow:v1}]}")
	after, _, _ := w.admit(t, pod)
	if gates(after) != ours {
		t.Error("not gated")
	}
}

func TestAVeryLargePod(t *testing.T) {
	w := newWorld(t)
	var containers []string
	for i := range 1500 {
		containers = append(containers, fmt.Sprintf("{name: c%d, image: R/both:v1, env: [{name: A, value: %s}]}", i, strings.Repeat("x", 500)))
	}
	after, _, _ := w.admit(t, w.pod(t, "metadata: {name: p}\nspec: {containers: ["+strings.Join(containers, ", ")+"]}"))
	if architectures(after) != "amd64,arm64" {
		t.Error("not placed")
	}
}

type panicking struct{}

func (panicking) Decide(context.Context, rego.Input) (rego.Decision, error) { panic("at the disco") }

func TestAPanicAllowsThePodUnchanged(t *testing.T) {
	w := newWorld(t)
	w.options.Evaluator = panicking{}
	_, _, response := w.admit(t, w.pod(t, "metadata: {name: p}\nspec: {containers: [{name: a, image: R/both:v1}]}"))
	if len(response.Patch) > 0 {
		t.Error("changed")
	}
}

func TestPinning(t *testing.T) {
	w := newWorld(t)
	w.placed.Pin = true
	w.options.MayPin = func(reference string) bool { return strings.Contains(reference, "/both") }
	digest := w.PutIndex("both", "v1", "linux/amd64", "linux/arm64")
	after, _, _ := w.admit(t, w.pod(t, "metadata: {name: p}\nspec: {containers: [{name: a, image: R/both:v1}, {name: b, image: R/amd64:v1}]}"))
	if want := w.Host() + "/both:v1@" + digest; after.Spec.Containers[0].Image != want {
		t.Errorf("%s, want %s", after.Spec.Containers[0].Image, want)
	}
	if want := w.Host() + "/amd64:v1"; after.Spec.Containers[1].Image != want {
		t.Errorf("%s, want %s", after.Spec.Containers[1].Image, want)
	}
}

func TestANamespaceOverrides(t *testing.T) {
	w := newWorld(t)
	w.options.Namespace = func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{config.AnnotationMode: "observe"}}}
	}
	_, _, response := w.admit(t, w.pod(t, "metadata: {name: p}\nspec: {containers: [{name: a, image: R/both:v1}]}"))
	if len(response.Patch) > 0 {
		t.Errorf("patch %s", response.Patch)
	}
}

func TestAContradictionWarns(t *testing.T) {
	w := newWorld(t)
	_, _, response := w.admit(t, w.pod(t, "metadata: {name: p}\nspec: {nodeSelector: {kubernetes.io/arch: arm64}, containers: [{name: a, image: R/amd64:v1}]}"))
	if len(response.Warnings) != 1 || !strings.Contains(response.Warnings[0], "contradicts") {
		t.Errorf("warnings %q", response.Warnings)
	}
}

// The images of a pod are asked for with the pod's own credentials.
func TestTheScopeIsThePods(t *testing.T) {
	w := newWorld(t)
	asked := &recording{Inspector: w.options.Inspector}
	w.options.Inspector = asked
	w.admit(t, w.pod(t, "metadata: {name: p}\nspec: {serviceAccountName: sa, imagePullSecrets: [{name: s}, {name: ''}], containers: [{name: a, image: R/both:v1, imagePullPolicy: Always}, {name: b, image: R/both:v1}, {name: c, image: R/amd64:v1}]}"))
	if len(asked.queries) != 2 {
		t.Fatalf("%d queries", len(asked.queries))
	}
	q := asked.queries[0]
	if q.Scope.Namespace != "shop" || q.Scope.ServiceAccount != "sa" || !slices.Equal(q.Scope.ImagePullSecrets, []string{"s"}) || !q.Revalidate || asked.queries[1].Revalidate {
		t.Errorf("%+v", asked.queries)
	}
}

type recording struct {
	provider.Inspector
	queries []provider.Query
}

func (r *recording) Inspect(ctx context.Context, queries []provider.Query) []provider.Answer {
	r.queries = queries
	return r.Inspector.Inspect(ctx, queries)
}

func FuzzAdmission(f *testing.F) {
	f.Add(review([]byte(`{"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "localhost:1/x"}]}}`)))
	f.Add([]byte("{"))
	evaluator, err := rego.New(f.Context(), rego.Options{})
	if err != nil {
		f.Fatal(err)
	}
	handler := admission.New(admission.Options{
		Inspector: nobody{}, Evaluator: evaluator,
		Placement: func() config.Placement { return config.Default().Placement },
		Alive:     func() bool { return true },
	})
	f.Fuzz(func(t *testing.T, body []byte) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/v1/admit/token", bytes.NewReader(body)))
		if recorder.Code >= 500 {
			t.Errorf("status %d", recorder.Code)
		}
	})
}

type nobody struct{}

func (nobody) Inspect(_ context.Context, queries []provider.Query) []provider.Answer {
	answers := make([]provider.Answer, len(queries))
	for i, q := range queries {
		answers[i] = provider.Answer{Image: q.Image, Err: provider.Errorf(provider.ClassTimeout, "nobody is there")}
	}
	return answers
}
