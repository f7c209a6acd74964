package placement_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/archkeeper/archkeeper/tests/controlplane"
	"github.com/archkeeper/archkeeper/tests/e2e/archkeeper"
)

// following sees every state of every pod of a namespace, from the first.
type following struct {
	k     *controlplane.Test
	t     *testing.T
	audit int64

	mu   sync.Mutex
	pods map[string]*life
}

// life of one pod.
type life struct {
	// gated when it was created.
	gated bool
	// freed is when it was first seen without our gate.
	freed time.Time
	// again is set when the gate came back.
	again bool
	// bound is when it was first seen with a node.
	bound time.Time
	last  *corev1.Pod
}

// follow begins with the namespace's present.
func follow(t *testing.T, k *controlplane.Test) *following {
	t.Helper()
	f := &following{k: k, t: t, audit: cluster.AuditSize(), pods: map[string]*life{}}
	client := cluster.Client.CoreV1().Pods(k.Namespace)
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(t.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watcher.Stop)
	go func() {
		for e := range watcher.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				f.see(e.Type, p)
			}
		}
	}()
	return f
}

func (f *following) see(kind watch.EventType, p *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.pods[p.Name]
	if l == nil {
		l = &life{gated: isGated(p)}
		f.pods[p.Name] = l
	}
	if kind == watch.Deleted {
		return // the last state before it is of more use
	}
	now := time.Now()
	switch gatedNow := isGated(p); {
	case !gatedNow && l.freed.IsZero():
		l.freed = now
	case gatedNow && !l.freed.IsZero():
		l.again = true
	}
	if p.Spec.NodeName != "" && l.bound.IsZero() {
		l.bound = now
	}
	l.last = p
}

// all gives a copy of what was seen.
func (f *following) all() map[string]life {
	f.mu.Lock()
	defer f.mu.Unlock()
	copied := map[string]life{}
	for name, l := range f.pods {
		copied[name] = *l
	}
	return copied
}

func (f *following) of(name string) life {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.pods[name]; l != nil {
		return *l
	}
	return life{}
}

// wait until n pods were seen and all are as the condition says.
func (f *following) wait(what string, n int, condition func(life) bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*time.Minute)
	defer cancel()
	err := controlplane.WaitFor(ctx, what, func(context.Context) error {
		all := f.all()
		if len(all) < n {
			return fmt.Errorf("there are %d pods of %d", len(all), n)
		}
		var not []string
		for name, l := range all {
			if !condition(l) {
				not = append(not, name)
			}
		}
		if len(not) > 0 {
			slices.Sort(not)
			return fmt.Errorf("%d of %d pods are not, %s among them", len(not), len(all), not[0])
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func gatedFirst(l life) bool { return l.gated }
func freed(l life) bool      { return !l.freed.IsZero() }
func bound(l life) bool      { return !l.bound.IsZero() }

// run waits until one pod is bound and gives it.
func (f *following) run(name string) *corev1.Pod {
	f.t.Helper()
	f.one("is bound", name, bound)
	return f.of(name).last
}

func (f *following) one(what, name string, condition func(life) bool) {
	f.t.Helper()
	f.k.Eventually("pod "+name+" "+what, func(context.Context) error {
		l := f.of(name)
		if l.last == nil {
			return fmt.Errorf("it was not seen")
		}
		if !condition(l) {
			return fmt.Errorf("gates %v, node %q, requires %v, conditions %v", l.last.Spec.SchedulingGates, l.last.Spec.NodeName, required(l.last), l.last.Status.Conditions)
		}
		return nil
	})
}

// runsOn is the architecture and system of each node.
func runsOn(node string) string {
	kind, _, _ := strings.Cut(node, "-")
	if kind == "windows" {
		return "windows/amd64"
	}
	return "linux/" + kind
}

// check what holds for every pod of a namespace: its node runs all of its images,
// the gate did not come back, and we wrote to it once when it was gated and is
// freed, and not at all else. It gives how many were gated.
func (f *following) check() (gated int) {
	f.t.Helper()
	writes := f.writes()
	for name, l := range f.all() {
		if l.again {
			f.t.Errorf("the gate of pod %s came back", name)
		}
		want := 0
		if l.gated {
			gated++
			if freed(l) {
				want = 1
			}
		}
		if got := writes.done[name]; got != want {
			f.t.Errorf("we wrote %d times to pod %s, gated: %t", got, name, l.gated)
		}
		if l.last.Spec.NodeName == "" {
			continue
		}
		for _, c := range l.last.Spec.Containers {
			_, repository, _ := strings.Cut(c.Image, "/shop/")
			repository, _, _ = strings.Cut(repository, ":")
			runs := slices.ContainsFunc(platforms[repository], func(p string) bool {
				p, _, _ = strings.Cut(p, ":")
				return p == runsOn(l.last.Spec.NodeName)
			})
			if !runs {
				f.t.Errorf("pod %s with image %s is on %s", name, c.Image, l.last.Spec.NodeName)
			}
		}
	}
	if len(writes.refused) > 0 {
		f.t.Errorf("the API server refused writes of ours: %v", writes.refused)
	}
	if len(writes.others) > 0 {
		f.t.Errorf("we wrote to something else than pods: %v", writes.others)
	}
	return gated
}

// written is what we wrote in the namespace, Events and Leases aside.
type written struct {
	done    map[string]int // pod: writes that were taken
	stale   int            // 409: somebody else had written, nothing was changed
	refused []string
	others  []string
}

func (f *following) writes() written {
	f.t.Helper()
	w := written{done: map[string]int{}}
	events, err := cluster.Audit(f.audit, func(e *auditv1.Event) bool {
		return (e.User.Username == archkeeper.ControllersUser || e.User.Username == archkeeper.ProviderUser) &&
			e.Stage == auditv1.StageResponseComplete && e.ObjectRef != nil && e.ObjectRef.Namespace == f.k.Namespace &&
			!slices.Contains([]string{"get", "list", "watch"}, e.Verb) &&
			!slices.Contains([]string{"events", "leases"}, e.ObjectRef.Resource)
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range events {
		what := fmt.Sprintf("%s %s %s: %d", e.Verb, e.ObjectRef.Resource, e.ObjectRef.Name, e.ResponseStatus.Code)
		switch {
		case e.ObjectRef.Resource != "pods" || e.ObjectRef.Subresource != "":
			w.others = append(w.others, what)
		case e.ResponseStatus.Code == 409:
			w.stale++
		case e.ResponseStatus.Code >= 400 && e.ResponseStatus.Code != 404:
			w.refused = append(w.refused, what)
		case e.ResponseStatus.Code < 300:
			w.done[e.ObjectRef.Name]++
		}
	}
	return w
}

// nodes counts pods by node.
func (f *following) nodes() string {
	count := map[string]int{}
	for _, l := range f.all() {
		if l.last != nil {
			count[l.last.Spec.NodeName]++
		}
	}
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(count)) {
		lines = append(lines, fmt.Sprintf("%s %d", node, count[node]))
	}
	return strings.Join(lines, ", ")
}
