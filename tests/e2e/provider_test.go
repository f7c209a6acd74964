package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// The package's cluster, with Gatekeeper, the provider and the policies.
var (
	cluster  *controlplane.Cluster
	images   *archkeeper.Registry
	provider *archkeeper.Provider
)

const gate = "archkeeper.io/architecture"

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{Gatekeeper: &controlplane.GatekeeperOptions{}}, setup))
}

func setup(ctx context.Context, c *controlplane.Cluster) error {
	cluster = c
	var err error
	if images, err = archkeeper.ServeImages(); err != nil {
		return err
	}
	for repository, platforms := range map[string][]string{
		"shop/multi:1":   {"linux/amd64", "linux/arm64"},
		"shop/amd:1":     {"linux/amd64"},
		"shop/arm:1":     {"linux/arm64"},
		"shop/windows:1": {"windows/amd64:10.0.17763.1"},
	} {
		if _, err := images.Push(ctx, repository, platforms...); err != nil {
			return err
		}
	}
	provider, err = archkeeper.StartProvider(ctx, c, os.Stderr, archkeeper.ProviderOptions{PlainHTTPHosts: []string{images.Host}, Admission: true})
	if err != nil {
		return err
	}
	for name, path := range map[string]string{"archkeeper": "/v1/public", "archkeeper-pin": "/v1/pin"} {
		if err := provider.Register(ctx, name, path); err != nil {
			return err
		}
	}
	if err := c.ApplyFiles(ctx, "", policy("constraints", "image-architectures", "template.yaml")); err != nil {
		return err
	}
	return c.Gatekeeper.WaitTemplate(ctx, "imagearchitectures")
}

func policy(elements ...string) string {
	return filepath.Join(append([]string{archkeeper.Root(), "policies"}, elements...)...)
}

// constrain applies a sample constraint of image-architectures to the test's
// namespace alone, and waits until it is enforced.
func constrain(t *testing.T, k *controlplane.Test, sample string) *unstructured.Unstructured {
	t.Helper()
	objects, err := controlplane.DecodeFile(policy("constraints", "image-architectures", "samples", sample))
	if err != nil {
		t.Fatal(err)
	}
	constraint := objects[0]
	constraint.SetName(k.Namespace)
	if err := unstructured.SetNestedStringSlice(constraint.Object, []string{k.Namespace}, "spec", "match", "namespaces"); err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(constraint)
	if err != nil {
		t.Fatal(err)
	}
	k.ApplyForTest(string(content))
	if err := cluster.Gatekeeper.WaitConstraint(t.Context(), constraint.GetKind(), constraint.GetName()); err != nil {
		t.Fatal(err)
	}
	return constraint
}

// mutate applies a mutator for the time of the test and waits until it is in
// force.
func mutate(t *testing.T, k *controlplane.Test, manifest string) {
	t.Helper()
	objects, err := controlplane.Decode(manifest)
	if err != nil {
		t.Fatal(err)
	}
	k.ApplyForTest(manifest)
	for _, object := range objects {
		if err := cluster.Gatekeeper.WaitMutator(t.Context(), object.GetKind(), object.GetName()); err != nil {
			t.Fatal(err)
		}
	}
}

// pod is a manifest with one container an image, named c0, c1 and so on.
func pod(name string, references ...string) string {
	var containers []string
	for i, reference := range references {
		containers = append(containers, fmt.Sprintf("{name: c%d, image: %q}", i, reference))
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [%s]}}", name, strings.Join(containers, ", "))
}

func image(repository string) string { return images.Host + "/" + repository }

// fresh pushes an image under a tag that nobody has asked for yet: Gatekeeper
// and the provider have nothing in their caches.
func fresh(t *testing.T, repository string, platforms ...string) string {
	t.Helper()
	reference, err := images.Push(t.Context(), fmt.Sprintf("%s:%d", repository, time.Now().UnixNano()), platforms...)
	if err != nil {
		t.Fatal(err)
	}
	return reference
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
		t.Fatal("the pod was admitted")
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the denial does not say %q: %v", word, err)
		}
	}
}

func TestAPodWhoseImagesShareNoArchitectureIsDenied(t *testing.T) {
	k := cluster.Test(t)
	constrain(t, k, "constraint.yaml")
	_, err := k.TryCreatePod(pod("p", image("shop/amd:1"), image("shop/arm:1")))
	wantDenied(t, err, image("shop/amd:1"), "supports amd64", image("shop/arm:1"), "supports arm64", "no architecture is supported by all images")
}

func TestAPodThatSelectsAnArchitectureThatItsImageLacksIsDenied(t *testing.T) {
	k := cluster.Test(t)
	constrain(t, k, "constraint.yaml")
	_, err := k.TryCreatePod(strings.Replace(pod("p", image("shop/amd:1")), "spec: {", "spec: {nodeSelector: {kubernetes.io/arch: arm64}, ", 1))
	wantDenied(t, err, image("shop/amd:1"), "kubernetes.io/arch=arm64")
}

func TestAPodWhoseImagesShareAnArchitectureIsAdmittedAndRuns(t *testing.T) {
	k := cluster.Test(t)
	constrain(t, k, "constraint.yaml")
	k.CreatePod(pod("p", image("shop/multi:1"), image("shop/arm:1")))
	k.WaitRunning("p")
}

func TestADeploymentsPodsAreJudgedToo(t *testing.T) {
	k := cluster.Test(t)
	constrain(t, k, "constraint.yaml")
	k.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: a, image: %q}, {name: b, image: %q}]}
`, image("shop/amd:1"), image("shop/arm:1")))
	k.Eventually("the deployment says why it has no pods", func(context.Context) error {
		out, err := k.TryKubectl("get", "deployment", "d", "-o", "jsonpath={.status.conditions[?(@.type=='ReplicaFailure')].message}")
		if err != nil {
			return err
		}
		if !strings.Contains(out, "no architecture is supported by all images") {
			return fmt.Errorf("it says %q", out)
		}
		return nil
	})
}

func TestAuditReportsPodsThatWereThereBefore(t *testing.T) {
	k := cluster.Test(t)
	k.CreatePod(pod("old", image("shop/amd:1"), image("shop/arm:1")))
	constraint := constrain(t, k, "constraint.yaml")
	k.Eventually("the constraint reports the pod", func(ctx context.Context) error {
		object, err := cluster.Get(ctx, constraint.GetKind()+".v1beta1.constraints.gatekeeper.sh", "", constraint.GetName())
		if err != nil {
			return err
		}
		violations, _, err := unstructured.NestedSlice(object.Object, "status", "violations")
		if err != nil {
			return err
		}
		const images = 2
		if len(violations) != images {
			return fmt.Errorf("it reports %v", violations)
		}
		return nil
	})
}

func TestNewPodsGetTheGateAndKeepItOff(t *testing.T) {
	k := cluster.Test(t)
	content, err := os.ReadFile(policy("mutations", "scheduling-gate", "mutation.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	mutate(t, k, string(content))

	if !gated(k.CreatePod(pod("p", image("shop/multi:1")))) {
		t.Fatal("the pod was created without the gate")
	}
	k.Kubectl("patch", "pod", "p", "--type=json", `-p=[{"op":"remove","path":"/spec/schedulingGates"}]`)
	if gated(k.WaitRunning("p")) {
		t.Error("the gate came back in the update that removed it")
	}
	k.Kubectl("label", "pod", "p", "later=yes")

	free := strings.Replace(pod("free", image("shop/multi:1")), "{name: free", "{name: free, labels: {archkeeper.io/placement: disabled}", 1)
	if gated(k.CreatePod(free)) {
		t.Error("a pod that opted out got the gate")
	}
	k.Kubectl("label", "namespace", k.Namespace, "archkeeper.io/placement=disabled")
	k.Eventually("pods of a namespace that opted out are left alone", func(ctx context.Context) error {
		created, err := k.TryCreatePod(strings.Replace(pod("x", image("shop/multi:1")), "name: x", "generateName: x-", 1))
		if err != nil {
			return err
		}
		if gated(created) {
			return errors.New("a pod got the gate")
		}
		return nil
	})
}

// pinAssign is a mutator that pins the images of one namespace.
func pinAssign(namespace, failurePolicy string) string {
	return fmt.Sprintf(`
apiVersion: mutations.gatekeeper.sh/v1
kind: Assign
metadata: {name: pin-%[1]s}
spec:
  applyTo: [{groups: [""], kinds: [Pod], versions: [v1], operations: [CREATE]}]
  match: {source: Original, scope: Namespaced, namespaces: [%[1]s], kinds: [{apiGroups: [""], kinds: [Pod]}]}
  location: 'spec.containers[name:*].image'
  parameters:
    assign:
      externalData: {provider: archkeeper-pin, dataSource: ValueAtLocation, failurePolicy: %[2]s}
`, namespace, failurePolicy)
}

// warm asks until the provider knows an image: pinning has a short deadline of
// its own, which a busy machine can miss when the image is cold.
func warm(t *testing.T, k *controlplane.Test, reference string) {
	t.Helper()
	pair, err := cluster.Gatekeeper.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	k.Eventually("the provider pins "+reference, func(ctx context.Context) error {
		status, body, err := provider.Ask(ctx, provider.HTTPClient(certificate), "/v1/pin", "", reference)
		if err != nil {
			return err
		}
		if status != http.StatusOK || !strings.Contains(body, "@sha256:") {
			return fmt.Errorf("it answers %d: %s", status, body)
		}
		return nil
	})
}

func TestAnAssignPinsImagesToTheirDigests(t *testing.T) {
	k := cluster.Test(t)
	mutate(t, k, pinAssign(k.Namespace, "Fail"))
	reference := fresh(t, "shop/pinned", "linux/amd64", "linux/arm64")
	digest, err := images.Digest(t.Context(), reference)
	if err != nil {
		t.Fatal(err)
	}
	warm(t, k, reference)
	created := k.CreatePod(pod("p", reference, image("shop/multi:1")))
	if got, want := created.Spec.Containers[0].Image, reference+"@"+digest; got != want {
		t.Errorf("the image became %s, expected %s", got, want)
	}
	if got := created.Spec.Containers[1].Image; !strings.HasPrefix(got, image("shop/multi:1")+"@sha256:") {
		t.Errorf("the second image became %s", got)
	}
	_, err = k.TryCreatePod(pod("gone", image("shop/nobody:1")))
	wantDenied(t, err, "shop/nobody:1", "not-found")
}

func TestWhileTheProviderIsDownTheFailurePoliciesDecide(t *testing.T) {
	strict, lenient := cluster.Test(t), cluster.Test(t)
	mutate(t, strict, pinAssign(strict.Namespace, "Fail"))
	mutate(t, lenient, pinAssign(lenient.Namespace, "Ignore"))
	deny, allow := cluster.Test(t), cluster.Test(t)
	constrain(t, deny, "constraint.yaml")
	constrain(t, allow, "constraint-allow.yaml")
	reference := fresh(t, "shop/down", "linux/amd64")

	if err := provider.Process.Stop(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := provider.Process.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Gatekeeper has kept no failure: the image is known at once.
		warm(t, strict, reference)
		created := strict.CreatePod(pod("p", reference))
		if !strings.Contains(created.Spec.Containers[0].Image, "@sha256:") {
			t.Errorf("once the provider is back, the image is %s", created.Spec.Containers[0].Image)
		}
		deny.CreatePod(pod("p", reference))
	}()

	_, err := strict.TryCreatePod(pod("p", reference))
	wantDenied(t, err, "archkeeper-pin")
	if got := lenient.CreatePod(pod("p", reference)).Spec.Containers[0].Image; got != reference {
		t.Errorf("under failurePolicy Ignore the image became %s", got)
	}
	_, err = deny.TryCreatePod(pod("p", reference))
	wantDenied(t, err, "undetermined", reference)
	allow.CreatePod(pod("p", reference))
}

func TestAFrozenProviderIsAnUndeterminedImage(t *testing.T) {
	k := cluster.Test(t)
	constrain(t, k, "constraint.yaml")
	if err := provider.Process.Freeze(); err != nil {
		t.Fatal(err)
	}
	_, err := k.TryCreatePod(pod("p", fresh(t, "shop/frozen", "linux/amd64")))
	if err := provider.Process.Thaw(); err != nil {
		t.Fatal(err)
	}
	wantDenied(t, err, "undetermined")
}

func TestGatekeepersAuthorityRotatesWhileTheProviderRuns(t *testing.T) {
	k := cluster.Test(t)
	constrain(t, k, "constraint.yaml")
	pid := provider.Process.Pid()
	old, err := cluster.Gatekeeper.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Gatekeeper.RotateCA(t.Context()); err != nil {
		t.Fatal(err)
	}
	current, err := cluster.Gatekeeper.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	k.Eventually("the provider takes the new authority's certificate and no longer the old one's", func(ctx context.Context) error {
		for _, c := range []struct {
			pair   controlplane.KeyPair
			accept bool
		}{{current, true}, {old, false}} {
			certificate, err := c.pair.TLS()
			if err != nil {
				return err
			}
			if err := expectAccepted(ctx, certificate, c.accept); err != nil {
				return err
			}
		}
		return nil
	})
	// Through Gatekeeper, with images that no cache knows.
	good := fresh(t, "shop/rotated", "linux/amd64", "linux/arm64")
	k.Eventually("Gatekeeper asks with its new certificate", func(ctx context.Context) error {
		_, err := k.TryCreatePod(strings.Replace(pod("x", good), "name: x", "generateName: x-", 1))
		return err
	})
	_, err = k.TryCreatePod(pod("bad", fresh(t, "shop/rotated-amd", "linux/amd64"), fresh(t, "shop/rotated-arm", "linux/arm64")))
	wantDenied(t, err, "no architecture is supported by all images")
	if provider.Process.Pid() != pid {
		t.Error("the provider was restarted")
	}
}

// expectAccepted asks the provider with a client certificate; what is refused
// fails in the handshake or gives 401.
func expectAccepted(ctx context.Context, certificate tls.Certificate, accept bool) error {
	status, body, err := provider.Ask(ctx, provider.HTTPClient(certificate), "/v1/public", "", image("shop/multi:1"))
	accepted := err == nil && status == http.StatusOK
	if accepted == accept {
		return nil
	}
	return fmt.Errorf("accepted: %t, expected %t (status %d, error %v): %s", accepted, accept, status, err, body)
}

func TestAnAdminsTokenIsAnsweredAndAStrangersIsRefused(t *testing.T) {
	k := cluster.Test(t)
	k.ApplyForTest(fmt.Sprintf(`
{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: stranger}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: image-reader}
rules: [{nonResourceURLs: [/v1/images], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: image-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: image-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: %s}]
`, k.Namespace))
	token := func(account string) string { return strings.TrimSpace(k.Kubectl("create", "token", account)) }
	client := provider.HTTPClient()
	reference := image("shop/multi:1")

	reader := token("reader")
	k.Eventually("the reader is answered", func(ctx context.Context) error {
		status, body, err := provider.Image(ctx, client, reader, reference)
		if err != nil {
			return err
		}
		var answer struct {
			Image         string
			Architectures []string
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			return fmt.Errorf("status %d, %w: %s", status, err, body)
		}
		if status != http.StatusOK || answer.Image != reference || strings.Join(answer.Architectures, ",") != "amd64,arm64" {
			return fmt.Errorf("status %d: %s", status, body)
		}
		return nil
	})
	for who, c := range map[string]struct {
		token string
		want  int
	}{
		"a stranger":            {token("stranger"), http.StatusForbidden},
		"somebody unknown":      {"not-a-token", http.StatusUnauthorized},
		"somebody with nothing": {"", http.StatusUnauthorized},
	} {
		status, body, err := provider.Image(t.Context(), client, c.token, reference)
		if err != nil {
			t.Errorf("%s: %v", who, err)
			continue
		}
		if status != c.want {
			t.Errorf("%s gets status %d, expected %d: %s", who, status, c.want, body)
		}
		if strings.Contains(body, "arm64") {
			t.Errorf("%s learns what the image supports: %s", who, body)
		}
	}
	// The reader's role is for one path and one verb.
	status, body, err := provider.Ask(t.Context(), client, "/v1/public", reader, reference)
	if err != nil {
		t.Fatal(err)
	}
	if status != http.StatusForbidden {
		t.Errorf("the reader's POST to /v1/public gets status %d: %s", status, body)
	}
}
