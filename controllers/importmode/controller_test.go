package importmode

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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

func TestAFailedWriteIsSaidOnceATryAndTriedAgain(t *testing.T) {
	own := fake.NewClientset()
	discovery := own.Discovery().(*fakediscovery.FakeDiscovery)
	discovery.Resources = []*metav1.APIResourceList{{GroupVersion: configGroup().String(), APIResources: []metav1.APIResource{{Name: "images"}, {Name: "clusterversions"}}}}
	object := func(kind, name string, rest map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: rest}
		o.SetAPIVersion(configGroup().String())
		o.SetKind(kind)
		o.SetName(name)
		return o
	}
	governed := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		imagesResource(): "ImageList", versionsResource(): "ClusterVersionList", operatorsResource(): "ClusterOperatorList",
	}, object("Image", imageName, map[string]any{"spec": map[string]any{"imageStreamImportMode": "Legacy"}}), object("ClusterVersion", versionName, map[string]any{}))
	broken := true
	governed.PrependReactor("patch", "images", func(clienttesting.Action) (bool, runtime.Object, error) {
		if broken {
			return true, nil, errors.New("etcd has no leader")
		}
		return false, nil, nil
	})
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	var log bytes.Buffer
	c, err := New(Options{
		Governed: governed, Discovery: discovery, Own: own, Namespace: "archkeeper", Name: "archkeeper-importmode", Clock: clock,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.watching.Stop)
	c.once(t.Context())
	deadline := time.After(20 * time.Second)
	for !c.watching.Synced() {
		select {
		case <-deadline:
			t.Fatal("the objects were never listed")
		case <-time.After(time.Millisecond):
		}
	}
	said := func() int { return strings.Count(log.String(), "etcd has no leader") }
	if wait := c.once(t.Context()); wait != retryInterval || said() != 1 {
		t.Errorf("waits %s, said %d times, want %s and once", wait, said(), retryInterval)
	}
	for range 3 { // nudges meanwhile neither try again nor say it again
		c.once(t.Context())
	}
	if said() != 1 {
		t.Errorf("said %d times, want once", said())
	}
	clock.Step(retryInterval)
	if c.once(t.Context()); said() != 2 {
		t.Errorf("said %d times after the second try, want twice", said())
	}
	broken = false
	clock.Step(2 * retryInterval)
	c.once(t.Context())
	got, err := governed.Resource(imagesResource()).Get(t.Context(), imageName, metav1.GetOptions{})
	if err != nil || mode(got, "status") != Legacy {
		t.Errorf("the mode is %q, %v", mode(got, "status"), err)
	}
}
