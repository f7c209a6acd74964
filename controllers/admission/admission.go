// Package admission answers the API server when a pod is created: where all
// images are known, with the requirement at once, so that the pod is never held;
// else with the scheduling gate, on which the placement controller then works.
package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/rego"
)

const (
	// DefaultBudget is how long an admission may wait for images.
	DefaultBudget = 400 * time.Millisecond
	// MaxBody of an AdmissionReview, in bytes. The API server takes objects of
	// up to 3 MiB.
	MaxBody = 8 << 20
	// DecidedLabel on a pod says that this webhook has decided about it, so that
	// Gatekeeper, when it runs again, does not put the gate back on.
	DecidedLabel = "archkeeper.io/decided"
	// decidedPath is the label's path in a patch.
	decidedPath = "/metadata/labels/archkeeper.io~1decided"
	// reserve of the API server's timeout for everything but the images.
	reserve = 150 * time.Millisecond
	// maxWarning is what the API server shows of a warning, in bytes.
	maxWarning = 240
)

// Evaluator decides, and judges what is added to a decision.
type Evaluator interface {
	Decide(ctx context.Context, in rego.Input) (rego.Decision, error)
}

// Options say what admission is made of. Inspector, Evaluator and Placement are
// needed.
type Options struct {
	Inspector provider.Inspector
	Evaluator Evaluator
	// Placement is the configuration now.
	Placement func() config.Placement
	// Namespace gives a namespace, or as much as is known of it; nil, or a nil
	// namespace: nothing is known.
	Namespace func(name string) *corev1.Namespace
	// Cluster is what is known of the nodes; nil: nothing.
	Cluster func() rego.Cluster
	// Alive tells whether a gate that is put on will be taken off; nil: it is not.
	Alive func() bool
	// MayPin tells whether a canonical reference may be pinned to its digest; nil:
	// none may.
	MayPin func(reference string) bool
	// Budget for the images; DefaultBudget when 0.
	Budget time.Duration

	Clock   clock.PassiveClock
	Metrics *Metrics
	Log     *slog.Logger
}

// Handler answers AdmissionReviews. Its caller has proven itself.
type Handler struct {
	options Options
}

// New makes a handler.
func New(options Options) *Handler {
	if options.Budget <= 0 {
		options.Budget = DefaultBudget
	}
	if options.Namespace == nil {
		options.Namespace = func(string) *corev1.Namespace { return nil }
	}
	if options.Cluster == nil {
		options.Cluster = func() rego.Cluster { return rego.Cluster{} }
	}
	if options.Alive == nil {
		options.Alive = func() bool { return false }
	}
	if options.MayPin == nil {
		options.MayPin = func(string) bool { return false }
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Metrics == nil {
		options.Metrics = NewMetrics(nil)
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	return &Handler{options: options}
}

// reviewError is the error of a body that is no AdmissionReview that we can answer.
type reviewError struct {
	status int
	text   string
}

func (e *reviewError) Error() string { return e.text }

// ServeHTTP answers one AdmissionReview. A review that cannot be read is a clear
// error with a status of 4xx; one that is about something else than the creation
// of a pod, and any fault of ours, is allowed unchanged.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.options.Clock.Now()
	review, err := read(w, r)
	if err != nil {
		h.options.Metrics.failures.WithLabelValues("review").Inc()
		var wrong *reviewError
		if !errors.As(err, &wrong) {
			wrong = &reviewError{status: http.StatusBadRequest, text: "the body cannot be read"}
		}
		http.Error(w, wrong.text, wrong.status)
		return
	}
	response := h.answer(r, review.Request)
	response.UID = review.Request.UID
	raw, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
	if err != nil {
		h.options.Metrics.failures.WithLabelValues("internal").Inc()
		h.options.Log.Error("could not encode an AdmissionReview", "error", err)
		http.Error(w, "the answer cannot be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw) // the API server that went away has its failurePolicy
	h.options.Metrics.seconds.Observe(h.options.Clock.Since(start).Seconds())
}

func read(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionReview, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &reviewError{http.StatusMethodNotAllowed, "AdmissionReviews are posted"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &reviewError{http.StatusRequestEntityTooLarge, fmt.Sprintf("an AdmissionReview has at most %d bytes", MaxBody)}
	case err != nil:
		return nil, err
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, &reviewError{http.StatusBadRequest, "the body is no AdmissionReview: " + err.Error()}
	}
	if want := (metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}); review.TypeMeta != want {
		return nil, &reviewError{http.StatusBadRequest, fmt.Sprintf("the body is apiVersion %.80q, kind %.80q, not admission.k8s.io/v1 AdmissionReview", review.APIVersion, review.Kind)}
	}
	if review.Request == nil || review.Request.UID == "" {
		return nil, &reviewError{http.StatusBadRequest, "the AdmissionReview has no request, or one without uid"}
	}
	return &review, nil
}

// answer never fails: a fault of ours costs the pod its placement, not its life.
func (h *Handler) answer(r *http.Request, request *admissionv1.AdmissionRequest) (response *admissionv1.AdmissionResponse) {
	log := h.options.Log.With("namespace", request.Namespace)
	defer func() {
		if fault := recover(); fault != nil {
			h.options.Metrics.failures.WithLabelValues("panic").Inc()
			log.Error("admission panicked; the pod is allowed unchanged", "panic", fault, "stack", string(debug.Stack()))
			response = allow()
		}
	}()
	if request.Operation != admissionv1.Create || request.SubResource != "" ||
		request.Kind != (metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}) {
		return allow()
	}
	response, err := h.decide(r, request, log)
	if err != nil {
		h.options.Metrics.failures.WithLabelValues("internal").Inc()
		log.Error("could not decide about a pod; it is allowed unchanged", "error", err)
		return allow()
	}
	return response
}

func (h *Handler) decide(r *http.Request, request *admissionv1.AdmissionRequest, log *slog.Logger) (*admissionv1.AdmissionResponse, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return nil, fmt.Errorf("reading the pod: %w", err)
	}
	log = log.With("pod", name(pod))
	queries, err := rego.Queries(request.Namespace, &pod.Spec)
	if err != nil {
		return allow(), nil //nolint:nilerr // the API server's validation refuses such a pod with better words
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: request.Namespace}}
	if found := h.options.Namespace(request.Namespace); found != nil {
		namespace = found
	}
	placement, err := h.options.Placement().ForNamespace(namespace.Annotations)
	if err != nil {
		log.Warn("an annotation of the namespace is without effect", "error", err)
	}
	in, err := h.input(r, pod, queries, namespace, placement)
	if err != nil {
		return nil, err
	}
	in.Pod = request.Object.Raw
	decision, err := h.options.Evaluator.Decide(r.Context(), in)
	if err != nil {
		return nil, err
	}
	h.options.Metrics.decisions.WithLabelValues(string(decision.Action), string(placement.Mode)).Inc()
	log.Debug("decided", "action", decision.Action, "reason", decision.Reason, "message", decision.Message, "mode", placement.Mode)

	operations := finish(pod, placement, decision)
	response := allow()
	response.AuditAnnotations = map[string]string{"placement": string(decision.Action) + " " + decision.Reason}
	if placement.Mode == config.ModeObserve {
		response.AuditAnnotations["placement"] += " (observed)"
	} else if decision.Outcome() == rego.OutcomeContradicts {
		response.Warnings = []string{warning(decision.Message)}
	}
	if len(operations) == 0 {
		return response, nil
	}
	if response.Patch, err = json.Marshal(operations); err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	kind := admissionv1.PatchTypeJSONPatch
	response.PatchType = &kind
	return response, nil
}

func (h *Handler) input(r *http.Request, pod corev1.Pod, queries []provider.Query, namespace *corev1.Namespace, placement config.Placement) (rego.Input, error) {
	ctx, cancel := context.WithTimeout(r.Context(), h.budget(r))
	answers := h.options.Inspector.Inspect(ctx, queries)
	cancel()
	images := rego.Answers(&pod.Spec, answers, h.options.Clock.Now())
	if placement.Pin {
		rego.Pin(images, answers, h.options.MayPin)
	}
	settings, err := placement.JSON()
	if err != nil {
		return rego.Input{}, err
	}
	about, err := json.Marshal(namespace)
	if err != nil {
		return rego.Input{}, fmt.Errorf("encoding the namespace: %w", err)
	}
	return rego.Input{
		Phase:           rego.PhaseAdmit,
		Namespace:       about,
		Images:          images,
		Cluster:         h.options.Cluster(),
		ControllerAlive: h.options.Alive(),
		Config:          settings,
	}, nil
}

// budget is the configured one, or what the API server's timeout leaves.
func (h *Handler) budget(r *http.Request) time.Duration {
	budget := h.options.Budget
	if timeout, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil && timeout > 0 {
		budget = min(budget, max(timeout-reserve, timeout/2))
	}
	return budget
}

// finish gives the operations to answer with. In mode observe a pod is changed
// only by taking off a gate that others have put on, because nobody would later.
// Where a decision other than the gate is written, a label says so to Gatekeeper,
// so that it does not gate the pod when it runs again.
func finish(pod corev1.Pod, placement config.Placement, decision rego.Decision) []rego.Operation {
	operations := decision.Patch
	hasGate := slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == placement.Gate })
	if placement.Mode == config.ModeObserve {
		operations = rego.RemoveGate(pod.Spec.SchedulingGates, placement.Gate)
	} else if decision.Action == rego.ActionGate {
		return operations
	}
	_, labelled := pod.Labels[DecidedLabel]
	if labelled {
		// It stands from an earlier pass; the policy takes it for a mark that
		// the user has set.
		return slices.DeleteFunc(slices.Clone(operations), func(op rego.Operation) bool {
			return op.Op == "remove" && op.Path == decidedPath
		})
	}
	if len(operations) == 0 && !hasGate {
		return operations
	}
	return append(slices.Clone(operations), label(pod, operations))
}

// label adds the label behind the other operations.
func label(pod corev1.Pod, operations []rego.Operation) rego.Operation {
	hasLabels := len(pod.Labels) > 0
	for _, op := range operations {
		if op.Path == "/metadata/labels" {
			hasLabels = op.Op != "remove"
		}
	}
	if hasLabels {
		return rego.Operation{Op: "add", Path: decidedPath, Value: "true"}
	}
	return rego.Operation{Op: "add", Path: "/metadata/labels", Value: map[string]string{DecidedLabel: "true"}}
}

func allow() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} }

func warning(message string) string {
	if len(message) > maxWarning {
		message = strings.ToValidUTF8(message[:maxWarning], "") + "..."
	}
	return "archkeeper: " + message
}

// name of the pod, or what its name will begin with.
func name(pod corev1.Pod) string {
	if pod.Name != "" {
		return pod.Name
	}
	return pod.GenerateName + "*"
}
