package mirrors

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// cluster is a fake API server with a controller that is stepped by hand.
type cluster struct {
	t         *testing.T
	dynamic   *dynamicfake.FakeDynamicClient
	client    *fake.Clientset
	discovery *fakediscovery.FakeDiscovery
	clock     *clocktesting.FakeClock
	recorder  *record.FakeRecorder
	metrics   *prometheus.Registry
	*Controller
}

func newCluster(t *testing.T, served []schema.GroupVersionResource, change func(*Options), objects ...runtime.Object) *cluster {
	t.Helper()
	client := fake.NewClientset()
	c := &cluster{
		t: t, client: client, discovery: client.Discovery().(*fakediscovery.FakeDiscovery),
		clock:    clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		recorder: record.NewFakeRecorder(1000), metrics: prometheus.NewRegistry(),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			digestSets: "ImageDigestMirrorSetList", tagSets: "ImageTagMirrorSetList", images: "ImageList", contentSources: "ImageContentSourcePolicyList",
			machineConfigs: "MachineConfigList", disruptionPolicy(): "MachineConfigurationList",
		}, objects...),
	}
	c.serve(served...)
	o := Options{
		Dynamic: c.dynamic, Discovery: c.discovery, Client: client, Namespace: "archkeeper", Name: "mirrors",
		Clock: c.clock, Recorder: c.recorder, Metrics: c.metrics,
	}
	if change != nil {
		change(&o)
	}
	var err error
	if c.Controller, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.watching.Stop)
	return c
}

func (c *cluster) serve(served ...schema.GroupVersionResource) {
	byGroup := map[string]*metav1.APIResourceList{}
	var lists []*metav1.APIResourceList
	for _, r := range served {
		gv := r.GroupVersion().String()
		if byGroup[gv] == nil {
			byGroup[gv] = &metav1.APIResourceList{GroupVersion: gv}
			lists = append(lists, byGroup[gv])
		}
		byGroup[gv].APIResources = append(byGroup[gv].APIResources, metav1.APIResource{Name: r.Resource})
	}
	c.discovery.Resources = lists
}

// eventually waits for informers, which run on their own time.
func (c *cluster) eventually(what string, is func() bool) {
	c.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline:
			c.t.Fatal("waited in vain: " + what)
		case <-tick.C:
		}
	}
}

// settle steps until everything is listed, merged and written.
func (c *cluster) settle() {
	c.t.Helper()
	c.once(c.t.Context())
	c.eventually("the watches are in step", c.ready)
	c.clock.Step(time.Minute)
	c.once(c.t.Context())
	c.clock.Step(time.Minute)
	c.once(c.t.Context())
}

// look lets d pass and looks; a notice that came late puts the look off once.
func (c *cluster) look(d time.Duration) {
	c.t.Helper()
	c.clock.Step(d)
	c.once(c.t.Context())
	c.clock.Step(DefaultMaxDelay)
	c.once(c.t.Context())
	c.clock.Step(checkInterval)
	c.once(c.t.Context())
}

func (c *cluster) configMap(name string) *corev1.ConfigMap {
	c.t.Helper()
	cm, err := c.client.CoreV1().ConfigMaps("archkeeper").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return cm
}

func (c *cluster) writes(name string) (n int) {
	for _, a := range c.client.Actions() {
		if a.GetResource().Resource != "configmaps" {
			continue
		}
		if w, ok := a.(interface{ GetObject() runtime.Object }); ok && w.GetObject().(*corev1.ConfigMap).Name == name {
			n++
		}
	}
	return n
}

func (c *cluster) state() Status {
	c.t.Helper()
	cm := c.configMap("mirrors-status")
	if cm == nil {
		c.t.Fatal("no status")
	}
	var st Status
	if err := json.Unmarshal([]byte(cm.Data["status"]), &st); err != nil {
		c.t.Fatal(err)
	}
	return st
}

func (c *cluster) apply(r schema.GroupVersionResource, o *unstructured.Unstructured) {
	c.t.Helper()
	client := c.dynamic.Resource(r)
	if _, err := client.Get(c.t.Context(), o.GetName(), metav1.GetOptions{}); err == nil {
		if _, err := client.Update(c.t.Context(), o, metav1.UpdateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	} else if _, err := client.Create(c.t.Context(), o, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("the watch has shown "+o.GetName(), func() bool {
		got, _ := c.watching.Get(r, o.GetName())
		return got != nil && got.GetGeneration() == o.GetGeneration()
	})
	c.eventually("the change is noticed", func() bool { return len(c.changed) > 0 })
}

func set(name string, generation int64, source string, list ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "config.openshift.io/v1", "kind": "ImageDigestMirrorSet",
		"metadata": map[string]any{"name": name, "generation": generation},
		"spec":     map[string]any{"imageDigestMirrors": []any{map[string]any{"source": source, "mirrors": list}}},
	}}
}

func all() []schema.GroupVersionResource { return followed() }

func TestTheConfigMapFollowsTheObjects(t *testing.T) {
	c := newCluster(t, all(), nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	cm := c.configMap("mirrors")
	if cm == nil || !strings.Contains(cm.Data[mirrors.KeyConf], `location = "m.io"`) || cm.Data[mirrors.KeyDelivery] != "nodes" || len(cm.Data[mirrors.KeySHA256]) != 64 {
		t.Fatalf("%+v", cm)
	}
	c.apply(digestSets, set("b", 1, "t.io", "n.io", "bad..io"))
	c.look(DefaultQuiet)
	if cm := c.configMap("mirrors"); !strings.Contains(cm.Data[mirrors.KeyConf], `location = "n.io"`) {
		t.Errorf("%s", cm.Data[mirrors.KeyConf])
	}
	st := c.state()
	if meta.IsStatusConditionTrue(st.Conditions, Accepted) || !meta.IsStatusConditionTrue(st.Conditions, Stored) {
		t.Errorf("%+v", st.Conditions)
	}
	if diff := cmp.Diff([]string{`spec.imageDigestMirrors[0].mirrors[1]: "bad..io" is rejected: its host has an empty label`}, st.Objects[0].Rejected); diff != "" || st.Objects[0].Name != "b" {
		t.Errorf("%+v", st.Objects)
	}
	if got := <-c.recorder.Events; !strings.HasPrefix(got, "Warning PartsRejected spec.imageDigestMirrors[0].mirrors[1]") {
		t.Errorf("event %q", got)
	}
	if got := testutil.ToFloat64(c.Controller.metrics.problems.WithLabelValues("rejected")); got != 1 {
		t.Errorf("metric %v", got)
	}
}

func TestEqualBytesAreNotWritten(t *testing.T) {
	c := newCluster(t, all(), nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	before, status := c.writes("mirrors"), c.writes("mirrors-status")
	for i := range 100 {
		c.apply(digestSets, set("a", int64(i+2), "s.io", "m.io"))
		c.clock.Step(DefaultMaxDelay)
		c.once(t.Context())
		c.clock.Step(DefaultMaxDelay)
		c.once(t.Context())
	}
	if got := c.writes("mirrors"); got != before {
		t.Errorf("%d writes without a change", got-before)
	}
	if got := c.writes("mirrors-status"); got != status {
		t.Errorf("%d writes of the status without a change", got-status)
	}
}

func TestABurstOf500EditsNeedsAtMost5Writes(t *testing.T) {
	c := newCluster(t, all(), nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	before := c.writes("mirrors")
	for i := range 500 { // within 25 seconds
		c.apply(digestSets, set("a", int64(i+2), "s.io", fmt.Sprintf("m%d.io", i)))
		c.once(t.Context())
		c.clock.Step(50 * time.Millisecond)
	}
	c.look(DefaultMaxDelay)
	if got := c.writes("mirrors") - before; got < 1 || got > 5 {
		t.Errorf("%d writes", got)
	}
	if cm := c.configMap("mirrors"); !strings.Contains(cm.Data[mirrors.KeyConf], `"m499.io"`) {
		t.Errorf("the last edit is missing: %s", cm.Data[mirrors.KeyConf])
	}
}

func TestADeletionIsReverted(t *testing.T) {
	c := newCluster(t, all(), nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	want := c.configMap("mirrors").Data
	if err := c.client.CoreV1().ConfigMaps("archkeeper").Delete(t.Context(), "mirrors", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.look(checkInterval)
	cm := c.configMap("mirrors")
	if cm == nil {
		t.Fatal("it stays away")
	}
	if diff := cmp.Diff(want, cm.Data); diff != "" {
		t.Error(diff)
	}
	cm.Data[mirrors.KeyConf] = "edited"
	if _, err := c.client.CoreV1().ConfigMaps("archkeeper").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.look(checkInterval)
	if diff := cmp.Diff(want, c.configMap("mirrors").Data); diff != "" {
		t.Error(diff)
	}
}

func TestADeletionOfTheStatusIsReverted(t *testing.T) {
	c := newCluster(t, all(), nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	want := c.configMap("mirrors-status").Data
	if err := c.client.CoreV1().ConfigMaps("archkeeper").Delete(t.Context(), "mirrors-status", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.look(checkInterval)
	cm := c.configMap("mirrors-status")
	if cm == nil {
		t.Fatal("it stays away")
	}
	if diff := cmp.Diff(want, cm.Data); diff != "" {
		t.Error(diff)
	}
}

func TestTheStatusIsNeverLargerThanAConfigMap(t *testing.T) {
	var many []runtime.Object
	for i := range maxStatusObjects {
		var list []any // mirrors that containerd cannot express, with a long sentence for each
		for j := range 8 {
			list = append(list, fmt.Sprintf("m%d.io/%s", j, strings.Repeat("x", 240)))
		}
		many = append(many, set(fmt.Sprintf("%03d", i), 1, fmt.Sprintf("s.io/p%d", i), list...))
	}
	c := newCluster(t, all(), nil, many...)
	c.settle()
	cm := c.configMap("mirrors-status")
	if cm == nil || len(cm.Data["status"]) > Limit {
		t.Fatalf("the status is not there, or has %d bytes", len(cm.Data["status"]))
	}
	st := c.state()
	if len(st.Objects) == 0 || len(st.Objects)+st.Omitted != maxStatusObjects {
		t.Errorf("%d objects and %d omitted, want %d together", len(st.Objects), st.Omitted, maxStatusObjects)
	}
}

func TestWatchesComeAndGoWithTheirCRDs(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := newCluster(t, nil, nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	if c.watching.Len() != 0 {
		t.Fatal("it follows what is not served")
	}
	if cm := c.configMap("mirrors"); cm == nil || cm.Data[mirrors.KeyConf] != "" {
		t.Errorf("%+v", cm)
	}
	c.serve(digestSets)
	c.clock.Step(probeInterval)
	c.settle()
	if cm := c.configMap("mirrors"); !strings.Contains(cm.Data[mirrors.KeyConf], "m.io") {
		t.Errorf("%s", cm.Data[mirrors.KeyConf])
	}
	c.serve()
	c.clock.Step(probeInterval)
	c.settle()
	if cm := c.configMap("mirrors"); c.watching.Len() != 0 || cm.Data[mirrors.KeyConf] != "" {
		t.Errorf("%d watches, %s", c.watching.Len(), cm.Data[mirrors.KeyConf])
	}
}

func TestOnClustersOfTheMachineConfigOperatorTheDefaultIsInspectorOnly(t *testing.T) {
	c := newCluster(t, append(all(), machineGV.WithResource("machineconfigpools")), nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	if cm := c.configMap("mirrors"); cm.Data[mirrors.KeyDelivery] != "inspector" {
		t.Errorf("%v", cm.Data)
	}
	for _, a := range c.dynamic.Actions() {
		if a.GetResource().Resource == "machineconfigs" {
			t.Errorf("touched: %v", a)
		}
	}
}

func TestAResultThatIsTooLargeLeavesWhatIsThere(t *testing.T) {
	c := newCluster(t, all(), nil, set("a", 1, "s.io", "m.io"))
	c.settle()
	want := c.configMap("mirrors").Data
	var many []any
	for i := range 20000 {
		many = append(many, fmt.Sprintf("m%d.example.com/some/long/path/of/a/mirror", i))
	}
	c.apply(digestSets, set("a", 2, "s.io", many...))
	c.once(t.Context())
	c.look(DefaultMaxDelay)
	if diff := cmp.Diff(want, c.configMap("mirrors").Data); diff != "" {
		t.Error("it was replaced")
	}
	cond := meta.FindStatusCondition(c.state().Conditions, Stored)
	if cond == nil || cond.Status != metav1.ConditionFalse || cond.Reason != "TooLarge" {
		t.Errorf("%+v", cond)
	}
}

func TestMachineConfigDelivery(t *testing.T) {
	served := append(all(), machineGV.WithResource("machineconfigpools"))
	policy := func(actions ...any) *unstructured.Unstructured {
		var list []any
		for _, a := range actions {
			list = append(list, map[string]any{"type": a})
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "operator.openshift.io/v1", "kind": "MachineConfiguration", "metadata": map[string]any{"name": "cluster"},
			"status": map[string]any{"nodeDisruptionPolicyStatus": map[string]any{"clusterPolicies": map[string]any{
				"files": []any{map[string]any{"path": mirrors.DropInPath, "actions": list}},
			}}},
		}}
	}
	asked := func(o *Options) { o.Delivery, o.Pools = mirrors.DeliveryMachineConfig, []string{"worker"} }
	changes := func(c *cluster) (n int) {
		for _, a := range c.dynamic.Actions() {
			if a.GetResource() == machineConfigs && a.GetVerb() != "get" {
				n++
			}
		}
		return n
	}
	get := func(c *cluster) *unstructured.Unstructured {
		o, err := c.dynamic.Resource(machineConfigs).Get(t.Context(), "99-worker-archkeeper-registries", metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return o
	}
	t.Run("a change within the allowed disruption is written", func(t *testing.T) {
		c := newCluster(t, served, asked, set("a", 1, "s.io", "m.io"), policy("Reload"))
		c.settle()
		if got := ignitionFile(get(c), mirrors.DropInPath); string(got) != c.configMap("mirrors").Data[mirrors.KeyConf] {
			t.Errorf("%s", got)
		}
		if n := changes(c); n != 1 {
			t.Errorf("%d writes", n)
		}
	})
	t.Run("a worse change waits, with a condition", func(t *testing.T) {
		c := newCluster(t, served, asked, set("a", 1, "s.io", "m.io"))
		c.settle()
		cond := meta.FindStatusCondition(c.state().Conditions, Delivered)
		if get(c) != nil || cond.Status != metav1.ConditionFalse || cond.Reason != "DisruptionHeld" || !strings.Contains(cond.Message, "worker reboot") {
			t.Errorf("%+v", cond)
		}
		if c.state().Disruption != "reboot" {
			t.Errorf("class %s", c.state().Disruption)
		}
	})
	t.Run("a change that waits is counted once", func(t *testing.T) {
		c := newCluster(t, served, asked, set("a", 1, "s.io", "m.io"))
		c.settle()
		for range 5 {
			c.look(checkInterval)
		}
		if got := testutil.ToFloat64(c.Controller.metrics.delivered.WithLabelValues("reboot", "held")); got != 1 {
			t.Errorf("counted %v times", got)
		}
	})
	t.Run("a pool that cannot be written costs no other pool its mirrors", func(t *testing.T) {
		c := newCluster(t, served, func(o *Options) { asked(o); o.Pools = []string{"broken", "worker"} }, set("a", 1, "s.io", "m.io"), policy("Reload"))
		c.dynamic.PrependReactor("create", "machineconfigs", func(a clienttesting.Action) (bool, runtime.Object, error) {
			object, err := meta.Accessor(a.(clienttesting.CreateAction).GetObject())
			if err != nil || object.GetName() != mirrors.MachineConfigName("broken") {
				return false, nil, err
			}
			return true, nil, errors.New("an admission plugin refuses it")
		})
		c.settle()
		if get(c) == nil {
			t.Error("the pool worker has nothing")
		}
		stored := meta.FindStatusCondition(c.state().Conditions, Stored)
		delivered := meta.FindStatusCondition(c.state().Conditions, Delivered)
		if stored.Status != metav1.ConditionTrue {
			t.Errorf("the ConfigMap is there, and %+v", stored)
		}
		if delivered.Status != metav1.ConditionFalse || delivered.Reason != "WriteFailed" || !strings.Contains(delivered.Message, "an admission plugin refuses it") {
			t.Errorf("%+v", delivered)
		}
		close(c.recorder.Events)
		for event := range c.recorder.Events {
			if strings.Contains(event, "99-broken") {
				t.Errorf("an event about what did not happen: %s", event)
			}
		}
	})
	t.Run("without the operator nothing is delivered, and a condition says so", func(t *testing.T) {
		c := newCluster(t, all(), asked, set("a", 1, "s.io", "m.io"))
		c.settle()
		stored := meta.FindStatusCondition(c.state().Conditions, Stored)
		delivered := meta.FindStatusCondition(c.state().Conditions, Delivered)
		if stored.Status != metav1.ConditionTrue || delivered.Status != metav1.ConditionFalse {
			t.Errorf("%+v, %+v", stored, delivered)
		}
	})
	t.Run("a worse change that is allowed is written", func(t *testing.T) {
		c := newCluster(t, served, func(o *Options) { asked(o); o.MaxDisruption = mirrors.DisruptionReboot }, set("a", 1, "s.io", "m.io"))
		c.settle()
		if get(c) == nil {
			t.Error("nothing written")
		}
	})
	t.Run("equality ignored the generator's version: a generator upgrade alone writes nothing", func(t *testing.T) {
		c := newCluster(t, served, asked, set("a", 1, "s.io", "m.io"), policy("Reload"))
		c.settle()
		old := get(c)
		old.SetAnnotations(map[string]string{"generated-by": "an older one"})
		files := []any{map[string]any{"path": mirrors.DropInPath, "mode": int64(420), "contents": map[string]any{
			"source": "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString([]byte(c.configMap("mirrors").Data[mirrors.KeyConf])),
		}}}
		if err := unstructured.SetNestedSlice(old.Object, files, "spec", "config", "storage", "files"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.dynamic.Resource(machineConfigs).Update(t.Context(), old, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		before := changes(c)
		c.look(checkInterval)
		if n := changes(c); n != before {
			t.Errorf("%d writes", n-before)
		}
	})
	t.Run("no rules: the MachineConfig goes", func(t *testing.T) {
		c := newCluster(t, served, asked, set("a", 1, "s.io", "m.io"), policy("Reload"))
		c.settle()
		if err := c.dynamic.Resource(digestSets).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.eventually("the deletion is noticed", func() bool { return len(c.changed) > 0 })
		c.once(t.Context())
		c.look(DefaultMaxDelay)
		if get(c) != nil {
			t.Error("it stays")
		}
	})
}
