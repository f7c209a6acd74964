package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// How long things may take on a busy machine; what they take is far less.
const (
	startTimeout = 5 * time.Minute
	waitTimeout  = 60 * time.Second
)

// Main runs the tests of a package on one cluster of theirs and returns the
// exit status for os.Exit. setup is called once, with the running cluster; its
// context has no deadline, so that it may build a program.
// When setup or a test fails, the logs are printed (setup) and kept (both).
func Main(m *testing.M, o Options, setup func(ctx context.Context, c *Cluster) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.Log == nil {
		o.Log = os.Stderr
	}
	// The build is not bounded: a cold one takes as long as the machine needs.
	if _, err := Build(ctx, o.Log); err != nil {
		fmt.Fprintln(o.Log, err)
		return 1
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := Start(starting, o)
	if err != nil {
		fmt.Fprintln(o.Log, err)
		return 1
	}
	if err := setup(ctx, c); err != nil {
		fmt.Fprintf(o.Log, "%ssetting up the tests' cluster: %v\n", c.Logs(), err)
		c.end()
		fmt.Fprintln(o.Log, "controlplane: state kept in", c.stateDir)
		return 1
	}
	finished := make(chan struct{})
	go func() {
		select {
		case <-finished:
		case <-ctx.Done(): // interrupted: the tests cannot go on without the cluster
			c.Stop()
			os.Exit(1)
		}
	}()
	status := m.Run()
	close(finished)
	if status != 0 {
		c.end()
		fmt.Fprintln(o.Log, "controlplane: state kept in", c.stateDir)
		return status
	}
	c.Stop()
	return 0
}

// Test is a cluster as one test sees it: a namespace of its own, and methods
// that end the test on an error. The plain methods of Cluster, which return
// errors, are under Cluster.
type Test struct {
	// Cluster of the package.
	Cluster *Cluster
	// Namespace of this test; it is deleted when the test ends.
	Namespace string

	t testing.TB
}

// Test makes a namespace for a test and waits until pods can be created in it.
// When the test fails, it logs what each process wrote while it ran.
func (c *Cluster) Test(t testing.TB) *Test {
	t.Helper()
	c.logOnFailure(t)
	namespace, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix(t.Name())},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making a namespace: %v", err)
	}
	test := &Test{Cluster: c, Namespace: namespace.Name, t: t}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := c.Client.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{}); err != nil {
			t.Logf("deleting namespace %s: %v", namespace.Name, err)
		}
	})
	test.Eventually("the default service account is there", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(namespace.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return test
}

// namespacePrefix makes a name out of a test's: lower case, at most 40
// characters, so that a namespace tells whose it is.
func namespacePrefix(test string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, strings.TrimPrefix(test, "Test"))
	const longest = 40
	if len(name) > longest {
		name = name[:longest]
	}
	return "t-" + strings.Trim(name, "-") + "-"
}

func (c *Cluster) logOnFailure(t testing.TB) {
	c.mu.Lock()
	begin := map[string]int64{}
	for _, p := range c.processes {
		begin[p.program.Name] = p.LogSize()
	}
	c.mu.Unlock()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, p := range c.processes {
			if tail := p.tail(begin[p.program.Name]); tail != "" {
				t.Log(tail)
			}
		}
	})
}

// Context ends with the test, and after a minute: each call of the cluster by
// a test is bounded.
func (k *Test) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.t.Context(), waitTimeout)
}

// Apply applies manifests; see Cluster.Apply. Namespaced objects that name no
// namespace go into the test's. Objects without a namespace stay when the test
// ends: see ApplyForTest.
func (k *Test) Apply(manifests string) {
	k.t.Helper()
	ctx, cancel := k.context()
	defer cancel()
	if err := k.Cluster.Apply(ctx, k.Namespace, manifests); err != nil {
		k.t.Fatal(err)
	}
}

// ApplyForTest is Apply, and deletes the objects when the test ends: for what
// lives outside of the test's namespace.
func (k *Test) ApplyForTest(manifests string) {
	k.t.Helper()
	k.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := k.Cluster.Delete(ctx, k.Namespace, manifests); err != nil {
			k.t.Error(err)
		}
	})
	k.Apply(manifests)
}

// Create creates one object with a plain POST and returns it as stored.
func (k *Test) Create(manifest string) *unstructured.Unstructured {
	k.t.Helper()
	created, err := k.TryCreate(manifest)
	if err != nil {
		k.t.Fatal(err)
	}
	return created
}

// TryCreate is Create that returns the server's error: a denial is one.
func (k *Test) TryCreate(manifest string) (*unstructured.Unstructured, error) {
	ctx, cancel := k.context()
	defer cancel()
	created, err := k.Cluster.Create(ctx, k.Namespace, manifest)
	if err != nil {
		return nil, err
	}
	if len(created) != 1 {
		return nil, fmt.Errorf("the manifest has %d objects, expected one", len(created))
	}
	return created[0], nil
}

// CreatePod is Create for a pod.
func (k *Test) CreatePod(manifest string) *corev1.Pod {
	k.t.Helper()
	pod, err := k.TryCreatePod(manifest)
	if err != nil {
		k.t.Fatal(err)
	}
	return pod
}

// TryCreatePod is CreatePod that returns the server's error.
func (k *Test) TryCreatePod(manifest string) (*corev1.Pod, error) {
	object, err := k.TryCreate(manifest)
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", describe(object), err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(content, pod); err != nil {
		return nil, fmt.Errorf("reading %s as a pod: %w", describe(object), err)
	}
	return pod, nil
}

// Pod returns a pod of the test's namespace.
func (k *Test) Pod(name string) *corev1.Pod {
	k.t.Helper()
	ctx, cancel := k.context()
	defer cancel()
	pod, err := k.Cluster.Client.CoreV1().Pods(k.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return pod
}

// WaitRunning waits until a pod of the test's namespace runs and returns it.
func (k *Test) WaitRunning(name string) *corev1.Pod {
	k.t.Helper()
	var pod *corev1.Pod
	k.Eventually("pod "+name+" runs", func(ctx context.Context) error {
		var err error
		pod, err = k.Cluster.Client.CoreV1().Pods(k.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s on node %q, with conditions %v", pod.Status.Phase, pod.Spec.NodeName, pod.Status.Conditions)
		}
		return nil
	})
	return pod
}

// Kubectl runs kubectl in the test's namespace and returns its stdout.
func (k *Test) Kubectl(args ...string) string {
	k.t.Helper()
	out, err := k.TryKubectl(args...)
	if err != nil {
		k.t.Fatal(err)
	}
	return out
}

// TryKubectl is Kubectl that returns the error.
func (k *Test) TryKubectl(args ...string) (string, error) {
	ctx, cancel := k.context()
	defer cancel()
	return k.Cluster.Kubectl(ctx, append([]string{"--namespace=" + k.Namespace}, args...)...)
}

// AddNode adds a node for the time of the test and returns its name.
func (k *Test) AddNode(node Node) string {
	k.t.Helper()
	ctx, cancel := k.context()
	defer cancel()
	name, err := k.Cluster.AddNode(ctx, node)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := k.Cluster.RemoveNode(ctx, name); err != nil {
			k.t.Error(err)
		}
	})
	return name
}

// Run starts a program for the time of the test; see Cluster.Run.
func (k *Test) Run(program Program) *Process {
	k.t.Helper()
	ctx, cancel := k.context()
	defer cancel()
	p, err := k.Cluster.Run(ctx, program)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		if !p.running() {
			return
		}
		if err := p.Stop(); err != nil {
			k.t.Error(err)
		}
	})
	return p
}

// Eventually waits, a minute at most, until the condition returns nil; see
// WaitFor. what completes the sentence "waiting until ...".
func (k *Test) Eventually(what string, condition func(ctx context.Context) error) {
	k.t.Helper()
	ctx, cancel := k.context()
	defer cancel()
	if err := WaitFor(ctx, what, condition); err != nil {
		k.t.Fatal(err)
	}
}
