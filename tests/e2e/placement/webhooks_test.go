package placement_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// withGatekeeper gives a test's namespace our gate by the shipped Assign, through
// Gatekeeper with a reinvocation policy, and our webhook under a name.
func withGatekeeper(t *testing.T, k *controlplane.Test, ours, reinvocation string, p *archkeeper.Provider) {
	t.Helper()
	only := metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{k.Namespace}}
	theirs, err := gatekeeperCopy(t.Context(), "gatekeeper-"+k.Namespace, only, reinvocation)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := controlplane.DecodeFile("../../../policies/mutations/scheduling-gate/mutation.yaml")
	if err != nil {
		t.Fatal(err)
	}
	assign := objects[0]
	assign.SetName("gate-" + k.Namespace)
	if err := unstructured.SetNestedStringSlice(assign.Object, []string{k.Namespace}, "spec", "match", "namespaces"); err != nil {
		t.Fatal(err)
	}
	for _, object := range []*unstructured.Unstructured{assign, theirs} {
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		k.ApplyForTest(string(text))
	}
	if err := cluster.Gatekeeper.WaitMutator(t.Context(), "Assign", assign.GetName()); err != nil {
		t.Fatal(err)
	}
	// Gatekeeper's webhook is in force once it gates.
	k.Eventually("Gatekeeper gates", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, pod("p", "", image(good, "arm")))
		if err == nil && !isGated(p) {
			return errors.New("a pod is not gated")
		}
		return err
	})
	k.ApplyForTest(webhook(ours, p, "{key: kubernetes.io/metadata.name, operator: In, values: ["+k.Namespace+"]}"))
	k.Eventually("our webhook is called", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, pod("p", "", image(good, "arm")))
		if err == nil && isGated(p) {
			return errors.New("a pod with a known image is gated")
		}
		return err
	})
}

// Gatekeeper's Assign and our webhook both gate, in whatever order they are
// called: none takes the gate for the other's, and it never comes back.
func TestGatekeepersGateAndOurWebhook(t *testing.T) {
	t.Parallel()
	number := 4
	for _, order := range []struct{ name, ours string }{{"Gatekeeper first", "mutate-%s.archkeeper.io"}, {"ours first", "archkeeper-%s"}} {
		for _, reinvocation := range []string{"Never", "IfNeeded"} {
			number++
			unknown := cold(slow, number, "arm")
			t.Run(order.name+"/"+reinvocation, func(t *testing.T) {
				t.Parallel()
				k, f := test(t, ownWebhooks+"=gatekeeper")
				withGatekeeper(t, k, fmt.Sprintf(order.ours, k.Namespace), reinvocation, provider)

				known := k.CreatePod(pod("known", "", image(good, "arm")))
				wantRequired(t, known, "kubernetes.io/arch In [arm64]")
				k.CreatePod(pod("unknown", "", unknown))
				k.CreatePod(pod("bad", "", "UPPER/Case:1"))
				k.CreatePod(pod("chosen", "nodeSelector: {kubernetes.io/arch: arm64}, ", image(good, "arm")))
				k.CreatePod(strings.Replace(pod("opted-out", "", unknown), "metadata: {", "metadata: {labels: {archkeeper.io/placement: disabled}, ", 1))
				k.CreatePod(pod("generated-", "", image(good, "arm")))
				k.Kubectl("create", "deployment", "d", "--replicas=3", "--image="+image(away, "z"))
				f.wait("all are bound but those whose registry is down", 9, func(l life) bool { return bound(l) || l.last.Labels["app"] == "d" })
				for name, l := range f.all() {
					if want := name == "unknown" || l.last.Labels["app"] == "d"; l.gated != want {
						t.Errorf("pod %s was gated: %t", name, l.gated)
					}
				}
				wantRequired(t, f.of("unknown").last, "kubernetes.io/arch In [arm64]")
				k.Kubectl("delete", "deployment", "d", "--cascade=foreground")
				// What is written later does not bring the gate back either.
				k.Kubectl("label", "pods", "--all", "later=yes")
				f.wait("the labels are seen", 9, func(l life) bool { return l.last.Labels["later"] == "yes" || l.last.Labels["app"] == "d" })
				f.mu.Lock()
				for name, l := range f.pods {
					if l.again {
						t.Errorf("the gate of pod %s came back", name)
					}
					// the Deployment's were not ours to finish.
					if l.last.Labels["app"] == "d" || name == "bad" || name == "opted-out" {
						delete(f.pods, name)
					}
				}
				f.mu.Unlock()
				if gated := f.check(); gated != 1 {
					t.Errorf("%d pods were gated", gated)
				}
			})
		}
	}
}

// Admission gates while it sees the controller's Lease renewed; when that ends, it
// does not, and takes off the gate that Gatekeeper has put on.
func TestWithoutALivingControllerNothingIsGated(t *testing.T) {
	t.Parallel()
	const lease = "interlock"
	lonely, err := archkeeper.StartProvider(t.Context(), cluster, t.Output(), archkeeper.ProviderOptions{
		Name: "lonely", Admission: true, PlainHTTPHosts: []string{good.Host, away.Host, mute.Host},
		Flags: []string{"--lease=" + archkeeper.Namespace + "/" + lease},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lonely.Process.Stop(); err != nil {
			t.Error(err)
		}
	})
	k, f := test(t, ownWebhooks+"=interlock")
	withGatekeeper(t, k, "mutate-"+k.Namespace+".archkeeper.io", "IfNeeded", lonely)
	unknown := pod("p-", "", image(away, "arm"))
	if p := k.CreatePod(unknown); isGated(p) {
		t.Error("a pod is gated before any renewal was seen")
	}

	alive, die := context.WithCancel(t.Context())
	defer die()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		renew(alive, lease)
	}()
	k.Eventually("the controller is taken for alive", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, unknown)
		if err == nil && !isGated(p) {
			return errors.New("pods are not gated")
		}
		return err
	})
	die()
	<-ended
	gone := time.Now()
	k.Eventually("the controller is taken for dead", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, unknown)
		if err == nil && isGated(p) {
			return errors.New("pods are gated")
		}
		return err
	})
	t.Logf("no gate %s after the last renewal", time.Since(gone).Round(100*time.Millisecond))
	p := k.CreatePod(unknown)
	if isGated(p) || required(p) != nil {
		t.Errorf("gates %v, requires %v", p.Spec.SchedulingGates, required(p))
	}
	wantRequired(t, k.CreatePod(pod("known", "", image(good, "arm"))), "kubernetes.io/arch In [arm64]")
	f.wait("all are bound", 3, bound)
	if w := f.writes(); len(w.done) > 0 {
		t.Errorf("we wrote to %v", w.done)
	}
}

// renew keeps a Lease as a leader does, until ctx ends.
func renew(ctx context.Context, name string) {
	leases := cluster.Client.CoordinationV1().Leases(archkeeper.Namespace)
	holder, seconds := "somebody", int32(15)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for {
		now := metav1.NowMicro()
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}
		if lease.ResourceVersion == "" {
			if made, err := leases.Create(ctx, lease, metav1.CreateOptions{}); err == nil {
				lease = made
			}
		} else if renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
			lease = renewed
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Another mutating webhook changes gated pods in every update, ours included, and
// a client writes to them all the time: nothing of theirs is lost.
func TestOthersEditGatedPods(t *testing.T) {
	t.Parallel()
	k, f := test(t)
	other := editor(t)
	k.ApplyForTest(fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: editor-%[1]s}
webhooks:
  - name: editor.example.com
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    reinvocationPolicy: IfNeeded
    timeoutSeconds: 10
    clientConfig: {url: %[2]q, caBundle: %[3]s}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pods]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
`, k.Namespace, other.url, base64.StdEncoding.EncodeToString(other.ca)))
	k.Eventually("the other webhook is called", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, pod("p", "", image(mute, "arm")))
		if err == nil && p.Annotations["editor.example.com/seen"] == "" {
			return errors.New("it is not")
		}
		return err
	})
	const pods = 10
	for i := range pods {
		k.CreatePod(pod(fmt.Sprintf("p%d", i), "", cold(slow, 9, "arm")))
	}
	// Write to each pod until it is placed, and once more.
	client := cluster.Client.CoreV1().Pods(k.Namespace)
	written := map[string]int{}
	for n := 1; ; n++ {
		waiting := 0
		for name, l := range f.all() {
			patch := fmt.Sprintf(`{"metadata": {"labels": {"n%d": "yes"}}}`, n)
			if _, err := client.Patch(t.Context(), name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			written[name] = n
			if !bound(l) {
				waiting++
			}
		}
		if waiting == 0 && len(f.all()) == pods {
			break
		}
		if n > 2000 {
			t.Fatal("the pods are not placed")
		}
	}
	for name, n := range written {
		p := k.Pod(name)
		wantRequired(t, p, "kubernetes.io/arch In [arm64]")
		for i := range n {
			if p.Labels[fmt.Sprintf("n%d", i+1)] != "yes" {
				t.Errorf("label n%d of pod %s is lost", i+1, name)
			}
		}
		if p.Annotations["editor.example.com/seen"] == "" || len(p.Spec.Tolerations) < 3 {
			t.Errorf("pod %s lost what the webhook wrote: %v, %v", name, p.Annotations, p.Spec.Tolerations)
		}
	}
	f.check()
	t.Logf("%d writes of ours met a newer pod and began from fresh", f.writes().stale)
}

type webhookServer struct {
	url string
	ca  []byte
}

// editor is a webhook of somebody else: it counts in an annotation how often it was
// called and adds a toleration.
func editor(t *testing.T) webhookServer {
	t.Helper()
	ca, err := controlplane.NewCA("editor")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(controlplane.Leaf{CommonName: "editor", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.CertPEM, leaf.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		body, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
		if err == nil {
			err = json.Unmarshal(body, &review)
		}
		var p corev1.Pod
		if err == nil {
			err = json.Unmarshal(review.Request.Object.Raw, &p)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		annotations := map[string]string{"editor.example.com/seen": fmt.Sprintf("%s by %s", review.Request.Operation, review.Request.UserInfo.Username)}
		for key, value := range p.Annotations {
			if _, ok := annotations[key]; !ok {
				annotations[key] = value
			}
		}
		operations := []map[string]any{{"op": "add", "path": "/metadata/annotations", "value": annotations}}
		if len(p.Spec.Tolerations) < 3 {
			tolerations := append(p.Spec.Tolerations, corev1.Toleration{Key: "editor.example.com", Operator: corev1.TolerationOpExists})
			operations = append(operations, map[string]any{"op": "add", "path": "/spec/tolerations", "value": tolerations})
		}
		kind := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &kind}
		if review.Response.Patch, err = json.Marshal(operations); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	server.StartTLS()
	t.Cleanup(server.Close)
	return webhookServer{url: server.URL, ca: ca.CertPEM}
}
