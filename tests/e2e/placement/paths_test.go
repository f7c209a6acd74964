package placement_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAPodWhoseImagesAreKnownIsNeverGated(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	for name, tc := range map[string]struct {
		images []string
		want   string
	}{
		"amd":          {[]string{"amd"}, "[amd64]"},
		"arm":          {[]string{"arm"}, "[arm64]"},
		"z":            {[]string{"z"}, "[s390x]"},
		"power":        {[]string{"power"}, "[ppc64le]"},
		"multi":        {[]string{"multi"}, "[amd64 arm64 ppc64le s390x]"},
		"intersection": {[]string{"multi", "two", "arm"}, "[arm64]"},
		"generated-":   {[]string{"z", "multi"}, "[s390x]"},
		"windows":      {[]string{"win"}, "[amd64]"},
	} {
		var images []string
		for _, each := range tc.images {
			images = append(images, image(good, each))
		}
		warm(t, k, images...)
		created := k.CreatePod(pod(name, "", images...))
		wantRequired(t, created, "kubernetes.io/arch In "+tc.want)
		f.run(created.Name)
	}
	if gated := f.check(); gated > 0 {
		t.Errorf("%d pods were gated", gated)
	}
}

func TestADryRunLeavesNothing(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	warm(t, k, image(good, "arm"))
	known, err := dryRun(t.Context(), k, pod("dry", "", image(good, "arm")))
	if err != nil {
		t.Fatal(err)
	}
	wantRequired(t, known, "kubernetes.io/arch In [arm64]")
	unknown, err := dryRun(t.Context(), k, pod("dry", "", image(mute, "arm")))
	if err != nil {
		t.Fatal(err)
	}
	if !isGated(unknown) {
		t.Error("a dry run with an unknown image shows no gate")
	}
	if len(f.all()) > 0 {
		t.Errorf("it left %v", f.all())
	}
	if w := f.writes(); len(w.done)+len(w.others)+len(w.refused) > 0 {
		t.Errorf("we wrote %+v", w)
	}
}

func TestAPodWhoseImageIsUnknownIsGatedAndPlacedByOneWrite(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	for _, tc := range []struct{ name, image, node string }{
		{"named", cold(slow, 0, "arm"), "arm64-"},
		{"generated-", cold(slow, 0, "z"), "s390x-"},
	} {
		created := k.CreatePod(pod(tc.name, "", tc.image))
		if !isGated(created) {
			t.Errorf("pod %s is not gated", created.Name)
		}
		p := f.run(created.Name)
		if !strings.HasPrefix(p.Spec.NodeName, tc.node) {
			t.Errorf("pod %s is on %s", p.Name, p.Spec.NodeName)
		}
		if p.Annotations["archkeeper.io/architectures"] == "" {
			t.Errorf("pod %s has annotations %v", p.Name, p.Annotations)
		}
	}
	if gated := f.check(); gated != 2 {
		t.Errorf("%d pods were gated", gated)
	}
}

func TestGatesOfOthersStay(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	const theirs = "example.com/quota"
	for name, from := range map[string]string{"known": image(good, "arm"), "unknown": cold(slow, 1, "arm")} {
		if name == "known" {
			warm(t, k, from)
		}
		k.CreatePod(pod(name, "schedulingGates: [{name: "+theirs+"}], ", from))
		f.one("waits for the other's gate alone", name, func(l life) bool {
			return len(l.last.Spec.SchedulingGates) == 1 && l.last.Spec.SchedulingGates[0].Name == theirs && len(required(l.last)) == 1
		})
		k.Kubectl("patch", "pod", name, "--type=json", `--patch=[{"op": "remove", "path": "/spec/schedulingGates"}]`)
		f.run(name)
	}
	f.check()
}

// A term that is empty matches no node, and must go on matching none; the update
// must be one that the API server takes.
func TestTermsWithAnEmptyOneAreTakenAtOnce(t *testing.T) {
	t.Parallel()
	const terms = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}, {matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}, "
	k, f := test(t)
	warm(t, k, image(good, "arm"))
	want := []string{"", "kubernetes.io/arch In [arm64], zone In [a]"}
	k.CreatePod(pod("known", terms, image(good, "arm")))
	k.CreatePod(pod("unknown", terms, cold(slow, 2, "arm")))
	for _, name := range []string{"known", "unknown"} {
		p := f.run(name)
		wantRequired(t, p, want...)
		if p.Spec.NodeName != "arm64-0" {
			t.Errorf("pod %s is on %s", name, p.Spec.NodeName)
		}
	}
	f.check()

	// As the controller finds it, without admission before it.
	alone, g := test(t, ownWebhooks+"=none")
	alone.CreatePod(pod("gated", gatedSpec+terms, image(good, "arm")))
	wantRequired(t, g.run("gated"), want...)
	g.check()
}

// A template may be copied from a pod that we placed.
func TestMarksOfOursInATemplateAreNotBelieved(t *testing.T) {
	t.Parallel()
	marks := fmt.Sprintf("labels: {architecture.archkeeper.io/s390x: supported, %s: \"true\", app: web}, annotations: {archkeeper.io/architectures: s390x}", decided)
	for name, tc := range map[string]struct {
		namespace []string
		spec      string
		from      string
	}{
		"known":   {nil, "", image(good, "arm")},
		"unknown": {nil, "", cold(slow, 3, "arm")},
		"gated":   {[]string{ownWebhooks + "=none"}, gatedSpec, image(good, "arm")},
	} {
		t.Run(name, func(t *testing.T) {
			k, f := test(t, tc.namespace...)
			if name == "known" {
				warm(t, k, tc.from)
			}
			k.CreatePod(strings.Replace(pod("copy", tc.spec, tc.from), "metadata: {", "metadata: {"+marks+", ", 1))
			p := f.run("copy")
			wantRequired(t, p, "kubernetes.io/arch In [arm64]")
			if p.Labels["architecture.archkeeper.io/s390x"] != "" || p.Labels["architecture.archkeeper.io/arm64"] != "supported" || p.Labels["app"] != "web" {
				t.Errorf("labels %v", p.Labels)
			}
			if p.Annotations["archkeeper.io/architectures"] != "arm64" {
				t.Errorf("annotations %v", p.Annotations)
			}
			f.check()
		})
	}
}

func TestPodsThatAreNotOursAreLeftAlone(t *testing.T) {
	t.Parallel()
	unchanged := func(t *testing.T, p *corev1.Pod) {
		t.Helper()
		if isGated(p) || len(p.Annotations) > 0 {
			t.Errorf("gates %v, annotations %v", p.Spec.SchedulingGates, p.Annotations)
		}
		for _, term := range required(p) {
			if strings.Contains(term, corev1.LabelArchStable) {
				t.Errorf("it requires %q", term)
			}
		}
	}
	optedOut := func(manifest string) string {
		return strings.Replace(manifest, "metadata: {", "metadata: {labels: {archkeeper.io/placement: disabled}, ", 1)
	}
	const controlPlane = `nodeSelector: {node-role.kubernetes.io/control-plane: ""}, `
	t.Run("at admission", func(t *testing.T) {
		k, f := test(t)
		for name, manifest := range map[string]string{
			"label": optedOut(pod("label", "", image(mute, "arm"))),
			"node":  pod("node", "nodeName: amd64-0, ", image(mute, "arm")),
			"plane": pod("plane", controlPlane, image(mute, "arm")),
		} {
			unchanged(t, k.CreatePod(manifest))
			if name != "plane" { // there is no such node
				unchanged(t, f.run(name))
			}
		}
		k.Create(fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: a, image: %q}]}
`, image(mute, "arm")))
		f.wait("the DaemonSet has a pod on each node", 3+7, func(l life) bool {
			return l.last.Name == "plane" || bound(l)
		})
		for name, l := range f.all() {
			unchanged(t, l.last)
			if l.gated {
				t.Errorf("pod %s was gated", name)
			}
		}
		if w := f.writes(); len(w.done) > 0 {
			t.Errorf("we wrote to %v", w.done)
		}
	})
	t.Run("in a namespace that opted out", func(t *testing.T) {
		k, f := test(t, "archkeeper.io/placement=disabled")
		k.Eventually("the namespace is left alone", func(ctx context.Context) error {
			p, err := dryRun(ctx, k, pod("p", "", image(mute, "arm")))
			if err == nil && isGated(p) {
				return fmt.Errorf("a pod is gated")
			}
			return err
		})
		unchanged(t, k.CreatePod(pod("p", "", image(mute, "arm"))))
		f.run("p")
	})
	t.Run("in an excluded namespace", func(t *testing.T) {
		k, _ := test(t)
		manifest := filepath.Join(t.TempDir(), "pod.yaml")
		if err := os.WriteFile(manifest, []byte(pod("p", "", image(mute, "arm"))), 0o600); err != nil {
			t.Fatal(err)
		}
		if out := k.Kubectl("create", "--namespace=kube-system", "--dry-run=server", "-o", "yaml", "-f", manifest); strings.Contains(out, gate) {
			t.Errorf("a pod of kube-system is gated: %s", out)
		}
	})
	// Gatekeeper cannot see what makes a pod none of ours: whoever carries the
	// gate all the same is released at once, unchanged.
	t.Run("with our gate on them", func(t *testing.T) {
		k, f := test(t, ownWebhooks+"=none")
		k.CreatePod(optedOut(pod("label", gatedSpec, image(mute, "arm"))))
		k.CreatePod(pod("plane", gatedSpec+controlPlane, image(mute, "arm")))
		owner := k.Create(fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {nodeSelector: {nowhere: "1"}, containers: [{name: a, image: %q}]}
`, image(mute, "arm")))
		daemon := strings.Replace(pod("daemon", gatedSpec, image(mute, "arm")), "metadata: {", fmt.Sprintf(
			"metadata: {labels: {app: d}, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: %s, controller: true}], ", owner.GetUID()), 1)
		k.CreatePod(daemon)
		for _, name := range []string{"label", "plane", "daemon"} {
			f.one("is released", name, freed)
			unchanged(t, f.of(name).last)
		}
		if gated := len(f.writes().done); gated != 3 {
			t.Errorf("we wrote to %d pods", gated)
		}
	})
}
