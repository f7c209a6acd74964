package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/archkeeper/archkeeper/rego"
)

const (
	ungateAtOnce = 16
	ungatePage   = 500
	ungateTries  = 5
)

// Ungate frees pods from our gate without placing them.
type Ungate struct {
	Client kubernetes.Interface
	// Gate that is taken off.
	Gate string
	// Namespace of the pods; empty for all namespaces.
	Namespace string
	// Names of the pods; empty for every gated one.
	Names []string
	// DryRun frees nothing.
	DryRun bool
	// Found is called with the number of gated pods, Step after each one,
	// concurrently; nil for nobody.
	Found func(total int)
	Step  func()
}

// Run gives the pods that were freed (or would be), sorted. Pods that vanish, or
// lose the gate by another hand, are no failure. An error names the pods that
// could not be freed; the others are.
func (u Ungate) Run(ctx context.Context) ([]types.NamespacedName, error) {
	gated, err := u.list(ctx)
	if err != nil {
		return nil, err
	}
	if u.Found != nil {
		u.Found(len(gated))
	}
	var mu sync.Mutex
	var freed []types.NamespacedName
	var failures []error
	var turns errgroup.Group
	turns.SetLimit(ungateAtOnce)
	for i := range gated {
		pod := &gated[i]
		turns.Go(func() error {
			done, err := u.free(ctx, pod)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failures = append(failures, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err))
			case done:
				freed = append(freed, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
			}
			if u.Step != nil {
				u.Step()
			}
			return nil
		})
	}
	_ = turns.Wait() // the functions give no errors
	slices.SortFunc(freed, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	slices.SortFunc(failures, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return freed, errors.Join(failures...)
}

func (u Ungate) list(ctx context.Context) ([]corev1.Pod, error) {
	if len(u.Names) > 0 {
		var pods []corev1.Pod
		for _, name := range u.Names {
			pod, err := u.Client.CoreV1().Pods(u.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, fmt.Errorf("reading pod %s/%s: %w", u.Namespace, name, err)
			}
			if u.index(pod) {
				pods = append(pods, *pod)
			}
		}
		return pods, nil
	}
	options := metav1.ListOptions{
		Limit:         ungatePage,
		FieldSelector: fields.SelectorFromSet(fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}).String(),
	}
	var pods []corev1.Pod
	for {
		page, err := u.Client.CoreV1().Pods(u.Namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing pods: %w", err)
		}
		for i := range page.Items {
			if u.index(&page.Items[i]) {
				// The gate is all that matters of it from here on.
				pods = append(pods, corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: page.Items[i].Namespace, Name: page.Items[i].Name, ResourceVersion: page.Items[i].ResourceVersion,
					},
					Spec: corev1.PodSpec{SchedulingGates: page.Items[i].Spec.SchedulingGates},
				})
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return pods, nil
		}
	}
}

func (u Ungate) index(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == u.Gate })
}

// free takes the gate off one pod, from fresh after each conflict. done is false
// when there was nothing to do any more.
func (u Ungate) free(ctx context.Context, pod *corev1.Pod) (done bool, err error) {
	if u.DryRun {
		return true, nil
	}
	for range ungateTries {
		patch := append([]rego.Operation{{Op: "replace", Path: "/metadata/resourceVersion", Value: pod.ResourceVersion}},
			rego.RemoveGate(pod.Spec.SchedulingGates, u.Gate)...)
		raw, err := json.Marshal(patch)
		if err != nil {
			return false, fmt.Errorf("encoding the patch: %w", err)
		}
		_, err = u.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, raw, metav1.PatchOptions{})
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsNotFound(err):
			return false, nil
		case !apierrors.IsConflict(err):
			return false, err
		}
		fresh, err := u.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil
		case err != nil:
			return false, err
		case !u.index(fresh):
			return false, nil
		}
		pod = fresh
	}
	return false, fmt.Errorf("it was changed by others %d times in between", ungateTries)
}
