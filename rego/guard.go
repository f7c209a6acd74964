package rego

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// OptOutLabel is the label by which users opt out; no policy may set it.
const OptOutLabel = "archkeeper.io/placement"

// maxOperations bounds a patch.
const maxOperations = 4096

// A GuardError says what of a decision the guard did not let past.
type GuardError struct {
	// Rule that was broken, one of a closed list fit for a metric.
	Rule string
	// Detail names the path or value.
	Detail string
}

// Error names rule and detail.
func (e *GuardError) Error() string { return "policy guard: " + e.Rule + ": " + e.Detail }

func refuse(rule, format string, args ...any) error {
	return &GuardError{Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

// placementConfig is the little of the placement configuration that the guard needs.
type placementConfig struct {
	Gate         string `json:"gate"`
	Pin          bool   `json:"pin"`
	HoldDeadline string `json:"holdDeadline"`
}

// What a configuration means that does not say.
const (
	// DefaultGate is the scheduling gate.
	DefaultGate = "archkeeper.io/architecture"
	// defaultDeadline is how long a pod may be held.
	defaultDeadline = "2m"
)

// lateHold is by how much a hold may be past the deadline: the built-in policy
// compares to the nanosecond, the guard shall not find a fault in that.
const lateHold = time.Second

func configOf(in Input) (placementConfig, error) {
	config := placementConfig{Gate: DefaultGate, HoldDeadline: defaultDeadline}
	if len(in.Config) == 0 {
		return config, nil
	}
	if err := json.Unmarshal(in.Config, &config); err != nil {
		return config, fmt.Errorf("reading the placement configuration: %w", err)
	}
	if config.Gate == "" {
		config.Gate = DefaultGate
	}
	return config, nil
}

// governed are the parts of a pod that a placement policy may change; the patch
// is applied to a copy that holds nothing else.
type governed struct {
	Metadata *governedMetadata `json:"metadata,omitempty"`
	Spec     governedSpec      `json:"spec"`
}

type governedMetadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type governedSpec struct {
	NodeName        string                     `json:"nodeName,omitempty"`
	NodeSelector    map[string]string          `json:"nodeSelector,omitempty"`
	Affinity        *corev1.Affinity           `json:"affinity,omitempty"`
	Tolerations     []corev1.Toleration        `json:"tolerations,omitempty"`
	SchedulingGates []corev1.PodSchedulingGate `json:"schedulingGates,omitempty"`
	Containers      []governedContainer        `json:"containers,omitempty"`
	InitContainers  []governedContainer        `json:"initContainers,omitempty"`
}

type governedContainer struct {
	Image string `json:"image,omitempty"`
}

// check lets a decision past that the API server takes and that stays within
// what a placement policy may change:
//
//   - affinity: the required node affinity only gets stricter, preferred terms are
//     added, pod affinity is untouched, no term that matches nothing comes to match;
//   - tolerations and nodeSelector gain entries;
//   - our gate and no other comes or goes, as the action says;
//   - labels and annotations with a prefix of ours, the opt-out excepted;
//   - images become the pinned reference that the input offers, with pinning on;
//   - a pod is held until its deadline.
//
// For an existing pod the rules of the API server for gated pods apply (KEP-3838):
// terms keep their number and order and gain expressions behind the existing ones.
func check(in Input, d Decision) error {
	config, err := configOf(in)
	if err != nil {
		return err
	}
	if len(d.Patch) > maxOperations {
		return refuse("size", "%d operations", len(d.Patch))
	}
	for _, a := range d.Architectures {
		if problems := validation.IsValidLabelValue(a); a == "" || len(problems) > 0 {
			return refuse("architectures", "%.80q is no label value", a)
		}
	}
	var before governed
	if err := json.Unmarshal(in.Pod, &before); err != nil {
		return fmt.Errorf("reading the pod: %w", err)
	}
	for _, op := range d.Patch {
		if err := checkOperation(op, in, config, before); err != nil {
			return err
		}
	}
	after, err := apply(in.Pod, d)
	if err != nil {
		return err
	}
	if err := checkGates(in.Phase, d.Action, config.Gate, before.Spec, after.Spec); err != nil {
		return err
	}
	if d.Action == ActionHold {
		if err := checkHold(in, d, config); err != nil {
			return err
		}
	}
	if err := checkMetadata(before.Metadata, after.Metadata); err != nil {
		return err
	}
	if err := checkNodeSelector(before.Spec.NodeSelector, after.Spec.NodeSelector); err != nil {
		return err
	}
	if err := checkTolerations(before.Spec.Tolerations, after.Spec.Tolerations); err != nil {
		return err
	}
	return checkAffinity(in.Phase, before.Spec.Affinity, after.Spec.Affinity)
}

// roots are the paths below which a patch may write.
func roots() []string {
	return []string{
		"/spec/affinity", "/spec/tolerations", "/spec/schedulingGates", "/spec/nodeSelector",
		"/metadata/labels", "/metadata/annotations",
	}
}

func checkOperation(op Operation, in Input, config placementConfig, before governed) error {
	switch op.Op {
	case "add", "replace", "remove":
	default:
		return refuse("operation", "%.40q", op.Op)
	}
	if op.Path == "/metadata" && op.Op == "add" && before.Metadata == nil && isEmptyObject(op.Value) {
		return nil
	}
	for _, root := range roots() {
		if op.Path == root || strings.HasPrefix(op.Path, root+"/") {
			return nil
		}
	}
	if config.Pin && op.Op == "replace" && pinsImage(op, in, before.Spec) {
		return nil
	}
	return refuse("path", "%s %.200s", op.Op, op.Path)
}

func isEmptyObject(v any) bool {
	m, ok := v.(map[string]any)
	return ok && len(m) == 0
}

// pinsImage tells whether the operation sets a container's image to the pinned
// reference that the input offers for it.
func pinsImage(op Operation, in Input, spec governedSpec) bool {
	parts := strings.Split(op.Path, "/")
	if len(parts) != 5 || parts[1] != "spec" || parts[4] != "image" {
		return false
	}
	containers := spec.Containers
	switch parts[2] {
	case "containers":
	case "initContainers":
		containers = spec.InitContainers
	default:
		return false
	}
	i, err := strconv.Atoi(parts[3])
	if err != nil || i < 0 || i >= len(containers) {
		return false
	}
	pinned := in.Images[containers[i].Image].Pinned
	return pinned != "" && op.Value == pinned
}

// apply gives the governed parts after the patch. Image operations have been
// judged one by one and are left out.
func apply(pod json.RawMessage, d Decision) (governed, error) {
	var after governed
	if len(d.Patch) == 0 {
		if err := json.Unmarshal(pod, &after); err != nil {
			return after, fmt.Errorf("reading the pod: %w", err)
		}
		return after, nil
	}
	operations := slices.DeleteFunc(slices.Clone(d.Patch), func(op Operation) bool {
		return strings.HasPrefix(op.Path, "/spec/containers/") || strings.HasPrefix(op.Path, "/spec/initContainers/")
	})
	raw, err := json.Marshal(operations)
	if err != nil {
		return after, fmt.Errorf("encoding the patch: %w", err)
	}
	patch, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return after, refuse("patch", "%v", err)
	}
	part, err := governedJSON(pod)
	if err != nil {
		return after, err
	}
	patched, err := patch.Apply(part)
	if err != nil {
		return after, refuse("patch", "does not apply: %v", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(patched))
	if err := decoder.Decode(&after); err != nil {
		return after, refuse("patch", "gives no pod: %v", err)
	}
	return after, nil
}

// governedJSON cuts the governed parts out of a pod as they were written, so that
// the patch meets what it will meet at the API server.
func governedJSON(pod json.RawMessage) ([]byte, error) {
	var whole struct {
		Metadata *map[string]json.RawMessage `json:"metadata"`
		Spec     map[string]json.RawMessage  `json:"spec"`
	}
	if err := json.Unmarshal(pod, &whole); err != nil {
		return nil, fmt.Errorf("reading the pod: %w", err)
	}
	part := map[string]any{}
	if whole.Metadata != nil {
		part["metadata"] = pick(*whole.Metadata, "labels", "annotations")
	}
	part["spec"] = pick(whole.Spec, "affinity", "tolerations", "schedulingGates", "nodeSelector")
	raw, err := json.Marshal(part)
	if err != nil {
		return nil, fmt.Errorf("encoding the governed part of the pod: %w", err)
	}
	return raw, nil
}

func pick(from map[string]json.RawMessage, keys ...string) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, key := range keys {
		if v, ok := from[key]; ok {
			out[key] = v
		}
	}
	return out
}

func checkGates(phase Phase, action Action, gate string, before, after governedSpec) error {
	isOurs := func(g corev1.PodSchedulingGate) bool { return g.Name == gate }
	others := func(gates []corev1.PodSchedulingGate) []corev1.PodSchedulingGate {
		return slices.DeleteFunc(slices.Clone(gates), isOurs)
	}
	if !slices.Equal(others(before.SchedulingGates), others(after.SchedulingGates)) {
		return refuse("gates", "gates of others change")
	}
	had := slices.ContainsFunc(before.SchedulingGates, isOurs)
	has := slices.ContainsFunc(after.SchedulingGates, isOurs)
	if len(after.SchedulingGates)-len(others(after.SchedulingGates)) > 1 {
		return refuse("gates", "our gate twice")
	}
	wants, legal := false, false
	switch action {
	case ActionPlace, ActionRelease:
		wants, legal = false, true
	case ActionIgnore:
		wants, legal = false, phase == PhaseAdmit
	case ActionGate:
		wants, legal = true, phase == PhaseAdmit && before.NodeName == ""
	case ActionHold:
		wants, legal = had, phase == PhaseResolve
	}
	if !legal {
		return refuse("action", "%.40q in phase %q", string(action), phase)
	}
	if has != wants {
		return refuse("gates", "action %s leaves our gate %s", action, map[bool]string{true: "on", false: "off"}[has])
	}
	return nil
}

// checkHold lets no pod be held for ever: a policy that does not let go at the
// deadline is set aside.
func checkHold(in Input, d Decision, config placementConfig) error {
	if len(d.Patch) > 0 {
		return refuse("action", "hold with a patch")
	}
	deadline, err := time.ParseDuration(config.HoldDeadline)
	if err != nil {
		return fmt.Errorf("reading the placement configuration: holdDeadline: %w", err)
	}
	if in.HeldSeconds >= (deadline + lateHold).Seconds() {
		return refuse("deadline", "hold past holdDeadline, %s", config.HoldDeadline)
	}
	return nil
}

// ourKey tells whether a label or annotation key has a prefix of ours and is not
// the users' to set.
func ourKey(key string) bool {
	prefix, _, found := strings.Cut(key, "/")
	return found && key != OptOutLabel && (prefix == "archkeeper.io" || strings.HasSuffix(prefix, ".archkeeper.io"))
}

func checkMetadata(before, after *governedMetadata) error {
	if before == nil {
		before = &governedMetadata{}
	}
	if after == nil {
		after = &governedMetadata{}
	}
	if err := checkKeys("label", before.Labels, after.Labels); err != nil {
		return err
	}
	for key, value := range after.Labels {
		if before.Labels[key] == value {
			continue
		}
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			return refuse("metadata", "label %.200s: %s", key, problems[0])
		}
	}
	return checkKeys("annotation", before.Annotations, after.Annotations)
}

func checkKeys(what string, before, after map[string]string) error {
	for key, value := range after {
		was, had := before[key]
		if had && was == value {
			continue
		}
		if !ourKey(key) {
			return refuse("metadata", "%s %.200q is not ours to set", what, key)
		}
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return refuse("metadata", "%s %.200q: %s", what, key, problems[0])
		}
	}
	for key := range before {
		if _, kept := after[key]; !kept && !ourKey(key) {
			return refuse("metadata", "%s %.200q is not ours to remove", what, key)
		}
	}
	return nil
}

func checkNodeSelector(before, after map[string]string) error {
	for key, value := range before {
		if got, ok := after[key]; !ok || got != value {
			return refuse("nodeSelector", "%.200q changes", key)
		}
	}
	for key, value := range after {
		if _, had := before[key]; had {
			continue
		}
		if problems := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)); len(problems) > 0 {
			return refuse("nodeSelector", "%.200q: %s", key, problems[0])
		}
	}
	return nil
}

func checkTolerations(before, after []corev1.Toleration) error {
	if len(after) < len(before) {
		return refuse("tolerations", "%d become %d", len(before), len(after))
	}
	for i := range before {
		if !reflect.DeepEqual(before[i], after[i]) {
			return refuse("tolerations", "existing one %d changes", i)
		}
	}
	for _, t := range after[len(before):] {
		if t.Key != "" {
			if problems := validation.IsQualifiedName(t.Key); len(problems) > 0 {
				return refuse("tolerations", "key %.200q: %s", t.Key, problems[0])
			}
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			if t.Value != "" {
				return refuse("tolerations", "a value beside Exists")
			}
		case corev1.TolerationOpEqual, "":
			if problems := validation.IsValidLabelValue(t.Value); t.Key == "" || len(problems) > 0 {
				return refuse("tolerations", "Equal with key %.200q, value %.80q", t.Key, t.Value)
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt: // behind a feature gate: a cluster may refuse them
			return refuse("tolerations", "operator %s", t.Operator)
		default:
			return refuse("tolerations", "operator %.40q", string(t.Operator))
		}
		switch t.Effect {
		case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			return refuse("tolerations", "effect %.40q", string(t.Effect))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			return refuse("tolerations", "tolerationSeconds beside effect %.40q", string(t.Effect))
		}
	}
	return nil
}

func checkAffinity(phase Phase, before, after *corev1.Affinity) error {
	if before == nil {
		before = &corev1.Affinity{}
	}
	if after == nil {
		after = &corev1.Affinity{}
	}
	if !reflect.DeepEqual(before.PodAffinity, after.PodAffinity) || !reflect.DeepEqual(before.PodAntiAffinity, after.PodAntiAffinity) {
		return refuse("affinity", "pod affinity changes")
	}
	nodeBefore, nodeAfter := before.NodeAffinity, after.NodeAffinity
	if nodeBefore == nil {
		nodeBefore = &corev1.NodeAffinity{}
	}
	if nodeAfter == nil {
		nodeAfter = &corev1.NodeAffinity{}
	}
	if err := checkPreferred(nodeBefore.PreferredDuringSchedulingIgnoredDuringExecution, nodeAfter.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
		return err
	}
	return checkRequired(phase, nodeBefore.RequiredDuringSchedulingIgnoredDuringExecution, nodeAfter.RequiredDuringSchedulingIgnoredDuringExecution)
}

func checkPreferred(before, after []corev1.PreferredSchedulingTerm) error {
	if len(after) < len(before) {
		return refuse("preferred", "existing terms vanish")
	}
	for i, term := range after {
		if i < len(before) {
			if !reflect.DeepEqual(before[i], term) {
				return refuse("preferred", "existing term %d changes", i)
			}
			continue
		}
		if term.Weight < 1 || term.Weight > 100 {
			return refuse("preferred", "weight %d is not within 1 to 100", term.Weight)
		}
		if err := checkExpressions(term.Preference.MatchExpressions); err != nil {
			return err
		}
		if len(term.Preference.MatchFields) > 0 {
			return refuse("preferred", "matchFields")
		}
	}
	return nil
}

func checkRequired(phase Phase, before, after *corev1.NodeSelector) error {
	if before == nil {
		if after == nil {
			return nil
		}
		if len(after.NodeSelectorTerms) == 0 {
			return refuse("terms", "an affinity without terms")
		}
		for _, term := range after.NodeSelectorTerms {
			if isEmptyTerm(term) || len(term.MatchFields) > 0 {
				return refuse("terms", "a new term is empty or has matchFields")
			}
			if err := checkExpressions(term.MatchExpressions); err != nil {
				return err
			}
		}
		return nil
	}
	if after == nil {
		return refuse("terms", "the required affinity vanishes")
	}
	if phase == PhaseResolve {
		if len(after.NodeSelectorTerms) != len(before.NodeSelectorTerms) {
			return refuse("terms", "%d terms become %d on a gated pod", len(before.NodeSelectorTerms), len(after.NodeSelectorTerms))
		}
		for i, term := range after.NodeSelectorTerms {
			if err := checkExtends(before.NodeSelectorTerms[i], term, i); err != nil {
				return err
			}
		}
		return nil
	}
	return checkMultiplied(before.NodeSelectorTerms, after.NodeSelectorTerms)
}

// checkMultiplied wants each term at admission to extend the user's term at its
// place in their order, and every term of the user's to be there still.
func checkMultiplied(before, after []corev1.NodeSelectorTerm) error {
	next := 0 // the user's term that the following new terms extend
	for _, term := range after {
		if next < len(before) && extends(before[next], term) == nil {
			next++
			continue
		}
		if next > 0 {
			if err := extends(before[next-1], term); err == nil && !isEmptyTerm(term) {
				continue
			}
		}
		if next < len(before) {
			return extends(before[next], term)
		}
		return refuse("terms", "a term that extends none of the pod's own")
	}
	if next != len(before) {
		return refuse("terms", "the pod's term %d is gone", next)
	}
	return nil
}

func checkExtends(before, after corev1.NodeSelectorTerm, i int) error {
	if err := extends(before, after); err != nil {
		return fmt.Errorf("term %d: %w", i, err)
	}
	return nil
}

// extends tells whether after is before with expressions appended. An empty term
// matches nothing and must stay empty.
func extends(before, after corev1.NodeSelectorTerm) error {
	if !reflect.DeepEqual(before.MatchFields, after.MatchFields) && len(before.MatchFields)+len(after.MatchFields) > 0 {
		return refuse("terms", "matchFields change")
	}
	n := len(before.MatchExpressions)
	if len(after.MatchExpressions) < n {
		return refuse("terms", "expressions vanish")
	}
	for i := range n {
		if !reflect.DeepEqual(before.MatchExpressions[i], after.MatchExpressions[i]) {
			return refuse("terms", "expression %d changes", i)
		}
	}
	if isEmptyTerm(before) && !isEmptyTerm(after) {
		return refuse("terms", "an empty term, which matches nothing, comes to match")
	}
	return checkExpressions(after.MatchExpressions[n:])
}

func isEmptyTerm(t corev1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0
}

// checkExpressions holds new expressions to the API server's validation.
func checkExpressions(expressions []corev1.NodeSelectorRequirement) error {
	for _, e := range expressions {
		if problems := validation.IsQualifiedName(e.Key); len(problems) > 0 {
			return refuse("expression", "key %.200q: %s", e.Key, problems[0])
		}
		switch e.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			if len(e.Values) == 0 {
				return refuse("expression", "%s %s without values", e.Key, e.Operator)
			}
			for _, v := range e.Values {
				if problems := validation.IsValidLabelValue(v); len(problems) > 0 {
					return refuse("expression", "%s %s %.80q: %s", e.Key, e.Operator, v, problems[0])
				}
			}
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			if len(e.Values) > 0 {
				return refuse("expression", "%s %s with values", e.Key, e.Operator)
			}
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			if len(e.Values) != 1 {
				return refuse("expression", "%s %s needs one value", e.Key, e.Operator)
			}
			if _, err := strconv.ParseInt(e.Values[0], 10, 64); err != nil {
				return refuse("expression", "%s %s %.80q is no integer", e.Key, e.Operator, e.Values[0])
			}
		default:
			return refuse("expression", "%s has operator %.40q", e.Key, string(e.Operator))
		}
	}
	return nil
}

// letGo is the decision when no policy gave a usable one: our gate comes off and
// nothing else changes, so that no pod is held for ever.
func letGo(in Input, cause error) (Decision, error) {
	config, err := configOf(in)
	if err != nil {
		return Decision{}, err
	}
	var pod governed
	if err := json.Unmarshal(in.Pod, &pod); err != nil {
		return Decision{}, fmt.Errorf("reading the pod: %w", err)
	}
	d := Decision{
		Action:        ActionIgnore,
		Architectures: []string{},
		Patch:         RemoveGate(pod.Spec.SchedulingGates, config.Gate),
		Reason:        ReasonPolicyFailed,
		Message:       fmt.Sprintf("the placement policy failed, the pod is left alone: %v", cause),
	}
	if in.Phase == PhaseResolve || len(d.Patch) > 0 {
		d.Action = ActionRelease
	}
	return d, nil
}

// RemoveGate is the patch that takes a gate off and leaves the others; empty when
// it is not there.
func RemoveGate(gates []corev1.PodSchedulingGate, gate string) []Operation {
	i := slices.IndexFunc(gates, func(g corev1.PodSchedulingGate) bool { return g.Name == gate })
	switch {
	case i < 0:
		return []Operation{}
	case len(gates) == 1:
		return []Operation{{Op: "remove", Path: "/spec/schedulingGates"}}
	default:
		return []Operation{{Op: "remove", Path: "/spec/schedulingGates/" + strconv.Itoa(i)}}
	}
}
