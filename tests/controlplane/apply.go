package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// fieldManager owns the fields that Apply sets.
const fieldManager = "controlplane"

// kindTimeout is how long Apply waits for a kind that the API server does not
// know yet: a CRD becomes known a moment after it was made, a constraint's a
// moment after its template.
const kindTimeout = 30 * time.Second

// Apply applies YAML or JSON, several documents and Lists included, on the
// server's side, in the order of the text. namespace is for namespaced objects
// that name none; "" means default. Custom resource definitions are waited
// for until they serve, kinds that are not known yet for half a minute.
func (c *Cluster) Apply(ctx context.Context, namespace, manifests string) error {
	objects, err := Decode(manifests)
	if err != nil {
		return err
	}
	return c.ApplyObjects(ctx, namespace, objects...)
}

// ApplyFiles is Apply for files; a folder stands for its .yaml, .yml and .json
// files, by name, without its sub-folders.
func (c *Cluster) ApplyFiles(ctx context.Context, namespace string, paths ...string) error {
	for _, path := range paths {
		objects, err := DecodeFile(path)
		if err != nil {
			return err
		}
		if err := c.ApplyObjects(ctx, namespace, objects...); err != nil {
			return fmt.Errorf("applying %s: %w", path, err)
		}
	}
	return nil
}

// ApplyObjects is Apply for decoded objects. Custom resource definitions that
// follow one another are waited for together.
func (c *Cluster) ApplyObjects(ctx context.Context, namespace string, objects ...*unstructured.Unstructured) error {
	var definitions []*unstructured.Unstructured
	for _, object := range objects {
		definition := object.GetKind() == "CustomResourceDefinition"
		if !definition {
			if err := c.waitServed(ctx, definitions); err != nil {
				return err
			}
			definitions = nil
		}
		if err := c.applyObject(ctx, namespace, object); err != nil {
			return err
		}
		if definition {
			definitions = append(definitions, object)
		}
	}
	return c.waitServed(ctx, definitions)
}

func (c *Cluster) applyObject(ctx context.Context, namespace string, object *unstructured.Unstructured) error {
	resource, err := c.resource(ctx, namespace, object)
	if err != nil {
		return err
	}
	content, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", describe(object), err)
	}
	force := true
	_, err = resource.Patch(ctx, object.GetName(), types.ApplyPatchType, content, metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil {
		return fmt.Errorf("applying %s: %w", describe(object), err)
	}
	return nil
}

// Create creates the objects with a plain POST, as "kubectl create" does, and
// returns them as the server stored them, those before an error included.
func (c *Cluster) Create(ctx context.Context, namespace, manifests string) ([]*unstructured.Unstructured, error) {
	objects, err := Decode(manifests)
	if err != nil {
		return nil, err
	}
	var created []*unstructured.Unstructured
	for _, object := range objects {
		resource, err := c.resource(ctx, namespace, object)
		if err != nil {
			return created, err
		}
		stored, err := resource.Create(ctx, object, metav1.CreateOptions{})
		if err != nil {
			return created, fmt.Errorf("creating %s: %w", describe(object), err)
		}
		created = append(created, stored)
	}
	return created, nil
}

// Delete deletes the objects that manifests name and waits until they are
// gone. Those that are not there are no error.
func (c *Cluster) Delete(ctx context.Context, namespace, manifests string) error {
	objects, err := Decode(manifests)
	if err != nil {
		return err
	}
	slices.Reverse(objects)
	for _, object := range objects {
		if err := c.deleteObject(ctx, namespace, object); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) deleteObject(ctx context.Context, namespace string, object *unstructured.Unstructured) error {
	resource, err := c.resource(ctx, namespace, object)
	if err != nil {
		return err
	}
	if err := resource.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting %s: %w", describe(object), err)
	}
	return WaitFor(ctx, describe(object)+" is gone", func(ctx context.Context) error {
		_, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.New("it is still there")
	})
}

// Get returns one object. kind is "Kind.version.group" or "Kind.version" for
// the core group, such as "Assign.v1.mutations.gatekeeper.sh".
func (c *Cluster) Get(ctx context.Context, kind, namespace, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	k, rest, _ := strings.Cut(kind, ".")
	version, group, _ := strings.Cut(rest, ".")
	object.SetKind(k)
	object.SetAPIVersion(strings.TrimPrefix(group+"/"+version, "/"))
	object.SetName(name)
	resource, err := c.resource(ctx, namespace, object)
	if err != nil {
		return nil, err
	}
	got, err := resource.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting %s: %w", describe(object), err)
	}
	return got, nil
}

// resource finds where objects of this kind live.
func (c *Cluster) resource(ctx context.Context, namespace string, object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gvk := object.GroupVersionKind()
	waiting, cancel := context.WithTimeout(ctx, kindTimeout)
	defer cancel()
	var mapping *meta.RESTMapping
	err := WaitFor(waiting, "the API server knows "+gvk.String(), func(context.Context) error {
		var err error
		mapping, err = c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			c.mapper.Reset()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("finding where %s belongs: %w", describe(object), err)
	}
	resource := c.Dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return resource, nil
	}
	if own := object.GetNamespace(); own != "" {
		namespace = own
	}
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return resource.Namespace(namespace), nil
}

func (c *Cluster) waitServed(ctx context.Context, definitions []*unstructured.Unstructured) error {
	for _, definition := range definitions {
		resource, err := c.resource(ctx, "", definition)
		if err != nil {
			return err
		}
		err = WaitFor(ctx, "CRD "+definition.GetName()+" is established", func(ctx context.Context) error {
			crd, err := resource.Get(ctx, definition.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			return HasCondition(crd, "Established", "True")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// HasCondition returns nil when status.conditions has the type with that
// status, and an error that says what it has instead.
func HasCondition(object *unstructured.Unstructured, kind, status string) error {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return fmt.Errorf("reading the conditions of %s: %w", describe(object), err)
	}
	for _, item := range conditions {
		condition, ok := item.(map[string]any)
		if !ok || condition["type"] != kind {
			continue
		}
		if condition["status"] == status {
			return nil
		}
		return fmt.Errorf("condition %s of %s is %v: %v", kind, describe(object), condition["status"], condition["message"])
	}
	return fmt.Errorf("%s has no condition %s", describe(object), kind)
}

// Decode reads YAML or JSON: several documents, Lists taken apart, empty
// documents left out.
func Decode(manifests string) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	var objects []*unstructured.Unstructured
	for n := 1; ; n++ {
		var content map[string]any
		err := reader.Decode(&content)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading document %d: %w", n, err)
		}
		if len(content) == 0 {
			continue
		}
		object := &unstructured.Unstructured{Object: content}
		if !object.IsList() {
			objects = append(objects, object)
			continue
		}
		err = object.EachListItem(func(item runtime.Object) error {
			one, ok := item.(*unstructured.Unstructured)
			if !ok {
				return fmt.Errorf("document %d has an item of type %T", n, item)
			}
			objects = append(objects, one)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading document %d: %w", n, err)
		}
	}
}

// DecodeFile is Decode for a file or, by name, the files of a folder.
func DecodeFile(path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		files = manifestsIn(path, entries)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		some, err := Decode(string(bytes.TrimSpace(content)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

func manifestsIn(dir string, entries []fs.DirEntry) []string {
	var files []string
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".yaml", ".yml", ".json":
			files = append(files, filepath.Join(dir, entry.Name()))
		}
	}
	return files
}

func describe(object *unstructured.Unstructured) string {
	name := object.GetName()
	if name == "" {
		name = object.GetGenerateName() + "*"
	}
	if ns := object.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return object.GetKind() + " " + name
}
