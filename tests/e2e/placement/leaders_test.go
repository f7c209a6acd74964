package placement_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// The tests of this file run alone: they take away what the others need.

// burstVariable is how many pods the burst has, burst by default.
const (
	burstVariable = "ARCHKEEPER_E2E_BURST"
	burst         = 300
)

func TestABurstIsPlacedWithOneWriteToEachGatedPod(t *testing.T) {
	n := burst
	if text := os.Getenv(burstVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", burstVariable, err)
		}
	}
	k, f := test(t)
	addRoom(t, k, n)
	// Every second image is known. Where the others are does not answer yet.
	known := []string{image(good, "multi"), image(good, "arm"), image(good, "z"), image(good, "power"), image(good, "amd")}
	warm(t, k, known...)
	unknown := []string{cold(down, 0, "multi"), cold(down, 0, "arm"), cold(down, 0, "z"), cold(down, 0, "power"), cold(down, 0, "two")}

	const workloads = 20
	total := 0
	for i := range workloads {
		pods := n / workloads
		if i < n%workloads {
			pods++
		}
		total += pods
		images := []string{known[i/2%len(known)], image(good, "multi")}
		if i%2 == 1 {
			images = []string{unknown[i/2%len(unknown)], image(good, "multi")}
		}
		template := fmt.Sprintf("{containers: [{name: a, image: %q}, {name: b, image: %q}]", images[0], images[1])
		if i%4 < 2 {
			k.Apply(fmt.Sprintf("{apiVersion: apps/v1, kind: Deployment, metadata: {name: d%[1]d}, spec: {replicas: %[2]d, selector: {matchLabels: {app: d%[1]d}}, template: {metadata: {labels: {app: d%[1]d}}, spec: %[3]s}}}}", i, pods, template))
		} else {
			k.Apply(fmt.Sprintf("{apiVersion: batch/v1, kind: Job, metadata: {name: j%[1]d}, spec: {completions: %[2]d, parallelism: %[2]d, template: {spec: %[3]s, restartPolicy: Never}}}}", i, pods, template))
		}
	}
	f.wait("all pods are there", total, func(life) bool { return true })
	began := time.Now()
	if err := down.Up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = down.Down() })
	f.wait("all pods are bound", total, bound)
	placed := time.Since(began)
	first, last := time.Now(), began
	for _, l := range f.all() {
		if l.gated && l.freed.Before(first) {
			first = l.freed
		}
		if l.gated && l.freed.After(last) {
			last = l.freed
		}
	}
	gated := f.check()
	if gated == 0 || gated == total {
		t.Errorf("%d pods of %d were gated: the burst has both paths", gated, total)
	}
	if len(f.all()) != total {
		t.Errorf("%d pods instead of %d", len(f.all()), total)
	}
	t.Logf("%d pods, %d gated: from the registry's return freed within %s to %s, bound within %s; %d writes from fresh; %s",
		total, gated, first.Sub(began).Round(10*time.Millisecond), last.Sub(began).Round(10*time.Millisecond),
		placed.Round(10*time.Millisecond), f.writes().stale, f.nodes())
}

// addRoom adds nodes for more pods than the package's have room for.
func addRoom(t *testing.T, k *controlplane.Test, pods int) {
	t.Helper()
	for i := range (pods - 1) / 1500 {
		for _, arch := range []string{"amd64", "arm64", "s390x", "ppc64le"} {
			k.AddNode(controlplane.Node{Name: fmt.Sprintf("%s-room-%d", arch, i), Arch: arch})
		}
	}
}

// create makes many pods at once, with a gate, and waits until all are there.
func create(t *testing.T, k *controlplane.Test, f *following, n int, gate string, images ...string) {
	t.Helper()
	var turns errgroup.Group
	turns.SetLimit(8)
	client := cluster.Client.CoreV1().Pods(k.Namespace)
	for i := range n {
		turns.Go(func() error {
			_, err := client.Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
				Spec: corev1.PodSpec{
					SchedulingGates: []corev1.PodSchedulingGate{{Name: gate}},
					Containers:      []corev1.Container{{Name: "c", Image: images[i%len(images)]}},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := turns.Wait(); err != nil {
		t.Fatal(err)
	}
	f.wait("all pods are there", n, func(life) bool { return true })
}

// ofDown are five images of the registry that is down, that nobody has asked for.
func ofDown(n int) (images []string) {
	for _, name := range []string{"multi", "arm", "z", "power", "amd"} {
		images = append(images, cold(down, n, name))
	}
	return images
}

// bareClient takes a gate of its own off gated pods, with as many requests at a time
// as the controller makes, and gives the time that it takes for so many pods.
func bareClient(t *testing.T, pods int) time.Duration {
	t.Helper()
	const sample, workers = 250, 16
	k, f := test(t, ownWebhooks+"=none")
	create(t, k, f, sample, "example.com/bare", image(good, "multi"))
	var turns errgroup.Group
	turns.SetLimit(workers)
	began := time.Now()
	for name := range f.all() {
		turns.Go(func() error {
			_, err := cluster.Client.CoreV1().Pods(k.Namespace).Patch(t.Context(), name, types.JSONPatchType,
				[]byte(`[{"op": "remove", "path": "/spec/schedulingGates"}, {"op": "add", "path": "/metadata/labels", "value": {"bare": "yes"}}]`), metav1.PatchOptions{})
			return err
		})
	}
	if err := turns.Wait(); err != nil {
		t.Fatal(err)
	}
	return time.Since(began) * time.Duration(pods) / sample
}

// leader gives the replica that leads and the other one.
func leader(t *testing.T) (leads, waits *replica) {
	t.Helper()
	err := controlplane.WaitFor(t.Context(), "one replica leads", func(ctx context.Context) error {
		for i, replica := range replicas {
			leading, err := metric(ctx, replica.ProbeURL, "leader_election_master_status")
			if err == nil && leading == 1 {
				leads, waits = replica, replicas[1-i]
				return nil
			}
		}
		return errors.New("none does")
	})
	if err != nil {
		t.Fatal(err)
	}
	return leads, waits
}

// replica of the controllers. As in a cluster, one that ends by itself, because it
// could not renew its Lease in time, is started again.
type replica struct {
	*archkeeper.Controllers
	wanted atomic.Bool
}

func (r *replica) supervise(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-r.Exited():
			if r.wanted.Load() {
				_ = r.Start(ctx) // it is tried again
			}
		default:
		}
	}
}

// metric reads one value of a process, of the first series of that name.
func metric(ctx context.Context, probe, name string) (float64, error) {
	value, found, err := archkeeper.Metric(ctx, probe, name)
	if err == nil && !found {
		err = fmt.Errorf("%s has no metric %s", probe, name)
	}
	return value, err
}

// leads waits until a replica does and gives the time.
func waitLeads(t *testing.T, replica *replica) time.Time {
	t.Helper()
	err := controlplane.WaitFor(t.Context(), replica.Name()+" leads", func(ctx context.Context) error {
		leading, err := metric(ctx, replica.ProbeURL, "leader_election_master_status")
		if err == nil && leading != 1 {
			return errors.New("it does not")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// restart brings a replica back, and waits until admission gates again.
func restart(t *testing.T, replica *replica) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := replica.Start(ctx); err != nil {
		t.Error(err)
	}
	replica.wanted.Store(true)
	if err := waitAlive(ctx); err != nil {
		t.Error(err)
	}
}

func TestAKilledLeaderHoldsNoPodLongerThanTheLeaseDurationAndFiveSeconds(t *testing.T) {
	const pods = 500
	k, f := test(t, ownWebhooks+"=none")
	create(t, k, f, pods, gate, ofDown(1)...)
	leads, waits := leader(t)
	before, err := metric(t.Context(), waits.ProbeURL, "process_cpu_seconds_total")
	if err != nil {
		t.Fatal(err)
	}
	leads.wanted.Store(false)
	if err := leads.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	defer restart(t, leads)
	if err := down.Up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = down.Down() })
	took := waitLeads(t, waits).Sub(killed)
	f.wait("all pods are bound", pods, bound)
	cpu, err := metric(t.Context(), waits.ProbeURL, "process_cpu_seconds_total")
	if err != nil {
		t.Fatal(err)
	}
	first, last := time.Now(), killed
	for _, l := range f.all() {
		if l.freed.Before(first) {
			first = l.freed
		}
		if l.freed.After(last) {
			last = l.freed
		}
	}
	if took > leaseDuration+5*time.Second {
		t.Errorf("nobody led for %s, longer than the lease duration and 5s", took)
	}
	// How fast pods are freed is the machine's affair too, and the API server's: on one
	// where a bare client needs long for as many, the controller may.
	bare := bareClient(t, pods)
	held := last.Sub(killed)
	t.Logf("%d gated pods: the other replica freed them %s to %s after the kill, for %.1f ms of CPU a pod, and led after %s (lease duration %s); a bare client frees as many within %s",
		pods, first.Sub(killed).Round(10*time.Millisecond), held.Round(10*time.Millisecond), 1000*(cpu-before)/pods, took.Round(10*time.Millisecond), leaseDuration, bare.Round(10*time.Millisecond))
	if limit := max(leaseDuration+5*time.Second, leaseDuration/3+2*time.Second+5*bare/2); held > limit {
		t.Errorf("pods were held for %s after the kill, which should be %s at most", held, limit)
	}
	if gated := f.check(); gated != pods {
		t.Errorf("%d pods were gated", gated)
	}
}

func TestALeaderThatEndsInABurstHandsOver(t *testing.T) {
	const pods = 500
	k, f := test(t, ownWebhooks+"=none")
	create(t, k, f, pods, gate, ofDown(2)...)
	leads, waits := leader(t)
	if err := down.Up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = down.Down() })
	k.Eventually("the burst has begun", func(context.Context) error {
		if n := count(f, freed); n < pods/50 {
			return fmt.Errorf("%d pods are free", n)
		}
		return nil
	})
	ended := time.Now()
	before := count(f, freed)
	stopped := make(chan error, 1)
	leads.wanted.Store(false)
	go func() { stopped <- leads.Stop() }()
	defer restart(t, leads)
	took := waitLeads(t, waits).Sub(ended)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	f.wait("all pods are bound", pods, bound)
	t.Logf("%d of %d pods were free when the leader was told to end; the other one led %s later", before, pods, took.Round(10*time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("the hand-over took %s", took)
	}
	if gated := f.check(); gated != pods {
		t.Errorf("%d pods were gated", gated)
	}
}

func count(f *following, condition func(life) bool) (n int) {
	for _, l := range f.all() {
		if condition(l) {
			n++
		}
	}
	return n
}

// configure writes the configuration and waits until all have read it.
func configure(t *testing.T, text string) {
	t.Helper()
	before := map[string]int64{}
	processes := []*controlplane.Process{provider.Process, replicas[0].Process, replicas[1].Process}
	for _, p := range processes {
		before[p.Name()] = p.LogSize()
	}
	if err := controlplane.WriteFile(configuration, []byte(text)); err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		err := controlplane.WaitFor(context.Background(), p.Name()+" has read the configuration", func(context.Context) error {
			if log := p.LogSince(before[p.Name()]); !strings.Contains(log, "reloaded") {
				return fmt.Errorf("it says %q", log)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAChangedConfigurationReachesGatedPods(t *testing.T) {
	const pods = 10
	k, f := test(t)
	for i := range pods {
		k.CreatePod(pod(fmt.Sprintf("p%d", i), "", image(away, "power")))
	}
	f.wait("the pods are gated", pods, gatedFirst)
	defer configure(t, defaults)
	configure(t, "{apiVersion: archkeeper.io/v1alpha1, kind: Configuration, placement: {holdDeadline: 1s, fallbackArchitecture: ppc64le}}\n")
	changed := time.Now()
	f.wait("the pods are bound", pods, bound)
	t.Logf("bound %s after the change was read", time.Since(changed).Round(10*time.Millisecond))
	for _, l := range f.all() {
		wantRequired(t, l.last, "kubernetes.io/arch In [ppc64le]")
	}
	if gated := f.check(); gated != pods {
		t.Errorf("%d pods were gated", gated)
	}
}

func TestRemovingTheProductFreesWhatIsGated(t *testing.T) {
	const pods = 40
	k, f := test(t, ownWebhooks+"=uninstall")
	name := "mutate-" + k.Namespace + ".archkeeper.io"
	k.ApplyForTest(webhook(name, provider, "{key: kubernetes.io/metadata.name, operator: In, values: ["+k.Namespace+"]}"))
	k.Eventually("pods are gated", func(ctx context.Context) error {
		p, err := dryRun(ctx, k, pod("p", "", image(away, "arm")))
		if err == nil && !isGated(p) {
			return errors.New("they are not")
		}
		return err
	})
	for i := range pods {
		k.CreatePod(pod(fmt.Sprintf("p%d", i), "schedulingGates: [{name: example.com/theirs}], ", image(away, "arm")))
	}
	f.wait("the pods are gated", pods, gatedFirst)
	for _, replica := range replicas {
		replica.wanted.Store(false)
		if err := replica.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, replica := range replicas {
			restart(t, replica)
		}
	}()
	binary, err := archkeeper.Binary(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ungate := func(args ...string) []string {
		cmd := exec.CommandContext(t.Context(), binary, append([]string{"ungate", "--kubeconfig=" + cluster.Kubeconfig}, args...)...)
		cmd.Dir = filepath.Dir(cluster.Kubeconfig)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		return strings.Fields(string(out))
	}
	if would := ungate("--all", "--dry-run"); len(would) != pods || count(f, freed) > 0 {
		t.Errorf("a dry run would free %d pods, and freed %d", len(would), count(f, freed))
	}
	if did := ungate("--uninstall", "-n", k.Namespace, "--delete", "mutatingwebhookconfigurations.v1.admissionregistration.k8s.io/"+name); len(did) != pods {
		t.Errorf("it freed %d pods", len(did))
	}
	f.wait("all are free", pods, freed)
	for _, l := range f.all() {
		if len(l.last.Spec.SchedulingGates) != 1 || required(l.last) != nil || l.again {
			t.Errorf("pod %s: gates %v, requires %v", l.last.Name, l.last.Spec.SchedulingGates, required(l.last))
		}
	}
	if isGated(k.CreatePod(pod("new", "", image(away, "arm")))) {
		t.Error("a new pod is gated")
	}
	if again := ungate("--all"); len(again) > 0 {
		t.Errorf("there were %v left", again)
	}
	if w := f.writes(); len(w.done) > 0 {
		t.Errorf("the controllers wrote to %v", w.done)
	}
}
