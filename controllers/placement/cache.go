package placement

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/archkeeper/archkeeper/rego"
)

// CacheOptions are the informers of placement: pending pods without a node,
// stripped; of namespaces and nodes their labels and annotations. Memory follows
// pending pods. A pod that is bound, like one that is deleted, arrives as DELETED.
func CacheOptions() cache.Options {
	pods := fields.SelectorFromSet(fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)})
	return cache.Options{
		DefaultTransform: StripMetadata,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: pods, Transform: Strip},
		},
	}
}

// nodesInterval is how old what is known of the nodes may be.
const nodesInterval = 10 * time.Second

// Nodes knows the architectures and operating systems of the cluster's nodes.
type Nodes struct {
	reader  client.Reader
	clock   clock.WithTicker
	current atomic.Pointer[rego.Cluster]
}

// NewNodes makes a Nodes that knows nothing until it runs.
func NewNodes(reader client.Reader, clock clock.WithTicker) *Nodes {
	n := &Nodes{reader: reader, clock: clock}
	n.current.Store(&rego.Cluster{})
	return n
}

// Cluster is what was last seen; nothing at first.
func (n *Nodes) Cluster() rego.Cluster { return *n.current.Load() }

// NeedLeaderElection is false: every replica knows the nodes.
func (n *Nodes) NeedLeaderElection() bool { return false }

// Start looks at the nodes at an interval until ctx ends.
func (n *Nodes) Start(ctx context.Context) error {
	ticker := n.clock.NewTicker(nodesInterval)
	defer ticker.Stop()
	for {
		n.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

func (n *Nodes) look(ctx context.Context) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "NodeList"})
	if err := n.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return // what was seen last stands
	}
	architectures, systems := map[string]struct{}{}, map[string]struct{}{}
	for i := range list.Items {
		if a := list.Items[i].Labels[corev1.LabelArchStable]; a != "" {
			architectures[a] = struct{}{}
		}
		if s := list.Items[i].Labels[corev1.LabelOSStable]; s != "" {
			systems[s] = struct{}{}
		}
	}
	n.current.Store(&rego.Cluster{
		Architectures:    slices.Sorted(maps.Keys(architectures)),
		OperatingSystems: slices.Sorted(maps.Keys(systems)),
	})
}
