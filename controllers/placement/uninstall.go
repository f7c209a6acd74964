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
// until no more of them appear, then what the controllers made.
type Uninstall struct {
	Ungate
	Objects dynamic.Interface
	// Namespace that we run in; empty: nothing in it is deleted.
	Namespace string
	// Delete are cluster-scoped objects, RESOURCE.VERSION.GROUP/NAME. One that is
	// not there, or whose resource is not, is none to delete.
	Delete []string
	// Timeout of the freeing.
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
	return freed, u.clean(ctx)
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
	return nil
}
