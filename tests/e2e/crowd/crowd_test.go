// Package crowd_test measures the controllers beside very many pods that are none
// of theirs.
package crowd_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

const (
	running = 20000
	waiting = 100
	// nobody listens there, and it is no address that is refused.
	nobody = "127.0.0.1:1"
	// crowdNode is that of the pods that run. It takes no others.
	crowdNode = "crowd"
)

var (
	cluster  *controlplane.Cluster
	provider *archkeeper.Provider
)

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{
		Nodes: []controlplane.Node{
			{Arch: "amd64"},
			{Name: crowdNode, Arch: "amd64", Taints: []corev1.Taint{{Key: "full", Effect: corev1.TaintEffectNoSchedule}}},
		},
		AuditLevel: "None",
	}, func(ctx context.Context, c *controlplane.Cluster) (err error) {
		cluster = c
		provider, err = archkeeper.StartProvider(ctx, c, os.Stderr, archkeeper.ProviderOptions{PlainHTTPHosts: []string{nobody}})
		return err
	}))
}

// What the controllers keep in memory follows the pods that wait, not those that
// run.
func TestMemoryFollowsThePodsThatWait(t *testing.T) {
	k := cluster.Test(t)
	for i := range waiting {
		k.CreatePod(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: waits-%d}, spec: {schedulingGates: [{name: archkeeper.io/architecture}], containers: [{name: c, image: "%s/shop/web-%d:1"}]}}`, i, nobody, i))
	}
	controllers, err := archkeeper.StartControllers(t.Context(), cluster, t.Output(), archkeeper.ControllersOptions{
		Name: "controllers", Provider: provider,
		Env: []string{"GOGC=10"}, // many collections, so that what is live is known well
	})
	if err != nil {
		t.Fatal(err)
	}
	alone := live(t, controllers)
	if err := controllers.Stop(); err != nil {
		t.Fatal(err)
	}

	// Nothing has to happen to the pods that run.
	for _, name := range []string{"kwok", "kube-scheduler", "kube-controller-manager"} {
		if err := cluster.Process(name).Kill(); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	fill(t, k.Namespace)
	k.Eventually("the API server has the pods", func(ctx context.Context) error {
		page, err := cluster.Client.CoreV1().Pods(k.Namespace).List(ctx, metav1.ListOptions{Limit: 1, ResourceVersion: ""})
		if err != nil {
			return err
		}
		if page.RemainingItemCount == nil || *page.RemainingItemCount != running+waiting-1 {
			return fmt.Errorf("it has one and %v", page.RemainingItemCount)
		}
		return nil
	})
	t.Logf("made %d running pods in %s", running, time.Since(began).Round(100*time.Millisecond))
	k.Eventually("the controllers are back", func(ctx context.Context) error { return controllers.Start(ctx) })
	beside := live(t, controllers)

	t.Logf("live heap with %d waiting pods: %.2f MiB, beside %d running ones: %.2f MiB (%+.1f %%)",
		waiting, alone/(1<<20), running, beside/(1<<20), 100*(beside/alone-1))
	if beside > alone*1.1 {
		t.Error("memory grows by more than a tenth with pods that run")
	}
}

// live is the heap that is in use, in bytes, once all waiting pods are held: the
// median after some collections.
func live(t *testing.T, controllers *archkeeper.Controllers) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	read := func(ctx context.Context, name string) float64 {
		value, err := metric(ctx, controllers.ProbeURL, name)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	err := controlplane.WaitFor(ctx, "all pods are held", func(ctx context.Context) error {
		if n := read(ctx, "archkeeper_placement_held_pods"); n != waiting {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const collections = 9
	var samples []float64
	last := read(ctx, "go_gc_cycles_total_gc_cycles_total")
	err = controlplane.WaitFor(ctx, "there were collections", func(ctx context.Context) error {
		if now := read(ctx, "go_gc_cycles_total_gc_cycles_total"); now > last {
			last = now
			samples = append(samples, read(ctx, "go_gc_heap_live_bytes"))
		}
		if len(samples) < collections {
			return errors.New("not enough")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(samples)
	return samples[collections/2]
}

// metric reads the first series of that name.
func metric(ctx context.Context, probe, name string) (float64, error) {
	value, found, err := archkeeper.Metric(ctx, probe, name)
	if err == nil && !found {
		err = fmt.Errorf("%s has no metric %s", probe, name)
	}
	return value, err
}

// fill writes running pods where the API server keeps them, 128 a transaction.
func fill(t *testing.T, namespace string) {
	t.Helper()
	const most = 128
	type put struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	for done := 0; done < running; {
		var transaction struct {
			Success []map[string]put `json:"success"`
		}
		for ; done < running && len(transaction.Success) < most; done++ {
			name := fmt.Sprintf("runs-%d", done)
			raw, err := json.Marshal(runningPod(namespace, name))
			if err != nil {
				t.Fatal(err)
			}
			transaction.Success = append(transaction.Success, map[string]put{"requestPut": {
				Key:   base64.StdEncoding.EncodeToString([]byte("/registry/pods/" + namespace + "/" + name)),
				Value: base64.StdEncoding.EncodeToString(raw),
			}})
		}
		body, err := json.Marshal(transaction)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, cluster.EtcdURL()+"/v3/kv/txn", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("etcd answers %s: %s (%v)", answer.Status, text, err)
		}
	}
}

// runningPod is one that the scheduler and kwok are done with.
func runningPod(namespace, name string) *corev1.Pod {
	now := metav1.Now()
	seconds := int64(30)
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: types.UID(uuid.NewUUID()), CreationTimestamp: now,
			Labels:      map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name, "pod-template-hash": "5d4f8c7b9"},
			Annotations: map[string]string{"example.com/checksum": strings.Repeat("0123456789abcdef", 4)},
		},
		Spec: corev1.PodSpec{
			NodeName: crowdNode, RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
			SchedulerName: corev1.DefaultSchedulerName, ServiceAccountName: "default", TerminationGracePeriodSeconds: &seconds,
			SecurityContext: &corev1.PodSecurityContext{},
			Containers: []corev1.Container{{
				Name: "web", Image: "registry.example/shop/web:1", ImagePullPolicy: corev1.PullIfNotPresent,
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("a", 100)}, {Name: "B", Value: strings.Repeat("b", 100)}},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, HostIP: "10.0.0.2", StartTime: &now,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true, Image: "registry.example/shop/web:1",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}},
		},
	}
}
