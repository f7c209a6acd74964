package certificates

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

// theirs is a Secret that somebody else keeps.
func theirs(t *testing.T, authority Pair, bundle []byte) *corev1.Secret {
	t.Helper()
	leaf, err := newLeaf(start, Lifetimes{}.withDefaults(), authority, Request{Name: "provider", Hosts: []string{"provider.ns.svc"}}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "theirs"},
		Data:       map[string][]byte{keyCert: leaf.Cert, keyKey: leaf.Key, keyBundle: bundle},
	}
}

func TestTheAuthorityOfAFollowedSecretIsPublished(t *testing.T) {
	authority := func() Pair {
		pair, _, err := newAuthority(start, Lifetimes{}.withDefaults(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	first, second := authority(), authority()
	client := fake.NewClientset(theirs(t, first, first.Cert), &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mutate.archkeeper.io"}, Webhooks: []admissionv1.MutatingWebhook{{Name: "mutate.archkeeper.io"}},
	})
	clock := clocktesting.NewFakeClock(start)
	c, err := New(Options{
		Client: client, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Namespace: "ns",
		Follow: "theirs", Trust: "trust", Webhooks: []string{"mutate.archkeeper.io"}, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	trusted := func() []byte {
		t.Helper()
		hook, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "mutate.archkeeper.io", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return hook.Webhooks[0].ClientConfig.CABundle
	}
	replace := func(secret *corev1.Secret) {
		t.Helper()
		if _, err := client.CoreV1().Secrets("ns").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	once := func() {
		t.Helper()
		if again, err := c.Once(t.Context()); err != nil || again != followInterval {
			t.Fatalf("again in %s, %v", again, err)
		}
	}

	once()
	if !bytes.Equal(trusted(), first.Cert) {
		t.Error("the authority was not published")
	}
	// An authority that signed nothing here would have everybody distrust us.
	replace(theirs(t, first, second.Cert))
	if _, err := c.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "ns/theirs") || !bytes.Equal(trusted(), first.Cert) {
		t.Errorf("a strange authority was published: %v", err)
	}
	// One that replaces the other at once: pods serve the old leaf for a while.
	replace(theirs(t, second, second.Cert))
	once()
	if got := trusted(); !holds(got, first.Cert) || !holds(got, second.Cert) {
		t.Error("old and new authority are not trusted together")
	}
	clock.Step(formerlyTrusted + time.Minute)
	once()
	if got := trusted(); !bytes.Equal(got, second.Cert) {
		t.Error("the old authority is trusted after a day")
	}
}

func TestWhatAChainIsCheckedFor(t *testing.T) {
	first, _, err := newAuthority(start, Lifetimes{}.withDefaults(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret := theirs(t, first, first.Cert)
	for name, c := range map[string]struct {
		chain, bundle []byte
		err           string
	}{
		"signed by the authority":       {secret.Data[keyCert], first.Cert, ""},
		"a certificate that is its own": {secret.Data[keyCert], secret.Data[keyCert], ""},
		"no certificate":                {[]byte("nothing"), first.Cert, keyCert},
		"no authority":                  {secret.Data[keyCert], []byte("nothing"), keyBundle},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := checkChain(c.chain, c.bundle)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want an error with %q", err, c.err)
			}
		})
	}
}
