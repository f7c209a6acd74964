// Package importmode runs the import mode controller against a real API server
// with the CRDs of OpenShift, as the service account that the chart gives it.
package importmode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/controllers/importmode"
	"github.com/archkeeper/archkeeper/tests/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{}, func(_ context.Context, c *controlplane.Cluster) error {
		cluster = c
		return nil
	}))
}

const (
	images   = "0000_10_config-operator_01_images.crd.yaml"
	versions = "0000_00_cluster-version-operator_01_clusterversions-Default.crd.yaml"
)

var (
	imagesResource   = schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "images"}
	versionsResource = schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "clusterversions"}
)

// crd gives a CRD of openshift/api in the version that this module pins.
func crd(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/openshift/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "config", "v1", "zz_generated.crd-manifests", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// chartRules are the rules of the chart, as YAML list items.
func chartRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/charts/archkeeper/templates/_importmode.tpl")
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "{{") {
			rules = append(rules, "  "+line)
		}
	}
	return strings.Join(rules, "")
}

// fixture is a cluster with one running controller.
type fixture struct {
	*controlplane.Test
	clock *clocktesting.FakeClock
	user  string
	audit int64
}

// newFixture gives a service account the chart's rules. start starts a controller as it.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	k := cluster.Test(t)
	f := &fixture{Test: k, clock: clocktesting.NewFakeClock(time.Now()), audit: cluster.AuditSize(),
		user: "system:serviceaccount:" + k.Namespace + ":controllers"}
	k.ApplyForTest(fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: controllers, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s-importmode}
rules:
%[2]s---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-importmode}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s-importmode}
subjects: [{kind: ServiceAccount, name: controllers, namespace: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: importmode, namespace: %[1]s}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [archkeeper-importmode], verbs: [get, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: importmode, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: importmode}
subjects: [{kind: ServiceAccount, name: controllers, namespace: %[1]s}]
`, k.Namespace, chartRules(t)))
	return f
}

// start runs a controller until the test ends, or until the returned stop.
func (f *fixture) start(t *testing.T, policy importmode.Policy) (stop func()) {
	t.Helper()
	kubeconfig, err := cluster.KubeconfigForServiceAccount(t.Context(), f.Namespace, "controllers")
	if err != nil {
		t.Fatal(err)
	}
	config, err := cluster.ConfigFor(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	c, err := importmode.New(importmode.Options{
		Governed: dynamic.NewForConfigOrDie(config), Discovery: client.Discovery(), Own: client,
		Namespace: f.Namespace, Name: "archkeeper-importmode", Policy: policy, Clock: f.clock,
		Recorder: record.NewFakeRecorder(1000),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = c.Start(ctx) })
	stop = func() { cancel(); done.Wait() }
	t.Cleanup(stop)
	return stop
}

// step lets time pass for the controller.
func (f *fixture) step(d time.Duration) { f.clock.Step(d) }

// expire is step once the controller waits for time to pass. A look that had not
// ended would count its delay from after the step.
func (f *fixture) expire(d time.Duration) {
	f.Eventually("the controller waits", func(context.Context) error {
		if !f.clock.HasWaiters() {
			return errors.New("it has no timer")
		}
		return nil
	})
	f.step(d)
}

func (f *fixture) mode(ctx context.Context) string {
	o, err := cluster.Dynamic.Resource(imagesResource).Get(ctx, "cluster", metav1.GetOptions{})
	if err != nil {
		return "error: " + err.Error()
	}
	s, _, _ := unstructured.NestedString(o.Object, "status", "imageStreamImportMode")
	return s
}

// wantMode waits until the status has a value and the controller knows it: so
// the audit log has its write, too. Within five seconds is what a user may
// expect; the harness's longer wait is for busy machines.
func (f *fixture) wantMode(t *testing.T, want string) {
	t.Helper()
	f.Eventually("status.imageStreamImportMode is "+want, func(ctx context.Context) error {
		var st importmode.Status
		text := f.statusText(ctx)
		if err := json.Unmarshal([]byte(text), &st); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		if got := f.mode(ctx); got != want || string(st.Current) != want {
			return fmt.Errorf("it is %q; status: %s", got, text)
		}
		return nil
	})
}

func (f *fixture) statusText(ctx context.Context) string {
	cm, err := cluster.Client.CoreV1().ConfigMaps(f.Namespace).Get(ctx, "archkeeper-importmode", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return cm.Data["status"]
}

func (f *fixture) wantCondition(t *testing.T, kind string, want metav1.ConditionStatus) {
	t.Helper()
	f.Eventually(fmt.Sprintf("condition %s is %s", kind, want), func(ctx context.Context) error {
		var st importmode.Status
		text := f.statusText(ctx)
		if err := json.Unmarshal([]byte(text), &st); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		for _, c := range st.Conditions {
			if c.Type == kind && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("status: %s", text)
	})
}

// writes counts the controller's patches of the governed object since the
// fixture was made, and fails on anything else that it did to governed objects
// and on any Forbidden.
func (f *fixture) writes(t *testing.T) int {
	t.Helper()
	events, err := cluster.Audit(f.audit, func(e *auditv1.Event) bool { return e.User.Username == f.user })
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range events {
		if e.ResponseStatus != nil && e.ResponseStatus.Code == 403 {
			t.Errorf("forbidden: %s %s", e.Verb, e.RequestURI)
		}
		if e.ObjectRef == nil || e.ObjectRef.APIGroup != "config.openshift.io" {
			continue
		}
		switch e.Verb {
		case "get", "list", "watch":
		case "patch":
			if e.ObjectRef.Resource != "images" || e.ObjectRef.Subresource != "status" || e.ObjectRef.Name != "cluster" {
				t.Errorf("patched %s", e.RequestURI)
			}
			if e.ResponseStatus != nil && e.ResponseStatus.Code == 200 {
				n++
			}
		default:
			t.Errorf("%s %s", e.Verb, e.RequestURI)
		}
	}
	return n
}

func (f *fixture) patch(t *testing.T, r schema.GroupVersionResource, name, sub string, body map[string]any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	var subs []string
	if sub != "" {
		subs = []string{sub}
	}
	if _, err := cluster.Dynamic.Resource(r).Patch(t.Context(), name, types.MergePatchType, raw, metav1.PatchOptions{FieldManager: "tests"}, subs...); err != nil {
		t.Fatal(err)
	}
}

// release sets what ClusterVersion says; arch "" is a single-arch payload.
func (f *fixture) release(t *testing.T, arch string, states ...string) {
	t.Helper()
	history := []any{}
	for i, state := range states {
		// A merge patch cannot carry the null that completionTime is at first; nobody reads it.
		history = append(history, map[string]any{"state": state, "startedTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T01:00:00Z",
			"version": fmt.Sprintf("4.%d.0", 30-i), "image": "payload", "verified": true})
	}
	desired := map[string]any{"image": "payload", "version": "4.30.0", "architecture": nil}
	if arch != "" {
		desired["architecture"] = arch
	}
	f.patch(t, versionsResource, "version", "status", map[string]any{"status": map[string]any{
		"desired": desired, "history": history, "observedGeneration": 1, "versionHash": "x", "availableUpdates": []any{},
	}})
}

func (f *fixture) makeImage(t *testing.T) {
	t.Helper()
	f.ApplyForTest(`{apiVersion: config.openshift.io/v1, kind: Image, metadata: {name: cluster}, spec: {registrySources: {blockedRegistries: [evil.example.com]}}}`)
}

func (f *fixture) makeVersion(t *testing.T) {
	t.Helper()
	f.ApplyForTest(`{apiVersion: config.openshift.io/v1, kind: ClusterVersion, metadata: {name: version}, spec: {clusterID: 11111111-2222-4333-8444-555555555555}}`)
}

// edits changes both objects a hundred times in ways that do not matter.
func (f *fixture) edits(t *testing.T) {
	t.Helper()
	for i := range 100 {
		f.patch(t, imagesResource, "cluster", "", map[string]any{"metadata": map[string]any{"annotations": map[string]any{"edit": fmt.Sprint(i)}}})
		f.patch(t, versionsResource, "version", "", map[string]any{"metadata": map[string]any{"annotations": map[string]any{"edit": fmt.Sprint(i)}}})
	}
}

// settle waits until the controller has seen the object's present state: a
// mark that it must react to, made last.
func (f *fixture) settle(t *testing.T) {
	t.Helper()
	f.patch(t, imagesResource, "cluster", "status", map[string]any{"status": map[string]any{"imageStreamImportMode": nil}})
	f.wantMode(t, "PreserveOriginal")
}

// TestImportMode is one story, since the CRDs and the objects are the cluster's.
func TestImportMode(t *testing.T) {
	t.Run("without CRDs it is healthy, asks once a minute, and starts when they come", func(t *testing.T) {
		f := newFixture(t)
		f.start(t, importmode.Auto)
		f.wantCondition(t, importmode.Available, metav1.ConditionTrue)
		discoveries := func() int {
			events, err := cluster.Audit(f.audit, func(e *auditv1.Event) bool {
				return e.User.Username == f.user && e.RequestURI == "/apis/config.openshift.io/v1"
			})
			if err != nil {
				t.Fatal(err)
			}
			return len(events)
		}
		for range 5 {
			f.step(10 * time.Second)
		}
		if n := discoveries(); n != 1 {
			t.Errorf("%d discoveries within 50 seconds, want 1", n)
		}
		f.Apply(crd(t, images) + "\n---\n" + crd(t, versions))
		f.makeImage(t)
		f.patch(t, imagesResource, "cluster", "", map[string]any{"spec": map[string]any{"imageStreamImportMode": "PreserveOriginal"}})
		f.step(time.Minute)
		f.wantMode(t, "PreserveOriginal") // and no ClusterVersion was needed
		f.wantCondition(t, importmode.EvaluationConditionsDetected, metav1.ConditionTrue)
		if n := f.writes(t); n != 1 {
			t.Errorf("%d writes, want 1", n)
		}
		cluster.Kubectl(t.Context(), "delete", "crd", "images.config.openshift.io")
		f.Eventually("idle again", func(ctx context.Context) error {
			f.step(time.Second)
			if text := f.statusText(ctx); !strings.Contains(text, "WaitingForCRD") {
				return fmt.Errorf("status: %s", text)
			}
			return nil
		})
	})
	cluster.Kubectl(t.Context(), "delete", "crd", "images.config.openshift.io", "clusterversions.config.openshift.io", "--ignore-not-found")

	full := func(t *testing.T) *fixture {
		t.Helper()
		f := newFixture(t)
		f.Apply(crd(t, images) + "\n---\n" + crd(t, versions))
		f.makeImage(t)
		f.makeVersion(t)
		return f
	}
	t.Run("first install is Legacy at once", func(t *testing.T) {
		f := full(t)
		f.release(t, "", "Partial")
		f.start(t, importmode.Auto)
		f.wantMode(t, "Legacy")
	})
	t.Run("override removed on a settled single-arch cluster: Legacy, after the delay", func(t *testing.T) {
		f := full(t)
		f.release(t, "", "Completed")
		f.patch(t, imagesResource, "cluster", "", map[string]any{"spec": map[string]any{"imageStreamImportMode": "PreserveOriginal"}})
		f.start(t, importmode.Auto)
		f.wantMode(t, "PreserveOriginal")
		f.patch(t, imagesResource, "cluster", "", map[string]any{"spec": map[string]any{"imageStreamImportMode": nil}})
		f.wantCondition(t, importmode.Progressing, metav1.ConditionTrue)
		f.expire(119 * time.Second)
		if got := f.mode(t.Context()); got != "PreserveOriginal" {
			t.Errorf("before the delay: %s", got)
		}
		f.expire(time.Second)
		f.wantMode(t, "Legacy")
		if n := f.writes(t); n != 2 {
			t.Errorf("%d writes, want 2", n)
		}
	})
	t.Run("a multi payload: override removed, upgrade replayed, edits ignored, cleared status restored", func(t *testing.T) {
		f := full(t)
		f.release(t, "Multi", "Completed")
		f.patch(t, imagesResource, "cluster", "", map[string]any{"spec": map[string]any{"imageStreamImportMode": "Legacy"}})
		f.start(t, importmode.Auto)
		f.wantMode(t, "Legacy")
		f.patch(t, imagesResource, "cluster", "", map[string]any{"spec": map[string]any{"imageStreamImportMode": nil}})
		f.wantMode(t, "PreserveOriginal")
		before := f.writes(t)

		f.release(t, "", "Partial", "Completed")
		f.step(time.Hour)
		f.release(t, "Multi", "Partial", "Completed")
		f.step(time.Hour)
		f.release(t, "Multi", "Completed", "Completed")
		f.step(time.Hour)
		f.edits(t)
		spec := func() string {
			o, err := cluster.Dynamic.Resource(imagesResource).Get(t.Context(), "cluster", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			raw, _ := json.Marshal(o.Object["spec"])
			return string(raw)
		}
		was := spec()
		f.settle(t) // one write, the first since
		if n := f.writes(t) - before; n != 1 {
			t.Errorf("%d writes after an upgrade, 200 edits and one cleared status, want 1", n)
		}
		if got := spec(); got != was {
			t.Errorf("spec was %s and is %s", was, got)
		}
	})
	t.Run("a second writer that reverts is yielded to after three", func(t *testing.T) {
		f := full(t)
		f.release(t, "Multi", "Completed")
		f.start(t, importmode.Enforce)
		f.wantMode(t, "PreserveOriginal")
		for range 3 {
			f.wantMode(t, "PreserveOriginal")
			f.patch(t, imagesResource, "cluster", "status", map[string]any{"status": map[string]any{"imageStreamImportMode": "Legacy"}})
			f.Eventually("the controller has reacted", func(ctx context.Context) error {
				if f.mode(ctx) == "PreserveOriginal" || strings.Contains(f.statusText(ctx), "another writer undid") {
					return nil
				}
				return fmt.Errorf("status: %s", f.statusText(ctx))
			})
		}
		f.wantCondition(t, importmode.ConflictingWriter, metav1.ConditionTrue)
		f.step(time.Hour)
		f.edits(t)
		if got := f.mode(t.Context()); got != "Legacy" {
			t.Errorf("written again: %s", got)
		}
		if n := f.writes(t); n != 3 {
			t.Errorf("%d writes, want 3", n)
		}
	})
	t.Run("auto leaves the field to another owner", func(t *testing.T) {
		f := full(t)
		f.release(t, "Multi", "Completed")
		f.patch(t, imagesResource, "cluster", "status", map[string]any{"status": map[string]any{"imageStreamImportMode": "Legacy"}})
		f.start(t, importmode.Auto)
		f.Eventually("the other owner is named", func(ctx context.Context) error {
			if text := f.statusText(ctx); !strings.Contains(text, "field manager tests") {
				return fmt.Errorf("status: %s", text)
			}
			return nil
		})
		if n := f.writes(t); n != 0 {
			t.Errorf("%d writes, want none", n)
		}
	})
	t.Run("a CRD without the field is tried once, and again when it has come", func(t *testing.T) {
		f := newFixture(t)
		cluster.Kubectl(t.Context(), "delete", "crd", "images.config.openshift.io", "--ignore-not-found")
		without := strings.ReplaceAll(crd(t, images), "imageStreamImportMode", "somethingElse")
		f.Apply(without + "\n---\n" + crd(t, versions))
		f.makeImage(t)
		f.makeVersion(t)
		f.release(t, "Multi", "Completed")
		f.start(t, importmode.Auto)
		f.wantCondition(t, importmode.SchemaUnsupported, metav1.ConditionTrue)
		f.step(10 * time.Second)
		if n := f.attempts(t); n != 1 {
			t.Errorf("%d attempts, want 1", n)
		}
		f.Apply(crd(t, images))
		f.Eventually("recovered", func(ctx context.Context) error {
			f.step(time.Minute)
			if got := f.mode(ctx); got != "PreserveOriginal" {
				return fmt.Errorf("mode %q; status: %s", got, f.statusText(ctx))
			}
			return nil
		})
		f.wantCondition(t, importmode.SchemaUnsupported, metav1.ConditionFalse)
	})
}

// attempts counts the patches, whatever was answered.
func (f *fixture) attempts(t *testing.T) int {
	t.Helper()
	events, err := cluster.Audit(f.audit, func(e *auditv1.Event) bool { return e.User.Username == f.user && e.Verb == "patch" })
	if err != nil {
		t.Fatal(err)
	}
	return len(events)
}
