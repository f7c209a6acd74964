package certificates

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestTheBundleReachesAllWhoTrust(t *testing.T) {
	provider := unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "externaldata.gatekeeper.sh/v1beta1", "kind": "Provider",
		"metadata": map[string]any{"name": "archkeeper"},
		"spec":     map[string]any{"url": "https://archkeeper.ns.svc:8443/v1/public", "timeout": int64(1)},
	}}
	client := fake.NewClientset(&admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mutate.archkeeper.io"},
		Webhooks:   []admissionv1.MutatingWebhook{{Name: "mutate.archkeeper.io", ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "ns", Name: "archkeeper"}}}},
	})
	existing := provider.DeepCopy()
	_ = unstructured.SetNestedField(existing.Object, "AAAA", "spec", "caBundle")
	existing.SetResourceVersion("1")
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{providers(): "ProviderList"}, existing)
	clock := clocktesting.NewFakeClock(start)
	c, err := New(Options{
		Client: client, Dynamic: dynamic, Namespace: "ns", Authority: "archkeeper-ca", Leaves: requests,
		Webhooks: []string{"mutate.archkeeper.io", "absent"}, AdmissionSecret: "admission", Providers: []unstructured.Unstructured{provider}, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	authority, err := client.CoreV1().Secrets("ns").Get(t.Context(), "archkeeper-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ca := authority.Data["tls.crt"]
	for _, name := range []string{"provider", "controllers"} {
		leaf, err := client.CoreV1().Secrets("ns").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(leaf.Data["ca.crt"], ca) || len(leaf.Data["tls.key"]) == 0 {
			t.Errorf("secret %s does not hold the bundle and a key", name)
		}
	}
	hook, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "mutate.archkeeper.io", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(hook.Webhooks[0].ClientConfig.CABundle, ca) {
		t.Error("the webhook configuration does not hold the bundle")
	}
	token, err := client.CoreV1().Secrets("ns").Get(t.Context(), "admission", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if path := hook.Webhooks[0].ClientConfig.Service.Path; path == nil || *path != "/v1/admit/"+string(token.Data["token"]) || len(*path) < 40 || strings.ToLower(*path) != *path {
		t.Errorf("the webhook's path is %v", path)
	}
	got, err := dynamic.Resource(providers()).Get(t.Context(), "archkeeper", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	encoded, _, _ := unstructured.NestedString(got.Object, "spec", "caBundle")
	if encoded != base64.StdEncoding.EncodeToString(ca) {
		t.Error("the Provider does not hold the bundle")
	}

	// A second time there is nothing to write.
	client.ClearActions()
	dynamic.ClearActions()
	clock.Step(time.Hour)
	if _, err := c.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range append(client.Actions(), dynamic.Actions()...) {
		if a.GetVerb() != "get" {
			t.Errorf("wrote again: %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

func TestAFollowedSecretWithoutABundleIsNamed(t *testing.T) {
	c, err := New(Options{
		Client: fake.NewClientset(), Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Namespace: "ns", Follow: "theirs",
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "ns/theirs") {
		t.Errorf("got %v, want an error that names ns/theirs", err)
	}
}

func TestAnAuthorityIsReplacedWhenAskedFor(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		action.(clienttesting.CreateAction).GetObject().(*corev1.Secret).ResourceVersion = "1" // the fake gives none
		return false, nil, nil
	})
	clock := clocktesting.NewFakeClock(start)
	c, err := New(Options{
		Client: client, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Namespace: "ns", Authority: "ca", Leaves: requests, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	once := func() *corev1.Secret {
		t.Helper()
		if _, err := c.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		secret, err := client.CoreV1().Secrets("ns").Get(t.Context(), "ca", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	first := once()
	first.Annotations = map[string]string{RotateAnnotation: "now"}
	if _, err := client.CoreV1().Secrets("ns").Update(t.Context(), first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	published := once()
	if len(published.Data[keyNextCert]) == 0 || len(published.Annotations) != 0 {
		t.Errorf("no next authority, or asked for still: %v", published.Annotations)
	}
	for range 4 {
		clock.Step(10 * time.Minute)
		published = once()
	}
	if bytes.Equal(published.Data[keyCert], first.Data[keyCert]) || len(published.Data[keyNextCert]) != 0 || len(published.Data[keyOld]) != 0 {
		t.Error("after the overlaps the new authority does not stand alone")
	}
}
