package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Namespaces knows the labels and annotations of every namespace, from a watch.
type Namespaces struct {
	informer cache.SharedIndexInformer
}

// NewNamespaces watches nothing yet.
func NewNamespaces(client coreclient.NamespacesGetter) (*Namespaces, error) {
	namespaces := client.Namespaces()
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return namespaces.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return namespaces.Watch(ctx, o)
		},
	}, &corev1.Namespace{}, 0, cache.Indexers{})
	err := informer.SetTransform(func(object any) (any, error) {
		if namespace, ok := object.(*corev1.Namespace); ok {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: namespace.Name, UID: namespace.UID, ResourceVersion: namespace.ResourceVersion,
				Labels: namespace.Labels, Annotations: namespace.Annotations,
			}}, nil
		}
		return object, nil
	})
	if err != nil {
		return nil, fmt.Errorf("watch of namespaces: %w", err)
	}
	return &Namespaces{informer: informer}, nil
}

// Run watches until ctx ends.
func (n *Namespaces) Run(ctx context.Context) { n.informer.RunWithContext(ctx) }

// Synced tells whether the present state has been seen once.
func (n *Namespaces) Synced() bool { return n.informer.HasSynced() }

// Get gives a namespace with its labels and annotations; nil when it is not
// known. It must not be changed.
func (n *Namespaces) Get(name string) *corev1.Namespace {
	object, ok, err := n.informer.GetIndexer().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	namespace, _ := object.(*corev1.Namespace)
	return namespace
}
