// Package placement_test places pods on a real control plane with nodes of five
// kinds: the admission webhook and two replicas of the controllers as processes,
// and registries that are good, slow, down and silent.
package placement_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

const (
	gate          = "archkeeper.io/architecture"
	decided       = "archkeeper.io/decided"
	leaseDuration = 15 * time.Second
	// ownWebhooks on a namespace keeps the shared webhook, and Gatekeeper's, away:
	// the test brings its own, or none.
	ownWebhooks = "e2e.test/own-webhooks"
)

// What the package's tests share. Images of the good registry are answered at
// once, those of slow after more time than an admission has, those of down when
// a test that runs alone has brought it up, those of silent never.
var (
	cluster                      *controlplane.Cluster
	provider                     *archkeeper.Provider
	replicas                     []*replica
	good, slow, down, away, mute *archkeeper.Registry
	configuration                string
)

// platforms of the images that every registry has, as shop/NAME:1.
var platforms = map[string][]string{
	"multi": {"linux/amd64", "linux/arm64", "linux/s390x", "linux/ppc64le"},
	"two":   {"linux/amd64", "linux/arm64"},
	"amd":   {"linux/amd64"},
	"arm":   {"linux/arm64"},
	"z":     {"linux/s390x"},
	"power": {"linux/ppc64le"},
	"win":   {"windows/amd64:10.0.17763.1"},
}

const defaults = "{apiVersion: archkeeper.io/v1alpha1, kind: Configuration, placement: {holdDeadline: 5m}}\n"

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{
		Nodes: []controlplane.Node{
			{Name: "amd64-0", Arch: "amd64", Labels: map[string]string{"zone": "a"}},
			{Name: "amd64-1", Arch: "amd64", Labels: map[string]string{"zone": "b"}},
			{Name: "arm64-0", Arch: "arm64", Labels: map[string]string{"zone": "a"}},
			{Name: "arm64-1", Arch: "arm64", Labels: map[string]string{"zone": "b"}},
			{Name: "s390x-0", Arch: "s390x"}, {Name: "ppc64le-0", Arch: "ppc64le"},
			{Name: "windows-0", Arch: "amd64", OS: "windows"},
		},
		Gatekeeper: &controlplane.GatekeeperOptions{AuditInterval: -1},
	}, setup))
}

func setup(ctx context.Context, c *controlplane.Cluster) error {
	cluster = c
	var hosts []string
	for _, r := range []**archkeeper.Registry{&good, &slow, &down, &away, &mute} {
		var err error
		if *r, err = archkeeper.ServeImages(); err != nil {
			return err
		}
		hosts = append(hosts, (*r).Host)
		for name, runs := range platforms {
			if _, err := (*r).Push(ctx, "shop/"+name+":1", runs...); err != nil {
				return err
			}
		}
	}
	for i := range colds {
		for name, runs := range platforms {
			for _, r := range []*archkeeper.Registry{slow, down} {
				if _, err := r.Push(ctx, fmt.Sprintf("shop/%s:cold-%d", name, i), runs...); err != nil {
					return err
				}
			}
		}
	}
	slow.Delay(1200 * time.Millisecond)
	mute.Delay(-1)
	if err := errors.Join(down.Down(), away.Down()); err != nil {
		return err
	}
	configuration = filepath.Join(c.StateDir(), "configuration.yaml")
	if err := controlplane.WriteFile(configuration, []byte(defaults)); err != nil {
		return err
	}
	var err error
	provider, err = archkeeper.StartProvider(ctx, c, os.Stderr, archkeeper.ProviderOptions{
		PlainHTTPHosts: hosts, Admission: true, Deadline: 2500 * time.Millisecond,
		Flags: []string{"--config=" + configuration, "--lease=" + archkeeper.Namespace + "/archkeeper-controllers"},
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"controllers-a", "controllers-b"} {
		controllers, err := archkeeper.StartControllers(ctx, c, os.Stderr, archkeeper.ControllersOptions{
			Name: name, Provider: provider, LeaseDuration: leaseDuration, Config: configuration,
		})
		if err != nil {
			return err
		}
		r := &replica{Controllers: controllers}
		r.wanted.Store(true)
		go r.supervise(ctx)
		replicas = append(replicas, r)
	}
	if err := keepGatekeeperAway(ctx); err != nil {
		return err
	}
	if err := c.Apply(ctx, "", webhook("mutate.archkeeper.io", provider, "{key: "+ownWebhooks+", operator: DoesNotExist}")); err != nil {
		return err
	}
	return waitAlive(ctx)
}

// waitAlive waits until admission knows that a replica leads: before that it does
// not gate.
func waitAlive(ctx context.Context) error {
	k := &controlplane.Test{Cluster: cluster, Namespace: "default"}
	return controlplane.WaitFor(ctx, "pods are gated", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, pod("alive-", "", image(mute, "arm")))
		if err == nil && !isGated(p) {
			return errors.New("a pod with an unknown image is not")
		}
		return err
	})
}

// webhook is the chart's configuration, called at a local address, for the
// namespaces that a requirement selects. A webhook that cannot be called fails the
// request: a test must not take that for an answer.
func webhook(name string, p *archkeeper.Provider, namespaces string) string {
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: %s}
webhooks:
  - name: mutate.archkeeper.io
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    reinvocationPolicy: IfNeeded
    timeoutSeconds: 10
    clientConfig: {url: %q, caBundle: %s}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}]
    namespaceSelector:
      matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: NotIn, values: [archkeeper-system, gatekeeper-system]}
        - {key: archkeeper.io/placement, operator: NotIn, values: [disabled]}
        - %s
    objectSelector: {matchExpressions: [{key: archkeeper.io/placement, operator: NotIn, values: [disabled]}]}
    matchConditions:
      - {name: not-bound, expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"}
      - name: not-of-a-daemonset
        expression: "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o, o.kind == 'DaemonSet' && o.apiVersion.startsWith('apps/') && has(o.controller) && o.controller)"
`, name, p.AdmissionURL, base64.StdEncoding.EncodeToString(p.CA.CertPEM), namespaces)
}

const gatekeeperWebhooks = "gatekeeper-mutating-webhook-configuration"

// keepGatekeeperAway leaves the namespaces of tests with webhooks of their own to
// these.
func keepGatekeeperAway(ctx context.Context) error {
	object, err := gatekeeperCopy(ctx, gatekeeperWebhooks, metav1.LabelSelectorRequirement{Key: ownWebhooks, Operator: metav1.LabelSelectorOpDoesNotExist}, "Never")
	if err != nil {
		return err
	}
	return cluster.ApplyObjects(ctx, "", object)
}

// gatekeeperCopy is Gatekeeper's mutating configuration under a name, for some
// namespaces and with a reinvocation policy.
func gatekeeperCopy(ctx context.Context, name string, namespaces metav1.LabelSelectorRequirement, reinvocation string) (*unstructured.Unstructured, error) {
	object, err := cluster.Get(ctx, "MutatingWebhookConfiguration.v1.admissionregistration.k8s.io", "", gatekeeperWebhooks)
	if err != nil {
		return nil, err
	}
	webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return nil, err
	}
	for _, item := range webhooks {
		w := item.(map[string]any)
		w["reinvocationPolicy"] = reinvocation
		w["failurePolicy"] = "Fail"
		requirement := map[string]any{"key": namespaces.Key, "operator": string(namespaces.Operator)}
		if len(namespaces.Values) > 0 {
			requirement["values"] = []any{namespaces.Values[0]}
		}
		if err := unstructured.SetNestedSlice(w, []any{requirement}, "namespaceSelector", "matchExpressions"); err != nil {
			return nil, err
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(),
		"metadata": map[string]any{"name": name}, "webhooks": webhooks,
	}}, nil
}

// test makes a namespace, labelled and annotated, and follows its pods.
func test(t *testing.T, metadata ...string) (*controlplane.Test, *following) {
	t.Helper()
	k := cluster.Test(t)
	for _, each := range metadata {
		verb := "label"
		if strings.Contains(each, "placement.archkeeper.io/") {
			verb = "annotate"
		}
		k.Kubectl(verb, "namespace", k.Namespace, each)
	}
	return k, follow(t, k)
}

// pod is a manifest. more are fields of the spec, each with a comma behind.
func pod(name, more string, images ...string) string {
	var containers []string
	for i, image := range images {
		containers = append(containers, fmt.Sprintf("{name: c%d, image: %q}", i, image))
	}
	key := "name"
	if strings.HasSuffix(name, "-") {
		key = "generateName"
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {%s: %s}, spec: {%scontainers: [%s]}}", key, name, more, strings.Join(containers, ", "))
}

// gatedSpec puts our gate on a pod as a user or Gatekeeper would.
const gatedSpec = "schedulingGates: [{name: " + gate + "}], "

// colds is how many images of each kind the slow registry, and the one that is
// down, have that one test alone asks for: the provider remembers what it was told.
const colds = 11

func cold(r *archkeeper.Registry, n int, name string) string {
	return fmt.Sprintf("%s/shop/%s:cold-%d", r.Host, name, n)
}

func image(r *archkeeper.Registry, name string) string { return r.Host + "/shop/" + name + ":1" }

// warm makes the images known, by pods that are not created.
func warm(t *testing.T, k *controlplane.Test, images ...string) {
	t.Helper()
	k.Eventually("the images are known", func(ctx context.Context) error {
		for _, image := range images {
			created, err := dryRun(ctx, k, pod("warm-", "", image))
			if err != nil {
				return err
			}
			if isGated(created) {
				return fmt.Errorf("%s is not", image)
			}
		}
		return nil
	})
}

func dryRun(ctx context.Context, k *controlplane.Test, manifest string) (*corev1.Pod, error) {
	objects, err := controlplane.Decode(manifest)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(objects[0])
	if err != nil {
		return nil, err
	}
	var p corev1.Pod
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, err
	}
	return cluster.Client.CoreV1().Pods(k.Namespace).Create(ctx, &p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

func isGated(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gate })
}

// required is the required node affinity, a term a string, its expressions
// sorted: "kubernetes.io/arch In [arm64], zone In [a]".
func required(p *corev1.Pod) []string {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	terms := []string{}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var expressions []string
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelOSStable {
				continue // the cluster has Windows
			}
			text := fmt.Sprintf("%s %s", e.Key, e.Operator)
			if len(e.Values) > 0 {
				text += fmt.Sprintf(" %v", e.Values)
			}
			expressions = append(expressions, text)
		}
		slices.Sort(expressions)
		terms = append(terms, strings.Join(expressions, ", "))
	}
	return terms
}

func wantRequired(t *testing.T, p *corev1.Pod, want ...string) {
	t.Helper()
	if got := required(p); !slices.Equal(got, want) {
		t.Errorf("pod %s requires %q, want %q", p.Name, got, want)
	}
}

// event waits for an event about a pod and gives its note.
func event(k *controlplane.Test, name, reason string) string {
	var note string
	k.Eventually("pod "+name+" has an event "+reason, func(ctx context.Context) error {
		all, err := cluster.Client.EventsV1().Events(k.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range all.Items {
			if e.Regarding.Name != name {
				continue
			}
			if e.Reason == reason {
				note = e.Note
				return nil
			}
			others = append(others, e.Reason)
		}
		return fmt.Errorf("it has %v", others)
	})
	return note
}
