package importmode

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestWithoutCRDsItIsHealthyAndAsksOnceAMinute(t *testing.T) {
	own := fake.NewClientset()
	discovery := own.Discovery().(*fakediscovery.FakeDiscovery)
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c, err := New(Options{
		Governed: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			imagesResource(): "ImageList", versionsResource(): "ClusterVersionList",
		}),
		Discovery: discovery, Own: own, Namespace: "archkeeper", Name: "archkeeper-importmode", Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	asked := func() (n int) {
		for _, a := range own.Actions() {
			if a.GetVerb() == "get" && a.GetResource().Resource == "resource" {
				n++
			}
		}
		return n
	}
	// A nudge a second for ten minutes costs no more than the clock allows.
	for range 600 {
		if wait := c.once(t.Context()); wait <= 0 || wait > probeInterval {
			t.Fatalf("waits %s, want at most %s", wait, probeInterval)
		}
		clock.Step(time.Second)
	}
	if got := asked(); got != 10 {
		t.Errorf("%d discoveries in ten minutes, want 10", got)
	}
	cm, err := own.CoreV1().ConfigMaps("archkeeper").Get(t.Context(), "archkeeper-importmode", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var st Status
	if err := json.Unmarshal([]byte(cm.Data["status"]), &st); err != nil {
		t.Fatal(err)
	}
	for _, cond := range st.Conditions {
		want := metav1.ConditionFalse
		if cond.Type == Available {
			want = metav1.ConditionTrue
		}
		if cond.Status != want {
			t.Errorf("condition %s is %s (%s), want %s", cond.Type, cond.Status, cond.Reason, want)
		}
	}
	writes := 0
	for _, a := range own.Actions() {
		if a.GetVerb() == "create" || a.GetVerb() == "update" {
			writes++
		}
	}
	if writes != 1 {
		t.Errorf("%d writes of the status ConfigMap, want 1", writes)
	}
}
