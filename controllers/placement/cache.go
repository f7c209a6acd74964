package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
