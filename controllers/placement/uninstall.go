package placement

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"
)

// managedLabel is on what the controllers made in their own namespace.
const managedLabel = "app.kubernetes.io/managed-by=archkeeper"

// Times of an uninstallation.
const (
	// settle is how long an API server may go on with a webhook that was deleted.
	settle = 2 * time.Second
	// quietLooks without a gated pod end the freeing.
	quietLooks = 3
)

// Uninstall removes what holds pods: first what injects the gate, then the gates,
// until no more of them appear, then the controllers, then what they made.
type Uninstall struct {
	Ungate
	Objects dynamic.Interface
	// Namespace that we run in; empty: nothing in it is deleted.
	Namespace string
	// Delete are cluster-scoped objects, RESOURCE.VERSION.GROUP/NAME. One that is
	// not there, or whose resource is not, is none to delete.
	Delete []string
	// Deployment of the controllers in Namespace: once nothing is gated any more it
	// is deleted, and its pods are waited for, because who made the rest would make
	// it again. Lease is theirs. Empty: left alone.
	Deployment, Lease string
	// Timeout of the freeing, and of the waiting for the controllers' end.
	Timeout time.Duration
	// Clock of the time between two looks; the real one when nil.
	Clock clock.Clock
}

// Run gives the pods that were freed.
func (u Uninstall) Run(ctx context.Context) ([]types.NamespacedName, error) {
	if u.Clock == nil {
		u.Clock = clock.RealClock{}
	}
	for _, text := range u.Delete {
		if err := u.delete(ctx, text); err != nil {
			return nil, err
		}
	}
	freed, err := u.freeAll(ctx)
	if err != nil {
		return freed, err
	}
	if err := u.stop(ctx); err != nil {
		return freed, err
	}
	// A controller may have put back what was deleted before it ended.
	for _, text := range u.Delete {
		if err := u.delete(ctx, text); err != nil {
			return freed, err
		}
	}
	return freed, u.clean(ctx)
}

// stop deletes the controllers' Deployment and waits until their pods are gone.
func (u Uninstall) stop(ctx context.Context) error {
	if u.Deployment == "" || u.Namespace == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, u.Timeout)
	defer cancel()
	deployments := u.Client.AppsV1().Deployments(u.Namespace)
	deployment, err := deployments.Get(ctx, u.Deployment, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading deployment %s/%s: %w", u.Namespace, u.Deployment, err)
	}
	err = deployments.Delete(ctx, u.Deployment, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting deployment %s/%s: %w", u.Namespace, u.Deployment, err)
	}
	selector := metav1.FormatLabelSelector(deployment.Spec.Selector)
	for {
		pods, err := u.Client.CoreV1().Pods(u.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return fmt.Errorf("waiting for the controllers to end: %w", err)
		}
		if len(pods.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods of deployment %s/%s have not ended", len(pods.Items), u.Namespace, u.Deployment)
		case <-u.Clock.After(settle):
		}
	}
}

func (u Uninstall) delete(ctx context.Context, text string) error {
	argument, name, ok := strings.Cut(text, "/")
	resource, _ := schema.ParseResourceArg(argument)
	if !ok || name == "" || resource == nil {
		return fmt.Errorf("%q is not RESOURCE.VERSION.GROUP/NAME", text)
	}
	err := u.Objects.Resource(*resource).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return fmt.Errorf("deleting %s: %w", text, err)
	}
	return nil
}

// freeAll frees pods until none was gated for some looks: an API server may go on
// for a moment with what injects the gate.
func (u Uninstall) freeAll(ctx context.Context) ([]types.NamespacedName, error) {
	ctx, cancel := context.WithTimeout(ctx, u.Timeout)
	defer cancel()
	var all []types.NamespacedName
	for quiet := 0; ; {
		freed, err := u.Ungate.Run(ctx)
		all = append(all, freed...)
		switch {
		case err != nil:
			return all, err
		case len(freed) > 0:
			quiet = 0
		default:
			quiet++
		}
		if quiet >= quietLooks {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return all, errors.New("pods with our gate go on appearing: something else injects it")
		case <-u.Clock.After(settle):
		}
	}
}

// clean deletes what the controllers made.
func (u Uninstall) clean(ctx context.Context) error {
	if u.Namespace == "" {
		return nil
	}
	for _, resource := range []string{"secrets", "configmaps"} {
		collection := u.Objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(u.Namespace)
		list, err := collection.List(ctx, metav1.ListOptions{LabelSelector: managedLabel})
		if err != nil {
			return fmt.Errorf("listing our %s: %w", resource, err)
		}
		for i := range list.Items {
			if err := collection.Delete(ctx, list.Items[i].GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting %s %s/%s: %w", resource, u.Namespace, list.Items[i].GetName(), err)
			}
		}
	}
	if u.Lease == "" {
		return nil
	}
	err := u.Client.CoordinationV1().Leases(u.Namespace).Delete(ctx, u.Lease, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting lease %s/%s: %w", u.Namespace, u.Lease, err)
	}
	return nil
}
