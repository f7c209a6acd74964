package certificates

import (
	"bytes"
	"crypto/rand"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestGatekeepersOldAuthorityStaysTrustedForADay(t *testing.T) {
	authority := func() []byte {
		pair, _, err := newAuthority(start, Lifetimes{}.withDefaults(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Cert
	}
	first, second := authority(), authority()
	hook := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "gatekeeper"},
		Webhooks:   []admissionv1.ValidatingWebhook{{Name: "validation.gatekeeper.sh"}},
	}
	hook.Webhooks[0].ClientConfig.CABundle = first
	client := fake.NewClientset(hook)
	clock := clocktesting.NewFakeClock(start)
	c, err := New(Options{
		Client: client, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Namespace: "ns", Authority: "ca",
		ClientAuthority: ClientAuthority{Webhook: "gatekeeper", ConfigMap: "gatekeeper-ca"}, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	mounted := func() []byte {
		t.Helper()
		if _, err := c.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		cm, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "gatekeeper-ca", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return []byte(cm.Data["ca.crt"])
	}
	if got := mounted(); !bytes.Equal(got, first) {
		t.Errorf("at first: %s", got)
	}
	clock.Step(time.Hour)
	hook.Webhooks[0].ClientConfig.CABundle = second
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(t.Context(), hook, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := mounted(); !bytes.Equal(got, append(bytes.Clone(second), first...)) {
		t.Errorf("after the rotation: %s", got)
	}
	clock.Step(formerlyTrusted - time.Second)
	if got := mounted(); !holds(got, first) {
		t.Error("the old authority is not trusted any more within a day")
	}
	clock.Step(time.Second)
	if got := mounted(); !bytes.Equal(got, second) {
		t.Errorf("after a day: %s", got)
	}
}
