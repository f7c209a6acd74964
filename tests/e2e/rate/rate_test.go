// Package rate_test measures how fast the placement controller frees gated pods,
// beside a bare client that patches as many of the same pods on the same API server.
package rate_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

const (
	gate     = "archkeeper.io/architecture"
	bareGate = "example.com/bare"
	pods     = 500
	// workers are those of the controllers, by default.
	workers = 16
)

// steps of the controller's workers, as its metrics name them.
var steps = []string{"ask", "decide", "write"}

// platforms of the images, shop/NAME:1.
var platforms = map[string][]string{
	"multi": {"linux/amd64", "linux/arm64", "linux/s390x", "linux/ppc64le"},
	"two":   {"linux/amd64", "linux/arm64"},
	"arm":   {"linux/arm64"},
	"z":     {"linux/s390x"},
}

var (
	cluster     *controlplane.Cluster
	provider    *archkeeper.Provider
	controllers *archkeeper.Controllers
	images      []string
	// client of the bare client: as quick as client-go gets.
	client kubernetes.Interface
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		os.Exit(m.Run()) // a cluster is for the benchmark alone
	}
	os.Exit(controlplane.Main(m, controlplane.Options{
		Nodes: []controlplane.Node{
			{Arch: "amd64"}, {Arch: "amd64"}, {Arch: "arm64"}, {Arch: "arm64"}, {Arch: "s390x"}, {Arch: "ppc64le"},
		},
	}, setup))
}

func setup(ctx context.Context, c *controlplane.Cluster) error {
	cluster = c
	registry, err := archkeeper.ServeImages()
	if err != nil {
		return err
	}
	for name, runs := range platforms {
		image, err := registry.Push(ctx, "shop/"+name+":1", runs...)
		if err != nil {
			return err
		}
		images = append(images, image)
	}
	slices.Sort(images)
	config := rest.CopyConfig(c.Config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	provider, err = archkeeper.StartProvider(ctx, c, os.Stderr, archkeeper.ProviderOptions{PlainHTTPHosts: []string{registry.Host}})
	if err != nil {
		return err
	}
	controllers, err = archkeeper.StartControllers(ctx, c, os.Stderr, archkeeper.ControllersOptions{
		Name: "controllers", Provider: provider,
		LeaseDuration: 10 * time.Minute, // it is led on while the process is frozen
	})
	return err
}

// BenchmarkDrain frees gated pods by turns with the controller and with a bare
// client, which sends the same patch by as many workers. Both are warm, and find
// all pods gated when they begin. The ratio is of the two rates: 1 is as fast as
// the bare client. Where the pods are alike, as a Deployment makes them, decisions
// are remembered; where they are not, each has one evaluation of its own.
//
// The percentages say what the controller's workers do in that time: ask the
// provider, decide (Rego), write (wait for the API server), and the rest.
//
//	cd tests/e2e && go test -run '^$' -bench Drain -benchtime 3x ./rate
func BenchmarkDrain(b *testing.B) {
	for _, kind := range []string{"alike", "unlike"} {
		b.Run(kind, func(b *testing.B) { benchmark(b, kind == "alike") })
	}
}

func benchmark(b *testing.B, alike bool) {
	k := cluster.Test(b)
	drain(b, k, gate, 50, alike, thawed) // to be warm
	drain(b, k, bareGate, 50, alike, bare)
	var ours, theirs []result
	for b.Loop() {
		theirs = append(theirs, drain(b, k, bareGate, pods, alike, bare))
		ours = append(ours, drain(b, k, gate, pods, alike, thawed))
	}
	o, t := mean(ours), mean(theirs)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(t.took/o.took, "x-bare-rate")
	b.ReportMetric(pods/o.took, "pods/s")
	b.ReportMetric(pods/t.took, "bare-pods/s")
	for _, name := range []string{"controllers", "provider", "apiserver"} {
		b.ReportMetric(o.cpu[name]*1000/pods, name+"-cpu-ms/pod")
	}
	b.ReportMetric(t.cpu["apiserver"]*1000/pods, "bare-apiserver-cpu-ms/pod")
	rest := o.took * workers
	for _, step := range steps {
		b.ReportMetric(100*o.steps[step]/(o.took*workers), step+"-%")
		rest -= o.steps[step]
	}
	b.ReportMetric(100*rest/(o.took*workers), "rest-%")
}

// result of one drain, in seconds.
type result struct {
	took float64
	// cpu of processes, steps of the controller's workers.
	cpu, steps map[string]float64
}

func mean(all []result) result {
	m := result{cpu: map[string]float64{}, steps: map[string]float64{}}
	for _, r := range all {
		m.took += r.took / float64(len(all))
		for name, v := range r.cpu {
			m.cpu[name] += v / float64(len(all))
		}
		for name, v := range r.steps {
			m.steps[name] += v / float64(len(all))
		}
	}
	return m
}

// thawed lets the controllers go on.
func thawed(context.Context, *controlplane.Test, []*corev1.Pod) error {
	return controllers.Thaw()
}

// bare patches each pod as the controller does.
func bare(ctx context.Context, k *controlplane.Test, all []*corev1.Pod) error {
	var turns errgroup.Group
	turns.SetLimit(workers)
	for _, pod := range all {
		turns.Go(func() error {
			_, err := client.CoreV1().Pods(k.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, []byte(`[
				{"op": "replace", "path": "/metadata/resourceVersion", "value": "`+pod.ResourceVersion+`"},
				{"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
					[{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]}]}}}},
				{"op": "add", "path": "/metadata/annotations", "value": {"archkeeper.io/architectures": "amd64,arm64"}},
				{"op": "add", "path": "/metadata/labels/architecture.archkeeper.io~1amd64", "value": "supported"},
				{"op": "add", "path": "/metadata/labels/architecture.archkeeper.io~1arm64", "value": "supported"},
				{"op": "remove", "path": "/spec/schedulingGates"}]`), metav1.PatchOptions{})
			return err
		})
	}
	return turns.Wait()
}

// drain makes n pods with a gate while the controllers are frozen, and gives what it
// took from the call of free until the last one is seen without it.
func drain(b *testing.B, k *controlplane.Test, gate string, n int, alike bool, free func(context.Context, *controlplane.Test, []*corev1.Pod) error) result {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	before, err := measure(ctx) // it asks a process that is about to be frozen
	check(err)
	check(controllers.Freeze())
	thaw := sync.OnceValue(controllers.Thaw)
	defer thaw() // the next drain fails if it is not running
	all := create(ctx, b, k, gate, n, alike)
	last, err := watchFreed(ctx, k, all)
	check(err)
	check(before.processes())
	began := time.Now()
	check(free(ctx, k, all))
	ended, err := last()
	check(err)
	processes := measurement{cpu: map[string]float64{}}
	check(processes.processes())
	check(thaw())
	after, err := measure(ctx)
	check(err)
	check(client.CoreV1().Pods(k.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}))
	k.Eventually("the pods are gone", func(ctx context.Context) error {
		left, err := client.CoreV1().Pods(k.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil && len(left.Items) > 0 {
			return errors.New("they are not")
		}
		return err
	})
	r := result{took: ended.Sub(began).Seconds(), cpu: map[string]float64{}, steps: map[string]float64{}}
	for name, v := range processes.cpu {
		r.cpu[name] = v - before.cpu[name]
	}
	for name, v := range after.steps {
		r.steps[name] = v - before.steps[name]
	}
	return r
}

func create(ctx context.Context, b *testing.B, k *controlplane.Test, gate string, n int, alike bool) []*corev1.Pod {
	b.Helper()
	all := make([]*corev1.Pod, n)
	var turns errgroup.Group
	turns.SetLimit(workers)
	for i := range all {
		labels := map[string]string{"app": "web"}
		if !alike {
			labels["pod"] = strconv.Itoa(i)
		}
		turns.Go(func() (err error) {
			all[i], err = client.CoreV1().Pods(k.Namespace).Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: labels},
				Spec: corev1.PodSpec{
					SchedulingGates: []corev1.PodSchedulingGate{{Name: gate}},
					Containers: []corev1.Container{
						{Name: "a", Image: images[i%len(images)]},
						{Name: "b", Image: images[0]},
					},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := turns.Wait(); err != nil {
		b.Fatal(err)
	}
	return all
}

// watchFreed watches pods that are gated; the function waits until none is and gives
// the time at which the last one was seen without its gate.
func watchFreed(ctx context.Context, k *controlplane.Test, all []*corev1.Pod) (func() (time.Time, error), error) {
	list, err := client.CoreV1().Pods(k.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Pods(k.Namespace).Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, err
	}
	gated := map[string]struct{}{}
	for _, pod := range all {
		gated[pod.Name] = struct{}{}
	}
	type ending struct {
		at  time.Time
		err error
	}
	ended := make(chan ending, 1)
	go func() {
		defer watcher.Stop()
		for e := range watcher.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				ended <- ending{err: fmt.Errorf("the watch says %v", e)}
				return
			}
			if len(pod.Spec.SchedulingGates) > 0 {
				continue
			}
			if delete(gated, pod.Name); len(gated) == 0 {
				ended <- ending{at: time.Now()}
				return
			}
		}
		ended <- ending{err: fmt.Errorf("the watch ended while %d pods were gated", len(gated))}
	}()
	return func() (time.Time, error) {
		e := <-ended
		return e.at, e.err
	}, nil
}

// measurement of processes and workers, in seconds since their start.
type measurement struct{ cpu, steps map[string]float64 }

func measure(ctx context.Context) (measurement, error) {
	m := measurement{cpu: map[string]float64{}, steps: map[string]float64{}}
	if err := m.processes(); err != nil {
		return m, err
	}
	for _, step := range steps {
		seconds, err := stepSeconds(ctx, step)
		if err != nil {
			return m, err
		}
		m.steps[step] = seconds
	}
	return m, nil
}

func (m measurement) processes() error {
	for name, pid := range map[string]int{
		"controllers": controllers.Pid(), "provider": provider.Process.Pid(), "apiserver": cluster.Process("kube-apiserver").Pid(),
	} {
		seconds, err := cpu(pid)
		if err != nil {
			return err
		}
		m.cpu[name] = seconds
	}
	return nil
}

// stepSeconds is the time that the controller's workers have spent on a step.
func stepSeconds(ctx context.Context, step string) (float64, error) {
	// Not found: none was made yet.
	value, _, err := archkeeper.Metric(ctx, controllers.ProbeURL, `archkeeper_placement_step_seconds_sum{step="`+step+`"}`)
	return value, err
}

// cpu is the processor time of a process.
func cpu(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, fields, _ := strings.Cut(string(raw), ") ") // the program's name may have spaces
	parts := strings.Fields(fields)
	var ticks float64
	for _, text := range parts[11:13] { // user and system time; proc(5) counts from 1, two before
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return ticks / 100, nil
}
