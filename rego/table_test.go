package rego_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/rego"
)

// evaluator is the built-in policy, compiled once for a test.
func evaluator(t testing.TB) *rego.Evaluator {
	t.Helper()
	e, err := rego.New(t.Context(), rego.Options{})
	if err != nil {
		t.Fatal(err)
	}
	remembering, err := rego.New(t.Context(), rego.Options{Remember: true})
	if err != nil {
		t.Fatal(err)
	}
	builtins.Store(e, remembering)
	return e
}

// builtins are the evaluators of the built-in policy, each with one that remembers.
var builtins sync.Map

// remembered wants the same decision of an evaluator that remembers, about the pod
// and about others that differ only in what no decision depends on.
func remembered(t testing.TB, e *rego.Evaluator, in rego.Input, want rego.Decision) {
	t.Helper()
	unknown := slices.ContainsFunc(slices.Collect(maps.Values(in.Images)), func(i rego.Image) bool { return i.Status == rego.StatusUnknown })
	for i := range 3 {
		other := in
		other.Images = maps.Clone(in.Images)
		for ref, image := range other.Images {
			image.AgeSeconds = float64(i)
			other.Images[ref] = image
		}
		if !unknown {
			other.HeldSeconds = float64(1000 * i)
		}
		var pod map[string]any
		if err := json.Unmarshal(in.Pod, &pod); err != nil {
			t.Fatal(err)
		}
		if metadata, ok := pod["metadata"].(map[string]any); ok {
			metadata["name"], metadata["uid"], metadata["resourceVersion"] = fmt.Sprint("p-", i), fmt.Sprint(i), fmt.Sprint(i)
			metadata["generateName"], metadata["creationTimestamp"] = "p-", "2026-01-01T00:00:0"+fmt.Sprint(i)+"Z"
		}
		pod["status"] = map[string]any{"phase": "Pending", "message": fmt.Sprint(i)}
		if spec, ok := pod["spec"].(map[string]any); ok {
			mountToken(spec, fmt.Sprint("kube-api-access-", i))
			spec["hostname"], spec["priority"] = fmt.Sprint("h-", i), i
		}
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		other.Pod = raw
		got, err := e.Decide(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("another decision is remembered (-want +got):\n%s", diff)
		}
	}
}

// mountToken gives a pod the volume for its service account's token, as admission
// does: each pod under a name of its own.
func mountToken(spec map[string]any, name string) {
	volumes, _ := spec["volumes"].([]any)
	spec["volumes"] = append([]any{map[string]any{"name": name, "projected": map[string]any{"sources": []any{}}}}, volumes...)
	for _, field := range []string{"containers", "initContainers"} {
		containers, _ := spec[field].([]any)
		for _, c := range containers {
			if c, ok := c.(map[string]any); ok {
				c["volumeMounts"] = []any{map[string]any{"name": name, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}}
				c["env"] = []any{map[string]any{"name": "ME", "value": name}}
			}
		}
	}
}

// known is an image that runs on platforms: "amd64" is short for linux/amd64.
func known(platforms ...string) rego.Image {
	image := rego.Image{Status: rego.StatusKnown, Digest: "sha256:" + strings.Repeat("a", 64)}
	for _, p := range platforms {
		if !strings.Contains(p, "/") {
			p = "linux/" + p
		}
		image.Platforms = append(image.Platforms, p)
		if arch, ok := strings.CutPrefix(p, "linux/"); ok {
			image.Architectures = append(image.Architectures, strings.Split(arch, "/")[0])
		}
	}
	return image
}

var contentOnly = rego.Image{Status: rego.StatusAny}

func unknown(class string, retryable bool) rego.Image {
	return rego.Image{Status: rego.StatusUnknown, Class: provider.Class(class), Message: "registry.example says no", Retryable: &retryable}
}

// images names a pod's images: a, b, c, ... in this order.
func images(answers ...rego.Image) map[string]rego.Image {
	out := map[string]rego.Image{}
	for i, a := range answers {
		out[string(rune('a'+i))] = a
	}
	return out
}

// input makes the policy's input of a pod spec in YAML, into which a container
// for each image is put where the spec has none.
func input(t testing.TB, spec string, answers map[string]rego.Image, change ...func(*rego.Input)) rego.Input {
	t.Helper()
	var pod map[string]any
	if err := yaml.Unmarshal([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns}\nspec:\n  "+
		strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ")), &pod); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	s, _ := pod["spec"].(map[string]any)
	if s == nil {
		s = map[string]any{}
		pod["spec"] = s
	}
	if _, ok := s["containers"]; !ok {
		var containers []any
		for _, ref := range slices.Sorted(maps.Keys(answers)) {
			containers = append(containers, map[string]any{"name": "c-" + ref, "image": ref})
		}
		s["containers"] = containers
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	in := rego.Input{Phase: rego.PhaseAdmit, Pod: raw, Images: answers, ControllerAlive: true}
	for _, f := range change {
		f(&in)
	}
	return in
}

func config(t testing.TB, text string) func(*rego.Input) {
	return func(in *rego.Input) {
		raw, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		in.Config = raw
	}
}

// gated puts our gate on the pod and asks for the phase of gated pods.
func gated(in *rego.Input) {
	in.Phase = rego.PhaseResolve
	patch, err := jsonpatch.DecodePatch([]byte(`[{"op":"add","path":"/spec/schedulingGates","value":[{"name":"archkeeper.io/architecture"}]}]`))
	if err != nil {
		panic(err)
	}
	pod, err := patch.Apply(in.Pod)
	if err != nil {
		panic(err)
	}
	in.Pod = pod
}

func heldFor(seconds float64) func(*rego.Input) {
	return func(in *rego.Input) { in.HeldSeconds = seconds }
}

func cluster(architectures, systems string) func(*rego.Input) {
	return func(in *rego.Input) {
		in.Cluster = rego.Cluster{Architectures: strings.Fields(architectures), OperatingSystems: strings.Fields(systems)}
	}
}

// decide gives decision and patched pod, and holds every decision to what is true
// of all of them: the same bytes again, and nothing more to do a second time.
func decide(t testing.TB, e *rego.Evaluator, in rego.Input) (rego.Decision, corev1.Pod) {
	t.Helper()
	d, err := e.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := d.PatchJSON()
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Decide(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if rawAgain, err := again.PatchJSON(); err != nil || string(rawAgain) != string(raw) {
		t.Errorf("the patch is not stable: %s then %s (%v)", raw, rawAgain, err)
	}
	if builtin, ok := builtins.Load(e); ok {
		remembered(t, builtin.(*rego.Evaluator), in, d)
	}
	patched := apply(t, in.Pod, raw)
	if d.Action != rego.ActionHold {
		second := in
		second.Pod = patched
		if second.Phase == rego.PhaseResolve {
			second.Phase = rego.PhaseAdmit // the gate is off: only a fresh copy is asked about again
		}
		dd, err := e.Decide(t.Context(), second)
		if err != nil {
			t.Fatal(err)
		}
		if len(dd.Patch) > 0 && in.Phase == rego.PhaseAdmit {
			t.Errorf("a second pass changes something: %v", dd.Patch)
		}
	}
	var pod corev1.Pod
	if err := json.Unmarshal(patched, &pod); err != nil {
		t.Fatal(err)
	}
	return d, pod
}

func apply(t testing.TB, pod, patch []byte) []byte {
	t.Helper()
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := p.Apply(pod)
	if err != nil {
		t.Fatalf("the patch does not apply: %v\n%s", err, patch)
	}
	return patched
}

// terms parses required terms as tests write them.
func terms(t testing.TB, text string) []corev1.NodeSelectorTerm {
	t.Helper()
	var out []corev1.NodeSelectorTerm
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

func requiredTerms(pod corev1.Pod) []corev1.NodeSelectorTerm {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

const (
	inAmd64  = `{key: kubernetes.io/arch, operator: In, values: [amd64]}`
	inArm64  = `{key: kubernetes.io/arch, operator: In, values: [arm64]}`
	inBoth   = `{key: kubernetes.io/arch, operator: In, values: [amd64, arm64]}`
	inS390x  = `{key: kubernetes.io/arch, operator: In, values: [s390x]}`
	zone     = `{key: zone, operator: In, values: [a]}`
	ssd      = `{key: disk, operator: In, values: [ssd]}`
	osLinux  = `{key: kubernetes.io/os, operator: In, values: [linux]}`
	osWin    = `{key: kubernetes.io/os, operator: In, values: [windows]}`
	osBoth   = `{key: kubernetes.io/os, operator: In, values: [linux, windows]}`
	noCommon = `{key: archkeeper.io/no-common-architecture, operator: Exists}`
	field    = `matchFields: [{key: metadata.name, operator: In, values: [node-1]}]`
)

func term(expressions ...string) string {
	return "{matchExpressions: [" + strings.Join(expressions, ", ") + "]}"
}

func list(terms ...string) string { return "[" + strings.Join(terms, ", ") + "]" }

func withTerms(terms ...string) string {
	return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: " + list(terms...) + "}}}"
}

func TestEachRowOfTheTable(t *testing.T) {
	const (
		place, gate, hold, release, ignore = rego.ActionPlace, rego.ActionGate, rego.ActionHold, rego.ActionRelease, rego.ActionIgnore
		settled, contradicts, undetermined = rego.OutcomeSettled, rego.OutcomeContradicts, rego.OutcomeUndetermined
	)
	both := images(known("amd64", "arm64"))
	amd64 := images(known("amd64"))
	apart := images(known("amd64"), known("arm64"))
	type row struct {
		spec     string
		images   map[string]rego.Image
		change   []func(*rego.Input)
		action   rego.Action
		reason   string
		archs    string
		terms    string // of the pod after; "" for no required affinity
		outcome  rego.Outcome
		unplaced bool // no marks although the action is place
	}
	e := evaluator(t)
	for name, r := range map[string]row{
		"nothing to add at admission is ignored": {
			spec: "nodeSelector: {kubernetes.io/arch: amd64}", images: both,
			action: ignore, reason: "UserArchitecture", archs: "amd64"},
		"nothing to add on a gated pod is released": {
			spec: "nodeSelector: {kubernetes.io/arch: amd64}", images: both, change: []func(*rego.Input){gated},
			action: release, reason: "UserArchitecture", archs: "amd64"},
		"content only at admission is ignored": {
			images: images(contentOnly), action: ignore, reason: "ContentOnly"},
		"content only on a gated pod is released": {
			images: images(contentOnly), change: []func(*rego.Input){gated}, action: release, reason: "ContentOnly"},
		"images that share nothing, one more unknown": {
			images: images(known("amd64"), known("arm64"), unknown("timeout", true)),
			action: place, reason: "NoCommonArchitecture", terms: list(term(noCommon)), outcome: contradicts},
		"images that share nothing, one more unknown, gated": {
			images: images(known("amd64"), known("arm64"), unknown("timeout", true)), change: []func(*rego.Input){gated},
			action: place, reason: "NoCommonArchitecture", terms: list(term(noCommon)), outcome: contradicts},
		"a durable-bad image and an unknown one": {
			images: images(unknown("malformed", false), unknown("timeout", true)), change: []func(*rego.Input){gated},
			action: release, reason: "ImageUnusable", outcome: undetermined},
		"a durable-bad image and an unknown one, at admission": {
			images: images(unknown("malformed", false), unknown("timeout", true)),
			action: ignore, reason: "ImageUnusable", outcome: undetermined},
		"an unknown image, and the user chose the architecture everywhere": {
			spec: withTerms(term(zone, inAmd64), term(inArm64)), images: images(unknown("timeout", true)),
			action: ignore, reason: "UserArchitecture", archs: "amd64 arm64", terms: list(term(zone, inAmd64), term(inArm64))},
		"an unknown image, and the user chose the architecture everywhere, gated": {
			spec: "nodeSelector: {kubernetes.io/arch: amd64}", images: images(unknown("timeout", true)), change: []func(*rego.Input){gated},
			action: release, reason: "UserArchitecture", archs: "amd64"},
		"a durable-bad image, and the user chose the architecture everywhere": {
			spec: "nodeSelector: {kubernetes.io/arch: amd64}", images: images(unknown("malformed", false)),
			action: ignore, reason: "ImageUnusable", outcome: undetermined,
		},
		"the user chose by nodeSelector, images share nothing": {
			spec: "nodeSelector: {kubernetes.io/arch: amd64}", images: apart,
			action: ignore, reason: "ArchitectureContradiction", outcome: contradicts},
		"the user chose by In in a term, images share nothing": {
			spec: withTerms(term(inAmd64)), images: apart, change: []func(*rego.Input){gated},
			action: release, reason: "ArchitectureContradiction", terms: list(term(inAmd64)), outcome: contradicts},
		"the user chose in one term of two, images share nothing": {
			spec: withTerms(term(inAmd64), term(zone)), images: apart,
			action: place, reason: "NoCommonArchitecture", terms: list(term(inAmd64), term(zone, noCommon)), outcome: contradicts},
		"no affinity": {
			images: both, action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth))},
		"no affinity, gated": {
			images: both, change: []func(*rego.Input){gated}, action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth))},
		"required present with zero terms": {
			spec: withTerms(), images: both, action: ignore, reason: "NoUsableTerm", terms: "[]"},
		"required present with zero terms, gated": {
			spec: withTerms(), images: images(unknown("timeout", true)), change: []func(*rego.Input){gated},
			action: release, reason: "NoUsableTerm", terms: "[]"},
		"only empty terms": {
			spec: withTerms("{}", "{matchExpressions: []}"), images: both, action: ignore, reason: "NoUsableTerm", terms: list("{}", "{}")},
		"terms zone or ssd": {
			spec: withTerms(term(zone), term(ssd)), images: both,
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(zone, inBoth), term(ssd, inBoth))},
		"terms zone with s390x or ssd": {
			spec: withTerms(term(zone, inS390x), term(ssd)), images: both,
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(zone, inS390x), term(ssd, inBoth))},
		"term with matchFields only": {
			spec: withTerms("{" + field + "}"), images: both,
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list("{" + field + ", matchExpressions: [" + inBoth + "]}")},
		"an empty term beside another stays empty": {
			spec: withTerms("{}", term(zone)), images: both, change: []func(*rego.Input){gated},
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list("{}", term(zone, inBoth))},
		"nodeSelector disk": {
			spec: "nodeSelector: {disk: ssd}", images: both,
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth))},
		"nodeSelector arm64, images amd64": {
			spec: "nodeSelector: {kubernetes.io/arch: arm64}", images: amd64,
			action: ignore, reason: "ArchitectureContradiction", outcome: contradicts},
		"nodeSelector arm64, images amd64, gated": {
			spec: "nodeSelector: {kubernetes.io/arch: arm64}", images: amd64, change: []func(*rego.Input){gated},
			action: release, reason: "ArchitectureContradiction", outcome: contradicts},
		"multi-arch image and arm64-only init container": {
			spec: "containers: [{name: c, image: a}]\ninitContainers: [{name: i, image: b}]", images: images(known("amd64", "arm64"), known("arm64")),
			action: place, reason: "Placed", archs: "arm64", terms: list(term(inArm64))},
		"amd64-only and arm64-only": {
			images: apart, action: place, reason: "NoCommonArchitecture", terms: list(term(noCommon)), outcome: contradicts},
		"amd64-only and arm64-only with terms, one of them empty": {
			spec: withTerms(term(zone), "{}"), images: apart, change: []func(*rego.Input){gated},
			action: place, reason: "NoCommonArchitecture", terms: list(term(zone, noCommon), "{}"), outcome: contradicts},
		"every architecture of the cluster": {
			images: both, change: []func(*rego.Input){cluster("amd64 arm64", "linux")},
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth))},
		"every architecture of the cluster, not always constrained": {
			images: both, change: []func(*rego.Input){cluster("amd64 arm64", "linux"), config(t, "constrainAlways: false")},
			action: place, reason: "RunsEverywhere", archs: "amd64 arm64"},
		"not always constrained, but one architecture is missing": {
			images: both, change: []func(*rego.Input){cluster("amd64 arm64 s390x", "linux"), config(t, "constrainAlways: false")},
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth))},
		"not always constrained, and nothing is known of the cluster": {
			images: both, change: []func(*rego.Input){config(t, "constrainAlways: false")},
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth))},
		"NotIn is no choice": {
			spec: withTerms(term("{key: kubernetes.io/arch, operator: NotIn, values: [s390x]}")), images: amd64,
			action: place, reason: "Placed", archs: "amd64", terms: list(term("{key: kubernetes.io/arch, operator: NotIn, values: [s390x]}", inAmd64))},
		"Exists is no choice": {
			spec: withTerms(term("{key: kubernetes.io/arch, operator: Exists}")), images: amd64,
			action: place, reason: "Placed", archs: "amd64", terms: list(term("{key: kubernetes.io/arch, operator: Exists}", inAmd64))},
		"NotIn of all that the images run on contradicts, and still keeps the pod off": {
			spec: withTerms(term("{key: kubernetes.io/arch, operator: NotIn, values: [amd64]}")), images: amd64,
			action: place, reason: "ArchitectureContradiction", terms: list(term("{key: kubernetes.io/arch, operator: NotIn, values: [amd64]}", inAmd64)),
			outcome: contradicts, unplaced: true},
		"one image rate-limited, gated": {
			images: images(known("amd64"), unknown("rate-limited", true)), change: []func(*rego.Input){gated, heldFor(119)},
			action: hold, reason: "ImagesUnknown", outcome: undetermined},
		"one image rate-limited, at admission": {
			images: images(known("amd64"), unknown("rate-limited", true)),
			action: gate, reason: "ImagesUnknown", outcome: undetermined},
		"one image rate-limited, at the deadline without fallback": {
			images: images(known("amd64"), unknown("rate-limited", true)), change: []func(*rego.Input){gated, heldFor(120)},
			action: release, reason: "DeadlineExceeded", outcome: undetermined},
		"one image rate-limited, at the deadline with fallback": {
			images: images(unknown("rate-limited", true)), change: []func(*rego.Input){gated, heldFor(120), config(t, "fallbackArchitecture: amd64")},
			action: place, reason: "FallbackArchitecture", archs: "amd64", terms: list(term(inAmd64))},
		"the fallback fits the images that are known": {
			images: images(known("amd64", "arm64"), unknown("timeout", true)), change: []func(*rego.Input){gated, heldFor(500), config(t, "fallbackArchitecture: amd64")},
			action: place, reason: "FallbackArchitecture", archs: "amd64", terms: list(term(inAmd64))},
		"the fallback does not fit the images that are known": {
			images: images(known("arm64"), unknown("timeout", true)), change: []func(*rego.Input){gated, heldFor(500), config(t, "fallbackArchitecture: amd64")},
			action: release, reason: "DeadlineExceeded", outcome: undetermined},
		"the fallback does not fit what the user says": {
			spec:   withTerms(term("{key: kubernetes.io/arch, operator: NotIn, values: [amd64]}")),
			images: images(unknown("timeout", true)), change: []func(*rego.Input){gated, heldFor(500), config(t, "fallbackArchitecture: amd64")},
			action: release, reason: "DeadlineExceeded", outcome: undetermined,
			terms: list(term("{key: kubernetes.io/arch, operator: NotIn, values: [amd64]}"))},
		"a deadline of its own": {
			images: images(unknown("timeout", true)), change: []func(*rego.Input){gated, heldFor(31), config(t, "holdDeadline: 30s")},
			action: release, reason: "DeadlineExceeded", outcome: undetermined},
		"not-found is asked once more": {
			images: images(unknown("not-found", true)), change: []func(*rego.Input){gated},
			action: hold, reason: "ImagesUnknown", outcome: undetermined},
		"not-found a second time": {
			images: images(unknown("not-found", true).Settled()), change: []func(*rego.Input){gated},
			action: release, reason: "ImageUnusable", outcome: undetermined},
		"an image that nobody answered for": {
			spec: "containers: [{name: c, image: other}]", images: both,
			action: gate, reason: "ImagesUnknown", outcome: undetermined},
		"the controller is not alive": {
			images: images(unknown("timeout", true)), change: []func(*rego.Input){func(in *rego.Input) { in.ControllerAlive = false }},
			action: ignore, reason: "ControllerNotAlive", outcome: undetermined},
		"the controller is not alive and the gate is on": {
			spec:   "schedulingGates: [{name: archkeeper.io/architecture}]",
			images: images(unknown("timeout", true)), change: []func(*rego.Input){func(in *rego.Input) { in.ControllerAlive = false }},
			action: release, reason: "ControllerNotAlive", outcome: undetermined},
		"an artifact in an image volume": {
			spec:   "containers: [{name: c, image: a}]\nvolumes: [{name: v, image: {reference: b}}, {name: w, emptyDir: {}}]",
			images: images(known("amd64"), contentOnly), action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"an image volume with an image decides too": {
			spec:   "containers: [{name: c, image: a}]\nvolumes: [{name: v, image: {reference: b}}]",
			images: images(known("amd64", "arm64"), known("arm64")), action: place, reason: "Placed", archs: "arm64", terms: list(term(inArm64))},
		"ephemeral containers are not placed": {
			spec:   "containers: [{name: c, image: a}]\nephemeralContainers: [{name: e, image: b}]",
			images: images(known("amd64"), known("arm64")), action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"windows image": {
			images: images(known("windows(10.0.17763.1)/amd64")),
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64, osWin))},
		"linux and windows entries": {
			images: images(known("amd64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64, osBoth))},
		"linux image, windows nodes in the cluster": {
			images: both, change: []func(*rego.Input){cluster("", "linux windows")},
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth, osLinux))},
		"pairs that differ by OS, no term": {
			images: images(known("amd64", "arm64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth, osLinux), term(inAmd64, osWin))},
		"pairs that differ by OS, no term, gated": {
			images: images(known("amd64", "arm64", "windows/amd64")), change: []func(*rego.Input){gated},
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth, osLinux), term(inAmd64, osWin))},
		"pairs that differ by OS, terms multiplied at admission": {
			spec: withTerms(term(zone), "{}", term(ssd, inArm64)), images: images(known("amd64", "arm64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64 arm64",
			terms: list(term(zone, inBoth, osLinux), term(zone, inAmd64, osWin), "{}", term(ssd, inArm64, osLinux))},
		"pairs that differ by OS, largest product on a gated pod": {
			spec: withTerms(term(zone), term(ssd)), images: images(known("amd64", "arm64", "windows/amd64")), change: []func(*rego.Input){gated},
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(zone, inBoth, osLinux), term(ssd, inBoth, osLinux))},
		"of two largest products the one with more of linux": {
			spec: withTerms(term(zone)), images: images(known("amd64", "windows/amd64", "windows/arm64")), change: []func(*rego.Input){gated},
			action: place, reason: "Placed", archs: "amd64", terms: list(term(zone, inAmd64, osBoth))},
		"spec.os selects": {
			spec: "os: {name: linux}", images: images(known("amd64", "arm64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth))},
		"nodeSelector os selects": {
			spec: "nodeSelector: {kubernetes.io/os: windows}", images: images(known("amd64", "arm64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"a term's os selects for that term": {
			spec: withTerms(term(osWin), term(zone)), images: images(known("amd64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64", terms: list(term(osWin, inAmd64), term(zone, inAmd64, osBoth))},
		"a term's NotIn of an os is no selection, but is heard": {
			spec:   withTerms(term("{key: kubernetes.io/os, operator: NotIn, values: [windows]}")),
			images: images(known("amd64", "arm64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64 arm64",
			terms: list(term("{key: kubernetes.io/os, operator: NotIn, values: [windows]}", inBoth, osLinux))},
		"a term's NotIn of the only os still keeps the pod off": {
			spec: withTerms(term("{key: kubernetes.io/os, operator: NotIn, values: [linux]}"), term(zone)), images: amd64,
			action: place, reason: "Placed", archs: "amd64",
			terms: list(term("{key: kubernetes.io/os, operator: NotIn, values: [linux]}", inAmd64), term(zone, inAmd64))},
		"the user's OS is one that no image has": {
			spec: "nodeSelector: {kubernetes.io/os: windows}", images: both,
			action: ignore, reason: "ArchitectureContradiction", outcome: contradicts},
		"spec.os is one that no image has": {
			spec: "os: {name: windows}", images: both, change: []func(*rego.Input){gated},
			action: release, reason: "ArchitectureContradiction", outcome: contradicts},
		"every term's OS is one that no image has": {
			spec: withTerms(term(osWin)), images: both,
			action: ignore, reason: "ArchitectureContradiction", terms: list(term(osWin)), outcome: contradicts},
		"the user's OS contradicts, one image still unknown": {
			spec: "nodeSelector: {kubernetes.io/os: windows}", images: images(known("amd64"), unknown("timeout", true)),
			action: ignore, reason: "ArchitectureContradiction", outcome: contradicts},
		"a choice of architecture does not waive the OS": {
			spec: "nodeSelector: {kubernetes.io/arch: amd64}", images: images(known("windows/amd64")),
			action: place, reason: "Placed", archs: "amd64", terms: list(term(osWin))},
		"a choice of architecture does not waive the OS, in a term": {
			spec: withTerms(term(inAmd64)), images: images(known("amd64", "windows/amd64")), change: []func(*rego.Input){gated},
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64, osBoth))},
		"a choice of architectures that is no product with the OS, at admission": {
			spec: withTerms(term(inBoth)), images: images(known("amd64", "arm64", "windows/amd64")),
			action: place, reason: "Placed", archs: "amd64 arm64", terms: list(term(inBoth, osLinux), term(inBoth, inAmd64, osWin))},
		"an In wider than the images": {
			spec: withTerms(term("{key: kubernetes.io/arch, operator: In, values: [amd64, s390x]}")), images: both,
			action: ignore, reason: "UserArchitecture", archs: "amd64", terms: list(term("{key: kubernetes.io/arch, operator: In, values: [amd64, s390x]}"))},
		"a cluster without a node for the images": {
			images: amd64, change: []func(*rego.Input){cluster("arm64", "linux")},
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"tightened nodeSelector": {
			spec: "nodeSelector: {kubernetes.io/arch: amd64}", images: both, change: []func(*rego.Input){config(t, "userArchitecture: tighten")},
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inBoth))},
		"tightened In": {
			spec: withTerms(term("{key: kubernetes.io/arch, operator: In, values: [amd64, s390x]}"), term(inArm64)), images: both,
			change: []func(*rego.Input){config(t, "userArchitecture: tighten")},
			action: place, reason: "Placed", archs: "amd64 arm64",
			terms: list(term("{key: kubernetes.io/arch, operator: In, values: [amd64, s390x]}", inBoth), term(inArm64))},
		"tightened contradiction": {
			spec: "nodeSelector: {kubernetes.io/arch: arm64}", images: amd64, change: []func(*rego.Input){config(t, "userArchitecture: tighten")},
			action: place, reason: "ArchitectureContradiction", terms: list(term(inAmd64)), outcome: contradicts, unplaced: true},
		"tightened, and an image unknown": {
			spec: "nodeSelector: {kubernetes.io/arch: arm64}", images: images(unknown("timeout", true)), change: []func(*rego.Input){config(t, "userArchitecture: tighten")},
			action: gate, reason: "ImagesUnknown", outcome: undetermined},
		"schedulable architectures narrow": {
			images: both, change: []func(*rego.Input){config(t, "schedulableArchitectures: [arm64, s390x]")},
			action: place, reason: "Placed", archs: "arm64", terms: list(term(inArm64))},
		"schedulable architectures leave nothing": {
			images: amd64, change: []func(*rego.Input){config(t, "schedulableArchitectures: [arm64]")},
			action: place, reason: "NoCommonArchitecture", terms: list(term(noCommon)), outcome: contradicts},
		"an image without a linux platform in a linux cluster": {
			images: images(known("freebsd/amd64")), action: place, reason: "NoCommonArchitecture", terms: list(term(noCommon)), outcome: contradicts},
		"an empty affinity object": {
			spec: "affinity: {}", images: amd64, action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"a null affinity": {
			spec: "affinity: null", images: amd64, action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"a null node affinity": {
			spec: "affinity: {nodeAffinity: null, podAffinity: {}}", images: amd64, action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"a null required affinity": {
			spec: "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: null}}", images: amd64,
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
		"an architecture that is no label value": {
			images: images(known("amd64"), known("amd64", "a,b", strings.Repeat("x", 64))),
			action: place, reason: "Placed", archs: "amd64", terms: list(term(inAmd64))},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, r.spec, r.images, r.change...)
			d, pod := decide(t, e, in)
			if d.Action != r.action || d.Reason != r.reason || d.Outcome() != r.outcome {
				t.Errorf("%s %s outcome %d, want %s %s outcome %d (%s)", d.Action, d.Reason, d.Outcome(), r.action, r.reason, r.outcome, d.Message)
			}
			if got := strings.Join(d.Architectures, " "); got != r.archs {
				t.Errorf("architectures %q, want %q", got, r.archs)
			}
			want := []corev1.NodeSelectorTerm(nil)
			if r.terms != "" {
				want = terms(t, r.terms)
			}
			if diff := cmp.Diff(want, requiredTerms(pod), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("required terms (-want +got):\n%s", diff)
			}
			if d.Message == "" {
				t.Error("no message")
			}
			wantsGate := r.action == gate || r.action == hold
			if got := slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == rego.DefaultGate }); got != wantsGate {
				t.Errorf("our gate is on: %t", got)
			}
			annotation, marked := pod.Annotations["archkeeper.io/architectures"]
			if wantMark := r.action == place && r.archs != ""; marked != wantMark || annotation != strings.Join(d.Architectures, ",") && marked {
				t.Errorf("annotation %q (%t)", annotation, marked)
			}
			labels := map[string]string{}
			if r.action == place {
				for _, a := range d.Architectures {
					labels["architecture.archkeeper.io/"+a] = "supported"
				}
			}
			if diff := cmp.Diff(labels, pod.Labels, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}

// scheduler is the real one's view of node affinity and nodeSelector.
func scheduler(pod *corev1.Pod, labels map[string]string) (bool, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}}
	return nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
}

// The product of the operators, the keys and the number of terms, judged by the
// scheduler's own matcher on nodes of every kind: a node that the pod goes to
// after the patch runs the images unless the user named its architecture, it was
// open to the pod before, and no node that runs the images is lost.
func TestOperatorProductOnEveryNode(t *testing.T) {
	e := evaluator(t)
	expression := map[string][]string{}
	for _, key := range []string{"kubernetes.io/arch", "generation", "kubernetes.io/os"} {
		values := map[string][2]string{
			"kubernetes.io/arch": {"amd64", "arm64, s390x"},
			"generation":         {"'3'", "'2', '3'"},
			"kubernetes.io/os":   {"linux", "linux, windows"},
		}[key]
		for _, op := range []string{"In", "NotIn"} {
			for _, v := range values {
				expression[key] = append(expression[key], fmt.Sprintf("{key: %s, operator: %s, values: [%s]}", key, op, v))
			}
		}
		for _, op := range []string{"Exists", "DoesNotExist"} {
			expression[key] = append(expression[key], fmt.Sprintf("{key: %s, operator: %s}", key, op))
		}
		for _, op := range []string{"Gt", "Lt"} {
			expression[key] = append(expression[key], fmt.Sprintf("{key: %s, operator: %s, values: ['2']}", key, op))
		}
	}
	all := slices.Concat(expression["kubernetes.io/arch"], expression["generation"], expression["kubernetes.io/os"])
	specs := []string{"", "nodeSelector: {kubernetes.io/arch: amd64}", "nodeSelector: {kubernetes.io/os: windows}", withTerms("{}")}
	for i, one := range all {
		specs = append(specs, withTerms(term(one)), withTerms(term(one), "{}"), "nodeSelector: {kubernetes.io/arch: arm64}\n"+withTerms(term(one)))
		if i%3 != 0 {
			continue
		}
		for j, two := range all {
			if j%2 != 0 {
				continue
			}
			specs = append(specs, withTerms(term(one), term(two)), withTerms(term(one, two)))
		}
	}
	var nodes []map[string]string
	for _, os := range []string{"linux", "windows"} {
		for _, arch := range []string{"amd64", "arm64", "s390x"} {
			for _, generation := range []string{"1", "3", ""} {
				labels := map[string]string{"kubernetes.io/os": os, "kubernetes.io/arch": arch}
				if generation != "" {
					labels["generation"] = generation
				}
				nodes = append(nodes, labels)
			}
		}
	}
	runsOn := map[string][]string{
		"one":      {"linux/amd64"},
		"two":      {"linux/amd64", "linux/arm64"},
		"windows":  {"windows/amd64"},
		"lopsided": {"linux/amd64", "linux/arm64", "windows/amd64"},
	}
	count := 0
	for name, platforms := range runsOn {
		for _, phase := range []func(*rego.Input){func(*rego.Input) {}, gated} {
			for _, spec := range specs {
				in := input(t, spec, images(known(platforms...)), phase, cluster("amd64 arm64 s390x", "linux windows"))
				d, err := e.Decide(t.Context(), in)
				if err != nil {
					t.Fatal(err)
				}
				if d.Reason == rego.ReasonPolicyFailed {
					t.Fatalf("%s %s: %s", name, spec, d.Message)
				}
				raw, err := d.PatchJSON()
				if err != nil {
					t.Fatal(err)
				}
				var before, after corev1.Pod
				if err := json.Unmarshal(in.Pod, &before); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(apply(t, in.Pod, raw), &after); err != nil {
					t.Fatal(err)
				}
				count++
				for _, node := range nodes {
					was, err := scheduler(&before, node)
					if err != nil {
						t.Fatalf("%s: %v", spec, err)
					}
					is, err := scheduler(&after, node)
					if err != nil {
						t.Fatalf("%s after %s: %v", spec, raw, err)
					}
					runs := slices.Contains(platforms, node["kubernetes.io/os"]+"/"+node["kubernetes.io/arch"])
					where := fmt.Sprintf("image %s (%v), phase %s, %s on %v\npatch %s", name, platforms, in.Phase, spec, node, raw)
					switch {
					case is && !was:
						t.Errorf("a node that was closed is open: %s", where)
					case is && !runs && !chosenByName(&before, node):
						t.Errorf("goes where it does not run: %s", where)
					case was && runs && !is && (in.Phase == rego.PhaseAdmit || name != "lopsided"):
						t.Errorf("a node that runs it is lost: %s", where)
					}
				}
			}
		}
	}
	if count < 2000 {
		t.Errorf("only %d cases", count)
	}
}

// chosenByName tells whether the user named the node's architecture, or selected
// its system, in words that match it: that is theirs to answer for.
func chosenByName(pod *corev1.Pod, node map[string]string) bool {
	_, byArch := pod.Spec.NodeSelector["kubernetes.io/arch"]
	_, byOS := pod.Spec.NodeSelector["kubernetes.io/os"]
	if byArch || byOS {
		return true
	}
	for _, term := range requiredTerms(*pod) {
		one := pod.DeepCopy()
		one.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = []corev1.NodeSelectorTerm{term}
		if ok, err := scheduler(one, node); err != nil || !ok {
			continue
		}
		for _, e := range term.MatchExpressions {
			if (e.Key == "kubernetes.io/arch" || e.Key == "kubernetes.io/os") && e.Operator == corev1.NodeSelectorOpIn {
				return true
			}
		}
	}
	return false
}
