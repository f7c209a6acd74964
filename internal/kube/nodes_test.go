package kube_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/archkeeper/archkeeper/internal/kube"
)

func node(name, arch, os string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/arch": arch, "kubernetes.io/os": os, "other": "x",
	}}}
}

// watchable is the fake API server, which does not stream the initial list, and says so.
type watchable struct{ coreclient.NodesGetter }

// IsWatchListSemanticsUnSupported is how client-go asks.
func (watchable) IsWatchListSemanticsUnSupported() bool { return true }

func TestNodesKnowTheirKinds(t *testing.T) {
	client := fake.NewClientset(node("a", "amd64", "linux"), node("b", "arm64", "linux"), node("c", "amd64", "windows"))
	nodes, err := kube.NewNodes(watchable{client.CoreV1()})
	if err != nil {
		t.Fatal(err)
	}
	if a, s := nodes.Kinds(); len(a)+len(s) > 0 {
		t.Errorf("known before anything was seen: %v %v", a, s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { nodes.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	expect := func(want string) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for {
			a, s := nodes.Kinds()
			got := fmt.Sprint(a, s)
			if got == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s, want %s", got, want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	expect("[amd64 arm64] [linux windows]")
	if err := client.CoreV1().Nodes().Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("[amd64 arm64] [linux]")
	if _, err := client.CoreV1().Nodes().Update(ctx, node("b", "s390x", "linux"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("[amd64 s390x] [linux]")
}
