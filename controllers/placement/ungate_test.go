package placement

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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
