package kube

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Wrote says what KeepConfigMap did.
type Wrote string

// What was written.
const (
	WroteNothing Wrote = ""
	WroteNew     Wrote = "created"
	WroteChange  Wrote = "updated"
)

// KeepConfigMap makes a ConfigMap hold data and nothing else. What is equal is
// not written. A new one carries the labels by which an uninstallation finds
// what the controllers made.
func KeepConfigMap(ctx context.Context, client coreclient.ConfigMapInterface, name string, data map[string]string, fieldManager string) (Wrote, error) {
	current, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name:   name,
				Labels: map[string]string{"app.kubernetes.io/name": "archkeeper", "app.kubernetes.io/managed-by": "archkeeper"},
			},
			Data: data,
		}, metav1.CreateOptions{FieldManager: fieldManager})
		if err != nil {
			return WroteNothing, fmt.Errorf("create ConfigMap %s: %w", name, err)
		}
		return WroteNew, nil
	}
	if err != nil {
		return WroteNothing, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}
	if maps.Equal(current.Data, data) && len(current.BinaryData) == 0 {
		return WroteNothing, nil
	}
	updated := current.DeepCopy()
	updated.Data, updated.BinaryData = data, nil
	if _, err := client.Update(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return WroteNothing, fmt.Errorf("update ConfigMap %s: %w", name, err)
	}
	return WroteChange, nil
}
