package kube_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/internal/kube"
)

func TestNamespacesFollowTheAPIServer(t *testing.T) {
	namespace := func(version, value string) *corev1.Namespace {
		return &corev1.Namespace{
			TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "shop", ResourceVersion: version, Labels: map[string]string{"l": value}, Annotations: map[string]string{"a": value},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
			},
			Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
		}
	}
	change := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case query.Get("sendInitialEvents") != "": // an older API server
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonBadRequest, Code: 400})
		case query.Get("watch") != "":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-change:
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": namespace("2", "new")})
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
			}
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(corev1.NamespaceList{
				TypeMeta: metav1.TypeMeta{Kind: "NamespaceList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Namespace{*namespace("1", "old")},
			})
		}
	}))
	defer api.Close()
	client, err := coreclient.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	namespaces, err := kube.NewNamespaces(client)
	if err != nil {
		t.Fatal(err)
	}
	if namespaces.Synced() || namespaces.Get("shop") != nil {
		t.Error("something is known before anything was read")
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { namespaces.Run(ctx); close(done) }()
	defer func() { stop(); <-done }()
	eventually := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	eventually("synced", namespaces.Synced)
	got := namespaces.Get("shop")
	if got == nil || got.Labels["l"] != "old" || got.Annotations["a"] != "old" || len(got.ManagedFields) != 0 || len(got.Spec.Finalizers) != 0 {
		t.Errorf("namespace %+v", got)
	}
	if namespaces.Get("other") != nil {
		t.Error("a namespace that is not there is known")
	}
	close(change)
	eventually("the change", func() bool { return namespaces.Get("shop").Labels["l"] == "new" })
}
