// Package policies_test puts every policy of the library before a real API
// server with a real Gatekeeper.
package policies_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// The package's cluster, with Gatekeeper, the provider and every template.
var (
	cluster  *controlplane.Cluster
	images   *archkeeper.Registry
	provider *archkeeper.Provider
)

const (
	gate = "archkeeper.io/architecture"
	// auditPatience is many rounds of the audit, each of which reviews every
	// object of the cluster.
	auditPatience = 4 * time.Minute
)

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{
		// A webhook that times out admits: on a busy machine the provider's own
		// time must still be the shorter one.
		Gatekeeper: &controlplane.GatekeeperOptions{
			AuditInterval: 5 * time.Second, ValidatingTimeout: 30 * time.Second,
			// By default as many requests at once as there are cores: those that wait
			// for a provider that does not answer would queue.
			Flags: []string{"--max-serving-threads=16"},
		},
	}, setup))
}

func setup(ctx context.Context, c *controlplane.Cluster) error {
	cluster = c
	var err error
	if images, err = archkeeper.ServeImages(); err != nil {
		return err
	}
	for repository, platforms := range map[string][]string{
		"shop/multi:1":    {"linux/amd64", "linux/arm64"},
		"shop/amd:1":      {"linux/amd64"},
		"shop/arm:1":      {"linux/arm64"},
		"source/whole:1":  {"linux/amd64", "linux/arm64"},
		"mirror/whole:1":  {"linux/amd64", "linux/arm64"},
		"source/broken:1": {"linux/amd64", "linux/arm64"},
		"mirror/broken:1": {"linux/amd64"},
	} {
		if _, err := images.Push(ctx, repository, platforms...); err != nil {
			return err
		}
	}
	provider, err = archkeeper.StartProvider(ctx, c, os.Stderr, archkeeper.ProviderOptions{PlainHTTPHosts: []string{images.Host}})
	if err != nil {
		return err
	}
	for name, path := range map[string]string{"archkeeper": "/v1/public", "archkeeper-pin": "/v1/pin"} {
		if err := provider.Register(ctx, name, path); err != nil {
			return err
		}
	}
	if err := c.Apply(ctx, "", mirrorSetCRD); err != nil {
		return err
	}
	templates, err := filepath.Glob(policy("constraints", "*", "template.yaml"))
	if err != nil {
		return err
	}
	if err := c.ApplyFiles(ctx, "", templates...); err != nil {
		return err
	}
	for _, file := range templates {
		objects, err := controlplane.DecodeFile(file)
		if err != nil {
			return err
		}
		if err := c.Gatekeeper.WaitTemplate(ctx, objects[0].GetName()); err != nil {
			return err
		}
	}
	return c.ApplyFiles(ctx, "", policy("expansion", "expansion.yaml"))
}

// mirrorSetCRD stands in for OpenShift's, which validates more.
const mirrorSetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: imagedigestmirrorsets.config.openshift.io}
spec:
  group: config.openshift.io
  scope: Cluster
  names: {kind: ImageDigestMirrorSet, plural: imagedigestmirrorsets, singular: imagedigestmirrorset}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// room is one constraint before the live webhook.
type room struct {
	kind, parameters string
	// allowed and denied are pods, denial is what Gatekeeper says of the latter.
	allowed, denied, denial string
	// asks tells whether the provider is asked.
	asks bool
}

func rooms(t *testing.T) map[string]room {
	t.Helper()
	child, index := childDigest(t, "shop/multi:1")
	source, mirror := images.Host+"/source", images.Host+"/mirror"
	arm := "nodeSelector: {kubernetes.io/arch: arm64}, "
	return map[string]room{
		"image-architectures": {
			kind: "ImageArchitectures", parameters: "{}", asks: true,
			allowed: pod("", image("shop/multi:1"), image("shop/arm:1")),
			denied:  pod("", image("shop/amd:1"), image("shop/arm:1")),
			denial:  "supports arm64, but no architecture is supported by all images of the pod",
		},
		"require-multiarch": {
			kind: "RequireMultiarch", parameters: "{architectures: [amd64, arm64]}", asks: true,
			allowed: pod("", image("shop/multi:1")),
			denied:  pod("", image("shop/amd:1")),
			denial:  "missing arm64",
		},
		"architecture-selector-conflict": {
			kind: "ArchitectureSelectorConflict", parameters: "{}", asks: true,
			allowed: pod(arm, image("shop/arm:1")),
			denied:  pod(arm, image("shop/amd:1")),
			denial:  "the pod asks for nodeSelector kubernetes.io/arch=arm64, but its images run together on amd64",
		},
		"single-arch-digest": {
			kind: "SingleArchDigest", parameters: "{}", asks: true,
			allowed: pod("", image("shop/multi:1")+"@"+index),
			denied:  pod("", image("shop/multi:1")+"@"+child),
			denial:  "tag 1 also supports arm64", // audit cuts messages at 256 bytes
		},
		"mirror-flattened": {
			kind: "MirrorFlattened", parameters: fmt.Sprintf("{mirrors: [{source: %q, mirror: %q}]}", source, mirror), asks: true,
			allowed: pod("", source+"/whole:1"),
			denied:  pod("", source+"/broken:1"),
			denial:  "also supports arm64",
		},
		"gate-integrity": {
			kind: "GateIntegrity", parameters: "{}",
			allowed: pod("", image("shop/multi:1")),
			denied:  pod("affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}}}, ", image("shop/multi:1")),
			denial:  "a term of the required node affinity is empty",
		},
	}
}

// TestEveryTemplateIsTried keeps the table above complete.
func TestEveryTemplateIsTried(t *testing.T) {
	templates, err := filepath.Glob(policy("constraints", "*", "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tried := rooms(t)
	for _, file := range templates {
		name := filepath.Base(filepath.Dir(file))
		if _, ok := tried[name]; !ok && name != "mirror-sets" {
			t.Errorf("%s is not tried", name)
		}
	}
}

func TestTheWebhookAllowsAndDenies(t *testing.T) {
	for name, r := range rooms(t) {
		t.Run(name, func(t *testing.T) {
			k := cluster.Test(t)
			constrain(t, k, r.kind, r.parameters, "deny")
			k.CreatePod(r.allowed)
			_, err := k.TryCreatePod(r.denied)
			wantDenied(t, err, r.denial)
		})
	}
}

func TestADryRunIsJudgedAsTheRealThing(t *testing.T) {
	k := cluster.Test(t)
	r := rooms(t)["image-architectures"]
	constrain(t, k, r.kind, r.parameters, "deny")
	for manifest, allowed := range map[string]bool{r.allowed: true, r.denied: false} {
		file := filepath.Join(t.TempDir(), "pod.yaml")
		if err := os.WriteFile(file, []byte(strings.Replace(manifest, "generateName: p-", "name: dry", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := k.TryKubectl("create", "--dry-run=server", "-f", file)
		if (err == nil) != allowed {
			t.Errorf("allowed %t: %v %s", allowed, err, out)
		}
	}
	if out := k.Kubectl("get", "pods", "-o", "name"); strings.TrimSpace(out) != "" {
		t.Errorf("a dry run left %s", out)
	}
}

func TestAnEphemeralContainerIsJudgedWithThePod(t *testing.T) {
	k := cluster.Test(t)
	r := rooms(t)["image-architectures"]
	constrain(t, k, r.kind, r.parameters, "deny")
	created := k.CreatePod(pod("", image("shop/arm:1")))
	running := k.WaitRunning(created.Name)
	k.Kubectl("label", "pod", running.Name, "a=b") // no image changes: nobody is asked
	_, err := k.TryKubectl("debug", running.Name, "--image="+image("shop/amd:1"), "--container=tools")
	wantDenied(t, err, `ephemeral container "tools"`, r.denial[len("supports arm64, "):])
	k.Kubectl("debug", running.Name, "--image="+image("shop/multi:1"), "--container=tools")
}

func TestADeploymentIsDeniedByThePodsThatItWouldMake(t *testing.T) {
	k := cluster.Test(t)
	r := rooms(t)["image-architectures"]
	constrain(t, k, r.kind, r.parameters, "deny")
	k.Eventually("the expansion templates are in force", func(context.Context) error {
		_, err := k.TryCreate(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {generateName: d-}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: a, image: %q}, {name: b, image: %q}]}
`, image("shop/amd:1"), image("shop/arm:1")))
		if err == nil {
			return errors.New("the deployment was admitted")
		}
		if !strings.Contains(err.Error(), "[Implied by archkeeper-workloads]") || !strings.Contains(err.Error(), r.denial) {
			return controlplane.Final(fmt.Errorf("the denial says %w", err))
		}
		return nil
	})
	_, err := k.TryCreate(fmt.Sprintf(`
apiVersion: batch/v1
kind: CronJob
metadata: {name: c}
spec:
  schedule: "0 4 * * *"
  jobTemplate:
    spec:
      template:
        spec: {restartPolicy: Never, containers: [{name: a, image: %q}, {name: b, image: %q}]}
`, image("shop/amd:1"), image("shop/arm:1")))
	wantDenied(t, err, "[Implied by archkeeper-jobs]", r.denial)
}

func TestAuditReportsWhatEveryTemplateWouldDeny(t *testing.T) {
	for name, r := range rooms(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // an audit run serves them all
			k := cluster.Test(t)
			k.CreatePod(r.denied)
			constraint := constrain(t, k, r.kind, r.parameters, "dryrun")
			ctx, cancel := context.WithTimeout(t.Context(), auditPatience)
			defer cancel()
			err := controlplane.WaitFor(ctx, "the audit reports the pod", func(ctx context.Context) error {
				object, err := cluster.Get(ctx, r.kind+".v1beta1.constraints.gatekeeper.sh", "", constraint)
				if err != nil {
					return err
				}
				violations, _, err := unstructured.NestedSlice(object.Object, "status", "violations")
				if err != nil {
					return err
				}
				for _, violation := range violations {
					if message, _ := violation.(map[string]any)["message"].(string); strings.Contains(message, r.denial) {
						return nil
					}
				}
				return fmt.Errorf("it reports %v", violations)
			})
			if err != nil {
				t.Fatal(err)
			}
			k.CreatePod(r.denied) // dryrun denies nothing
		})
	}
}

func TestWithoutTheProviderNothingIsAllowedInSilence(t *testing.T) {
	type trial struct {
		room
		k *controlplane.Test
	}
	trials := map[string]trial{}
	for name, r := range rooms(t) {
		k := cluster.Test(t)
		constrain(t, k, r.kind, r.parameters, "deny")
		trials[name] = trial{r, k}
	}
	child, _ := childDigest(t, "shop/multi:1")
	// In no cache: what Gatekeeper knows it goes on answering.
	unknown := map[string]string{
		"image-architectures":            pod("", image("cold/a:1")),
		"require-multiarch":              pod("", image("cold/b:1")),
		"architecture-selector-conflict": pod("nodeSelector: {kubernetes.io/arch: arm64}, ", image("cold/c:1")),
		"single-arch-digest":             pod("", image("cold/d:1")+"@"+child),
		"mirror-flattened":               pod("", images.Host+"/source/cold:1"),
		"gate-integrity":                 "",
	}
	known := cluster.Test(t)
	constrain(t, known, "ImageArchitectures", "{}", "deny")
	known.CreatePod(pod("", image("shop/multi:1")))

	for name, disturb := range map[string]struct {
		begin, end func() error
	}{
		"down": {provider.Process.Stop, func() error { return provider.Process.Start(context.WithoutCancel(t.Context())) }},
		"slow": {provider.Process.Freeze, provider.Process.Thaw},
	} {
		t.Run(name, func(t *testing.T) {
			if err := disturb.begin(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := disturb.end(); err != nil {
					t.Fatal(err)
				}
			}()
			var waiting sync.WaitGroup // each waits out its own time
			for name, trial := range trials {
				if !trial.asks {
					trial.k.CreatePod(trial.allowed) // needs no provider
					continue
				}
				waiting.Go(func() {
					_, err := trial.k.TryCreatePod(unknown[name])
					wantDenied(t, err, "undetermined: ", `Provider "archkeeper" did not answer`)
				})
			}
			waiting.Wait()
			known.CreatePod(pod("", image("shop/multi:1"))) // from Gatekeeper's cache
		})
	}
}

func TestMirrorObjectsAreJudged(t *testing.T) {
	k := cluster.Test(t)
	k.ApplyForTest(`
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: MirrorSets
metadata: {name: mirror-sets}
spec:
  match: {kinds: [{apiGroups: [config.openshift.io], kinds: [ImageDigestMirrorSet]}]}
`)
	if err := cluster.Gatekeeper.WaitConstraint(t.Context(), "MirrorSets", "mirror-sets"); err != nil {
		t.Fatal(err)
	}
	mirrors := func(source string) string {
		return fmt.Sprintf("{apiVersion: config.openshift.io/v1, kind: ImageDigestMirrorSet, metadata: {generateName: m-}, spec: {imageDigestMirrors: [{source: %q, mirrors: [mirror.example/a]}]}}", source)
	}
	if _, err := k.TryCreate(mirrors("registry.example/team")); err != nil {
		t.Error(err)
	}
	_, err := k.TryCreate(mirrors("freezer/a"))
	wantDenied(t, err, "source freezer/a is not host[:port]")
}

// TestTheWholeBundleOfMutations applies every mutation of the library at once,
// to one namespace, as they are shipped but for the names.
func TestTheWholeBundleOfMutations(t *testing.T) {
	k := cluster.Test(t)
	files, err := filepath.Glob(policy("mutations", "*", "mutation.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	k.Kubectl("label", "namespace", k.Namespace, "archkeeper.io/required-architecture=arm64")
	var mutators []*unstructured.Unstructured
	for _, file := range files {
		objects, err := controlplane.DecodeFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			if err := unstructured.SetNestedStringSlice(object.Object, []string{k.Namespace}, "spec", "match", "namespaces"); err != nil {
				t.Fatal(err)
			}
			content, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			k.ApplyForTest(string(content))
			mutators = append(mutators, object)
		}
	}
	for _, mutator := range mutators {
		if err := cluster.Gatekeeper.WaitMutator(t.Context(), mutator.GetKind(), mutator.GetName()); err != nil {
			t.Fatal(err)
		}
	}
	_, index := childDigest(t, "shop/multi:1")
	var created *corev1.Pod
	k.Eventually("the provider has had the time to resolve the image", func(context.Context) error {
		var err error
		created, err = k.TryCreatePod(pod("", image("shop/multi:1")))
		if err != nil {
			return err
		}
		if got, want := created.Spec.Containers[0].Image, image("shop/multi:1")+"@"+index; got != want {
			return fmt.Errorf("the image is %s, not %s", got, want)
		}
		return nil
	})
	if !gated(created) {
		t.Error("no gate")
	}
	affinity := created.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || len(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 2 {
		t.Errorf("no preferences: %v", affinity)
	} else if required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required == nil ||
		len(required.NodeSelectorTerms) != 1 || required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "arm64" {
		t.Errorf("not required to run on arm64: %v", required)
	}
	// What the placement controller does: affinity is there, the gate goes, and the
	// label that it leaves brings the toleration with it. The gate stays away.
	k.Kubectl("patch", "pod", created.Name, "--type=json", `-p=[
		{"op":"remove","path":"/spec/schedulingGates"},
		{"op":"add","path":"/metadata/labels","value":{"architecture.archkeeper.io/arm64":"supported"}}]`)
	placed := k.WaitRunning(created.Name)
	if gated(placed) {
		t.Error("the gate came back")
	}
	tolerated := false
	for _, toleration := range placed.Spec.Tolerations {
		tolerated = tolerated || toleration.Key == "kubernetes.io/arch" && toleration.Value == "arm64"
	}
	if !tolerated {
		t.Errorf("no toleration among %v", placed.Spec.Tolerations)
	}
}

func TestTheNativePolicyGatesWithoutGatekeeper(t *testing.T) {
	k := cluster.Test(t)
	content, err := os.ReadFile(policy("native", "scheduling-gate.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	k.ApplyForTest(string(content))
	plain := pod("", image("shop/multi:1"))
	var first *corev1.Pod
	k.Eventually("the policy is in force", func(context.Context) error {
		var err error
		if first, err = k.TryCreatePod(plain); err != nil {
			return err
		}
		if !gated(first) {
			return errors.New("the pod has no gate")
		}
		return nil
	})
	t.Run("the gate can be removed and stays away", func(t *testing.T) {
		k.Kubectl("patch", "pod", first.Name, "--type=json", `-p=[{"op":"remove","path":"/spec/schedulingGates"}]`)
		if gated(k.WaitRunning(first.Name)) {
			t.Error("it came back")
		}
	})
	t.Run("a gate of another owner stays", func(t *testing.T) {
		created := k.CreatePod(pod("schedulingGates: [{name: quota.example/approved}], ", image("shop/multi:1")))
		if len(created.Spec.SchedulingGates) != 2 || !gated(created) {
			t.Errorf("the gates are %v", created.Spec.SchedulingGates)
		}
	})
	for name, manifest := range map[string]string{
		"a pod that names its node": pod("nodeName: node-1, ", image("shop/multi:1")),
		"a pod that opted out":      strings.Replace(plain, "generateName: p-", "generateName: p-, labels: {archkeeper.io/placement: disabled}", 1),
		"a pod of a DaemonSet": strings.Replace(plain, "generateName: p-",
			"generateName: p-, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: agent, uid: 7d8f6c1e-0000-4000-8000-000000000002, controller: true}]", 1),
	} {
		t.Run(name+" is left alone", func(t *testing.T) {
			if created := k.CreatePod(manifest); gated(created) {
				t.Error("it is gated")
			}
		})
	}
	t.Run("a namespace that opted out is left alone", func(t *testing.T) {
		k.Kubectl("label", "namespace", k.Namespace, "archkeeper.io/placement=disabled")
		k.Eventually("the label is seen", func(context.Context) error {
			created, err := k.TryCreatePod(plain)
			if err != nil {
				return err
			}
			if gated(created) {
				return errors.New("the pod is gated")
			}
			return nil
		})
	})
	t.Run("kube-system is left alone", func(t *testing.T) {
		created, err := cluster.Create(t.Context(), "kube-system", plain)
		if err != nil {
			t.Fatal(err)
		}
		gates, _, err := unstructured.NestedSlice(created[0].Object, "spec", "schedulingGates")
		if err != nil || len(gates) != 0 {
			t.Errorf("gates %v, %v", gates, err)
		}
	})
}

// constrain applies a constraint to the pods of the test's namespace, waits
// until it is in force and gives its name.
func constrain(t *testing.T, k *controlplane.Test, kind, parameters, action string) string {
	t.Helper()
	k.ApplyForTest(fmt.Sprintf(`
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: %s
metadata: {name: %s}
spec:
  enforcementAction: %s
  match: {namespaces: [%[2]s], kinds: [{apiGroups: [""], kinds: [Pod]}]}
  parameters: %[4]s
`, kind, k.Namespace, action, parameters))
	if err := cluster.Gatekeeper.WaitConstraint(t.Context(), kind, k.Namespace); err != nil {
		t.Fatal(err)
	}
	return k.Namespace
}

// pod is a manifest whose spec begins with the fields given, such as "nodeName: a, ".
func pod(spec string, references ...string) string {
	var containers []string
	for i, reference := range references {
		containers = append(containers, fmt.Sprintf("{name: c%d, image: %q}", i, reference))
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {generateName: p-}, spec: {%scontainers: [%s]}}", spec, strings.Join(containers, ", "))
}

func policy(elements ...string) string {
	return filepath.Join(append([]string{archkeeper.Root(), "policies"}, elements...)...)
}

func image(repository string) string { return images.Host + "/" + repository }

// childDigest gives the digests of the amd64 manifest and of the index of an image.
func childDigest(t *testing.T, repository string) (child, index string) {
	t.Helper()
	ref, err := name.ParseReference(image(repository), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	described, err := remote.Get(ref, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := described.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := manifests.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Manifests[0].Digest.String(), described.Digest.String()
}

func gated(p *corev1.Pod) bool {
	for _, g := range p.Spec.SchedulingGates {
		if g.Name == gate {
			return true
		}
	}
	return false
}

func wantDenied(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("it was admitted")
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the denial does not say %q: %v", word, err)
		}
	}
}
