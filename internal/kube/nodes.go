package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Nodes knows the architectures and operating systems of the cluster's nodes, from
// a watch. Of each node it keeps these two labels.
type Nodes struct {
	informer cache.SharedIndexInformer

	mu            sync.Mutex
	architectures map[string]int // to the number of nodes
	systems       map[string]int
}

// NewNodes watches nothing yet.
func NewNodes(client coreclient.NodesGetter) (*Nodes, error) {
	nodes := client.Nodes()
	n := &Nodes{architectures: map[string]int{}, systems: map[string]int{}}
	n.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, client), &corev1.Node{}, 0, cache.Indexers{})
	if err := n.informer.SetTransform(slimNode); err != nil {
		return nil, fmt.Errorf("watch of nodes: %w", err)
	}
	if _, err := n.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.count(o, 1) },
		UpdateFunc: func(was, is any) { n.count(was, -1); n.count(is, 1) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			n.count(o, -1)
		},
	}); err != nil {
		return nil, fmt.Errorf("watch of nodes: %w", err)
	}
	return n, nil
}

func slimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
		Labels: map[string]string{
			corev1.LabelArchStable: node.Labels[corev1.LabelArchStable],
			corev1.LabelOSStable:   node.Labels[corev1.LabelOSStable],
		},
	}}, nil
}

func (n *Nodes) count(object any, by int) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for counts, value := range map[*map[string]int]string{
		&n.architectures: node.Labels[corev1.LabelArchStable], &n.systems: node.Labels[corev1.LabelOSStable],
	} {
		if value == "" {
			continue
		}
		if (*counts)[value] += by; (*counts)[value] <= 0 {
			delete(*counts, value)
		}
	}
}

// Run watches until ctx ends.
func (n *Nodes) Run(ctx context.Context) { n.informer.RunWithContext(ctx) }

// Synced tells whether the present state has been seen once.
func (n *Nodes) Synced() bool { return n.informer.HasSynced() }

// Kinds gives the architectures and the operating systems of the nodes, sorted;
// none while the nodes are not known.
func (n *Nodes) Kinds() (architectures, systems []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.architectures)), slices.Sorted(maps.Keys(n.systems))
}
