package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/rego"
)

// FromCluster fills in a pod of the cluster, its namespace, and the node types
// where the question leaves the architectures open. A namespace or nodes that may
// not be read are left unknown.
func FromCluster(ctx context.Context, cluster *rest.Config, namespace, name string, q *Question) error {
	client, err := kubernetes.NewForConfig(cluster)
	if err != nil {
		return fmt.Errorf("reaching the API server: %w", err)
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	raw, err := json.Marshal(pod)
	if err != nil {
		return fmt.Errorf("encoding pod %s/%s: %w", namespace, name, err)
	}
	if q.Pod, err = ParsePod(raw); err != nil {
		return fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	if ns, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); err == nil {
		q.Namespace = ns
		// An annotation that says what it may not is without effect.
		q.Placement, _ = q.Placement.ForNamespace(ns.Annotations)
	}
	if len(q.Cluster.Architectures) > 0 {
		return nil
	}
	if nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
		architectures, systems := map[string]bool{}, map[string]bool{}
		for _, node := range nodes.Items {
			architectures[node.Labels["kubernetes.io/arch"]] = true
			systems[node.Labels["kubernetes.io/os"]] = true
		}
		delete(architectures, "")
		delete(systems, "")
		q.Cluster = rego.Cluster{
			Architectures:    slices.Sorted(maps.Keys(architectures)),
			OperatingSystems: slices.Sorted(maps.Keys(systems)),
		}
	}
	return nil
}
