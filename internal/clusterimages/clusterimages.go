// Package clusterimages finds the images that a cluster uses, and by what.
package clusterimages

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/archkeeper/archkeeper/provider/workloads"
)

// pageSize is how many objects one request asks for.
const pageSize = 500

// source is a kind whose objects hold pods.
type source struct {
	kind     string
	resource schema.GroupVersionResource
}

// sources are the kinds that are listed, pods first: those must be readable,
// the others add what does not run at the moment.
func sources() []source {
	apps := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}
	}
	batch := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: resource}
	}
	return []source{
		{"Pod", schema.GroupVersionResource{Version: "v1", Resource: "pods"}},
		{"ReplicaSet", apps("replicasets")}, {"Deployment", apps("deployments")},
		{"StatefulSet", apps("statefulsets")}, {"DaemonSet", apps("daemonsets")},
		{"Job", batch("jobs")}, {"CronJob", batch("cronjobs")},
		{"ReplicationController", schema.GroupVersionResource{Version: "v1", Resource: "replicationcontrollers"}},
	}
}

// List gives the uses of images in a namespace, or in all of them when it is
// empty. A use is attributed to the outermost controller that owns it: the
// Deployment rather than the Pod. Revisions of the past, ReplicaSets scaled to
// nothing that have an owner, are left out.
//
// The second result names the kinds that may not be listed, one text each.
func List(ctx context.Context, client dynamic.Interface, namespace string) ([]workloads.Use, []string, error) {
	var objects []unstructured.Unstructured
	var missing []string
	for _, from := range sources() {
		found, err := list(ctx, client, from, namespace)
		switch {
		case err == nil:
			objects = append(objects, found...)
		case from.kind != "Pod" && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
			missing = append(missing, fmt.Sprintf("%s is left out: %v", from.kind, err))
		default:
			return nil, nil, fmt.Errorf("list %s: %w", from.resource.Resource, err)
		}
	}
	owners := ownersOf(objects)
	var uses []workloads.Use
	for _, object := range objects {
		if past(object) {
			continue
		}
		found, err := workloads.FromObject(object.Object)
		if err != nil {
			return nil, nil, err
		}
		top := owners.top(object)
		for _, use := range found {
			use.Workload = top
			uses = append(uses, use)
		}
	}
	return uses, missing, nil
}

func list(ctx context.Context, client dynamic.Interface, from source, namespace string) ([]unstructured.Unstructured, error) {
	var objects []unstructured.Unstructured
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := client.Resource(from.resource).Namespace(namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, object := range page.Items {
			object.SetKind(from.kind) // items of a list need not say it
			objects = append(objects, object)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return objects, nil
		}
	}
}

// past tells whether an object is a revision that a controller has replaced.
func past(object unstructured.Unstructured) bool {
	if object.GetKind() != "ReplicaSet" || metav1.GetControllerOf(&object) == nil {
		return false
	}
	replicas, found, err := unstructured.NestedInt64(object.Object, "spec", "replicas")
	return err == nil && found && replicas == 0
}

// owners finds objects by UID.
type owners map[types.UID]unstructured.Unstructured

func ownersOf(objects []unstructured.Unstructured) owners {
	byUID := owners{}
	for _, object := range objects {
		if uid := object.GetUID(); uid != "" {
			byUID[uid] = object
		}
	}
	return byUID
}

// maxOwners bounds a chain of owners, which may be a circle.
const maxOwners = 8

// top gives the outermost controller of an object. One that was not listed is
// named as the reference names it. A node, which owns its static pods, is no
// workload.
func (o owners) top(object unstructured.Unstructured) workloads.Workload {
	workload := workloads.Workload{Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName()}
	for range maxOwners {
		owner := metav1.GetControllerOf(&object)
		if owner == nil || owner.Kind == "Node" {
			break
		}
		workload.Kind, workload.Name = owner.Kind, owner.Name
		next, listed := o[owner.UID]
		if !listed {
			break
		}
		object = next
	}
	return workload
}
