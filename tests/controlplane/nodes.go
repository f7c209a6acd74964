package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is a fake node, as kwok keeps it: it is Ready, and pods bound to it
// become Running without any container.
type Node struct {
	// Name is ARCH-N when empty.
	Name string
	// Arch and OS are the labels kubernetes.io/arch and kubernetes.io/os; OS
	// is linux when empty.
	Arch, OS string
	Labels   map[string]string
	Taints   []corev1.Taint
}

// AddNode adds a node and waits until pods can be placed on it. It returns the
// node's name.
func (c *Cluster) AddNode(ctx context.Context, node Node) (string, error) {
	name, err := c.createNode(ctx, node)
	if err != nil {
		return "", err
	}
	return name, c.waitNode(ctx, name)
}

// RemoveNode deletes a node; its pods go with it.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	err := c.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing node %s: %w", name, err)
	}
	return nil
}

func (c *Cluster) createNode(ctx context.Context, node Node) (string, error) {
	if node.OS == "" {
		node.OS = "linux"
	}
	if node.Name == "" {
		c.mu.Lock()
		node.Name = fmt.Sprintf("%s-%d", node.Arch, c.nodes)
		c.nodes++
		c.mu.Unlock()
	}
	labels := map[string]string{
		corev1.LabelHostname:   node.Name,
		corev1.LabelArchStable: node.Arch,
		corev1.LabelOSStable:   node.OS,
		"kwok.x-k8s.io/node":   "fake",
	}
	maps.Copy(labels, node.Labels)
	room := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("1000"),
	}
	_, err := c.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: labels, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}},
		Spec:       corev1.NodeSpec{Taints: node.Taints},
		Status: corev1.NodeStatus{
			Allocatable: room, Capacity: room,
			NodeInfo: corev1.NodeSystemInfo{Architecture: node.Arch, OperatingSystem: node.OS, KubeletVersion: kubernetesVersion},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("adding node %s: %w", node.Name, err)
	}
	return node.Name, nil
}

// waitNode waits until the node is Ready and the taints of the node
// controller are gone.
func (c *Cluster) waitNode(ctx context.Context, name string) error {
	return WaitFor(ctx, "node "+name+" is ready", func(ctx context.Context) error {
		node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("getting it: %w", err)
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
				return fmt.Errorf("it has the taint %s", taint.Key)
			}
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is not Ready")
	})
}

func (c *Cluster) addNodes(ctx context.Context) error {
	for _, node := range c.options.Nodes {
		if _, err := c.createNode(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) waitNodes(ctx context.Context) error {
	nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, node := range nodes.Items {
		if err := c.waitNode(ctx, node.Name); err != nil {
			return err
		}
	}
	return nil
}
