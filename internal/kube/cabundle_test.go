package kube_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"

	"github.com/archkeeper/archkeeper/internal/kube"
)

// notStreaming is the fake API server, which does not stream the initial list.
type notStreaming struct {
	admissionclient.ValidatingWebhookConfigurationsGetter
}

// IsWatchListSemanticsUnSupported is how client-go asks.
func (notStreaming) IsWatchListSemanticsUnSupported() bool { return true }

func TestACABundleIsFollowed(t *testing.T) {
	configuration := func(bundle string) *admissionv1.ValidatingWebhookConfiguration {
		return &admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "gatekeeper"},
			Webhooks:   []admissionv1.ValidatingWebhook{{ClientConfig: admissionv1.WebhookClientConfig{CABundle: []byte(bundle)}}},
		}
	}
	client := fake.NewClientset(configuration("one"))
	ctx, cancel := context.WithCancel(t.Context())
	bundles, done := make(chan string, 10), make(chan struct{})
	go func() {
		defer close(done)
		kube.FollowCABundle(ctx, notStreaming{client.AdmissionregistrationV1()}, "gatekeeper", func(b []byte) error {
			bundles <- string(b)
			if string(b) == "broken" {
				return errors.New("broken")
			}
			return nil
		}, slog.New(slog.DiscardHandler))
	}()
	want := func(text string) {
		t.Helper()
		select {
		case got := <-bundles:
			if got != text {
				t.Errorf("got %q, want %q", got, text)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no bundle, want %q", text)
		}
	}
	want("one")
	for _, text := range []string{"", "one", "broken", "two"} { // an empty one, and the same again, say nothing
		if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, configuration(text), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want("broken")
	want("two")
	cancel()
	<-done
	if len(bundles) != 0 {
		t.Errorf("%d bundles more", len(bundles))
	}
}
