package importmode

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/archkeeper/archkeeper/internal/document"
)

// pageSize is how many objects one list request asks for.
const pageSize = 500

// audited are the resources of an Inventory.
func audited() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Group: "image.openshift.io", Version: "v1", Resource: "imagestreams"},
		{Group: "image.openshift.io", Version: "v1", Resource: "images"},
		imagesResource(),
		versionsResource(),
		{Version: "v1", Resource: "nodes"},
		{Version: "v1", Resource: "pods"},
	}
}

// FromCluster lists what an audit needs, page by page. A resource that the
// cluster does not serve has no objects; any other failure is an error that
// names the resource.
func FromCluster(ctx context.Context, client dynamic.Interface) (Inventory, error) {
	var v Inventory
	for _, r := range audited() {
		options := metav1.ListOptions{Limit: pageSize}
		for {
			list, err := client.Resource(r).List(ctx, options)
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
				break
			}
			if err != nil {
				return Inventory{}, fmt.Errorf("list %s: %w", r.GroupResource(), err)
			}
			for _, o := range list.Items {
				v.Sort(o)
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				break
			}
		}
	}
	return v, nil
}

// Read takes the objects of a YAML or JSON text, several documents and Lists
// included. Objects that an audit has no use for are passed over. An error names
// the file and the line.
func (v *Inventory) Read(name string, data []byte) error {
	documents, err := document.All(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, d := range documents {
		if err := v.take(d.JSON); err != nil {
			return fmt.Errorf("%s, line %d: %w", name, d.Line, err)
		}
	}
	return nil
}

func (v *Inventory) take(raw []byte) error {
	var o unstructured.Unstructured
	if err := json.Unmarshal(raw, &o.Object); err != nil {
		return err
	}
	if !o.IsList() {
		v.Sort(o)
		return nil
	}
	list, err := o.ToList()
	if err != nil {
		return err
	}
	for _, item := range list.Items {
		v.Sort(item)
	}
	return nil
}
