package placement

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
)

var rateLimited = provider.Error{Class: provider.ClassRateLimited, Message: "registry h: 429", RetryAfter: 0}

func gatedPod(namespace, name string, gates ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1", CreationTimestamp: metav1.NewTime(time.Now())}}
	for _, g := range gates {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
	}
	return pod
}

func TestUngate(t *testing.T) {
	client := fake.NewClientset(
		gatedPod("a", "one", gate), gatedPod("a", "two", "other", gate), gatedPod("a", "three", "other"),
		gatedPod("b", "four", gate), gatedPod("b", "five"),
	)
	var steps atomic.Int32
	total := 0
	u := Ungate{Client: client, Gate: gate, DryRun: true, Found: func(n int) { total = n }, Step: func() { steps.Add(1) }}
	freed, err := u.Run(t.Context())
	if err != nil || fmt.Sprint(freed) != "[a/one a/two b/four]" || total != 3 || steps.Load() != 3 {
		t.Errorf("%v, %v, %d of %d", freed, err, steps.Load(), total)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() == "patch" {
			t.Errorf("a dry run has written: %v", action)
		}
	}
	u.DryRun, u.Namespace = false, "a"
	if freed, err = u.Run(t.Context()); err != nil || fmt.Sprint(freed) != "[a/one a/two]" {
		t.Errorf("%v, %v", freed, err)
	}
	two, err := client.CoreV1().Pods("a").Get(t.Context(), "two", metav1.GetOptions{})
	if err != nil || len(two.Spec.SchedulingGates) != 1 || two.Spec.SchedulingGates[0].Name != "other" {
		t.Errorf("%v, %v", two.Spec.SchedulingGates, err)
	}
	u.Namespace, u.Names = "b", []string{"four", "five"}
	if freed, err = u.Run(t.Context()); err != nil || fmt.Sprint(freed) != "[b/four]" {
		t.Errorf("%v, %v", freed, err)
	}
	u.Names = []string{"nobody"}
	if _, err = u.Run(t.Context()); err == nil {
		t.Error("a pod that is not there was freed")
	}
}

func TestUngateFromFreshAfterAConflict(t *testing.T) {
	client := fake.NewClientset(gatedPod("a", "one", gate), gatedPod("a", "two", gate))
	conflicts := map[string]int{"one": 2, "two": 100}
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.PatchAction).GetName()
		if conflicts[name]--; conflicts[name] < 0 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, nil)
	})
	freed, err := Ungate{Client: client, Gate: gate}.Run(t.Context())
	if fmt.Sprint(freed) != "[a/one]" || err == nil {
		t.Errorf("%v, %v", freed, err)
	}
}

func TestUninstall(t *testing.T) {
	client := fake.NewClientset(gatedPod("a", "one", gate))
	// The API server goes on gating for a moment after the webhook is gone.
	late := 2
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if late--; late == 0 {
			if err := client.Tracker().Add(gatedPod("a", "late", gate)); err != nil {
				t.Error(err)
			}
		}
		return false, nil, nil
	})
	label := map[string]string{"app.kubernetes.io/managed-by": "archkeeper"}
	objects := dynamicfake.NewSimpleDynamicClient(clientgoscheme.Scheme,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ours", Name: "ca", Labels: label}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ours", Name: "theirs"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ours", Name: "mirrors", Labels: label}},
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "mutate"}},
	)
	clock := clocktesting.NewFakeClock(time.Now())
	u := Uninstall{
		Ungate: Ungate{Client: client, Gate: gate}, Objects: objects, Namespace: "ours", Timeout: time.Minute, Clock: clock,
		Delete: []string{"mutatingwebhookconfigurations.v1.admissionregistration.k8s.io/mutate", "mutatingwebhookconfigurations.v1.admissionregistration.k8s.io/gone"},
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				clock.Step(settle)
				time.Sleep(time.Millisecond)
			}
		}
	}()
	freed, err := u.Run(t.Context())
	close(done)
	if err != nil || fmt.Sprint(freed) != "[a/one a/late]" {
		t.Errorf("%v, %v", freed, err)
	}
	secrets, err := objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace("ours").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 1 || secrets.Items[0].GetName() != "theirs" {
		t.Errorf("%v, %v", secrets, err)
	}
	if _, err := objects.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}).Get(t.Context(), "mutate", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the webhook is still there: %v", err)
	}
	u.Delete = []string{"nonsense"}
	if _, err := u.Run(t.Context()); err == nil {
		t.Error("nonsense was deleted")
	}
}

// Who made our objects would make them again: the controllers end before what
// they made goes, and what they may have put back goes once more.
func TestUninstallEndsTheControllersFirst(t *testing.T) {
	labels := map[string]string{"component": "controllers"}
	client := fake.NewClientset(
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ours", Name: "controllers"}, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ours", Name: "controllers-x", Labels: labels}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ours", Name: "controllers"}},
	)
	webhooks := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}
	objects := dynamicfake.NewSimpleDynamicClient(clientgoscheme.Scheme)
	looks := 0
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.ListAction).GetListRestrictions().Labels.String() != "component=controllers" {
			return false, nil, nil
		}
		if looks++; looks < 3 {
			return false, nil, nil
		}
		// The pod ends, and its last act was to put the webhook back.
		if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ours", "controllers-x"); err == nil {
			back := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": "mutate"},
			}}
			if _, err := objects.Resource(webhooks).Create(t.Context(), back, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}
		return false, nil, nil
	})
	clock := clocktesting.NewFakeClock(time.Now())
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				clock.Step(settle)
				time.Sleep(time.Millisecond)
			}
		}
	}()
	_, err := Uninstall{
		Ungate: Ungate{Client: client, Gate: gate}, Objects: objects, Namespace: "ours", Timeout: time.Hour, Clock: clock,
		Delete: []string{"mutatingwebhookconfigurations.v1.admissionregistration.k8s.io/mutate"}, Deployment: "controllers", Lease: "controllers",
	}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if looks < 3 {
		t.Errorf("the controllers' pods were looked at %d times, want until they are gone", looks)
	}
	if _, err := objects.Resource(webhooks).Get(t.Context(), "mutate", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the webhook that was put back is still there: %v", err)
	}
	if _, err := client.CoordinationV1().Leases("ours").Get(t.Context(), "controllers", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the lease is still there: %v", err)
	}
}
