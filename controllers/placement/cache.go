package placement

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// followEverywhere makes a replica that does not lead follow pods and namespaces
// too: whoever takes over has them at hand.
func followEverywhere(informers cache.Cache) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	for _, object := range []client.Object{&corev1.Pod{}, namespace} {
		// It asks nobody: the manager starts what is asked for before its own start.
		if _, err := informers.GetInformer(context.Background(), object, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("following %T: %w", object, err)
		}
	}
	return nil
}

// CacheOptions are the informers of placement: pending pods without a node,
// stripped; of namespaces their labels and annotations. Memory follows
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
