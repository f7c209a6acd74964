// Package workloads finds the images in Kubernetes manifests: in Pods, in every
// kind that holds a pod template, in Lists of them. It is pure: bytes in, uses
// of images out.
package workloads

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/archkeeper/archkeeper/provider"
)

// Workload names the object that uses an image.
type Workload struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String gives Kind/namespace/name or Kind/name.
func (w Workload) String() string {
	parts := []string{w.Kind}
	if w.Namespace != "" {
		parts = append(parts, w.Namespace)
	}
	return strings.Join(append(parts, w.Name), "/")
}

// Use is one use of an image.
type Use struct {
	// Image as it is written; empty when a container names none.
	Image    string
	Workload Workload
	// Volume is true for an image that is mounted and not run.
	Volume bool
}

// maxDepth bounds Lists within Lists.
const maxDepth = 8

// podSpecs are the places where a pod's spec stands: in a Pod, a PodTemplate,
// everything with a pod template (Deployment, Job, and custom kinds of that
// shape, such as Argo Rollout or Knative Service), a CronJob.
func podSpecs() [][]string {
	return [][]string{
		{"spec"},
		{"template", "spec"},
		{"spec", "template", "spec"},
		{"spec", "jobTemplate", "spec", "template", "spec"},
	}
}

// Extract gives the uses of images in a file of YAML (one document or several)
// or JSON (one value or several), in the order of the file: first init
// containers, then containers, ephemeral containers and image volumes. Objects
// that hold no pod are passed over. Errors name the file and, where the text
// cannot be read, the line.
func Extract(file string, data []byte) ([]Use, error) {
	documents, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var uses []Use
	for _, document := range documents {
		found, err := FromObject(document.value)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", file, document.line, err)
		}
		uses = append(uses, found...)
	}
	return uses, nil
}

// FromObject gives the uses of images in one object, as JSON decodes it.
func FromObject(object any) ([]Use, error) { return fromObject(object, 0) }

func fromObject(object any, depth int) ([]Use, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("lists are nested deeper than %d", maxDepth)
	}
	fields, ok := object.(map[string]any)
	if !ok {
		return nil, nil
	}
	kind, _ := fields["kind"].(string)
	if kind == "" {
		return nil, nil // values of a chart, a kustomization of old, an empty document
	}
	if items, isList := fields["items"].([]any); isList && strings.HasSuffix(kind, "List") {
		var uses []Use
		for _, item := range items {
			// In a typed list (PodList) the items need not repeat their kind.
			if inner, ok := item.(map[string]any); ok && inner["kind"] == nil && kind != "List" {
				named := map[string]any{"kind": strings.TrimSuffix(kind, "List")}
				for key, value := range inner {
					named[key] = value
				}
				item = named
			}
			found, err := fromObject(item, depth+1)
			if err != nil {
				return nil, err
			}
			uses = append(uses, found...)
		}
		return uses, nil
	}
	workload := Workload{Kind: kind}
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		workload.Namespace, _ = metadata["namespace"].(string)
		workload.Name, _ = metadata["name"].(string)
		if generated, _ := metadata["generateName"].(string); workload.Name == "" && generated != "" {
			workload.Name = generated + "*"
		}
	}
	for _, path := range podSpecs() {
		spec := at(fields, path)
		if spec == nil || spec["containers"] == nil {
			continue
		}
		uses, err := fromPodSpec(spec, workload)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", provider.Printable(workload.String()), err)
		}
		return uses, nil
	}
	return nil, nil
}

func at(object map[string]any, path []string) map[string]any {
	for _, key := range path {
		object, _ = object[key].(map[string]any)
	}
	return object
}

func fromPodSpec(spec map[string]any, workload Workload) ([]Use, error) {
	var uses []Use
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		containers, err := objects(spec, list)
		if err != nil {
			return nil, err
		}
		for i, container := range containers {
			image, ok := container["image"].(string)
			if !ok && container["image"] != nil {
				return nil, fmt.Errorf("%s[%d].image is no string", list, i)
			}
			uses = append(uses, Use{Image: image, Workload: workload})
		}
	}
	volumes, err := objects(spec, "volumes")
	if err != nil {
		return nil, err
	}
	for i, volume := range volumes {
		source, ok := volume["image"].(map[string]any)
		if !ok {
			continue
		}
		reference, ok := source["reference"].(string)
		if !ok && source["reference"] != nil {
			return nil, fmt.Errorf("volumes[%d].image.reference is no string", i)
		}
		if reference != "" { // it may be left to whoever manages the object
			uses = append(uses, Use{Image: reference, Workload: workload, Volume: true})
		}
	}
	return uses, nil
}

func objects(spec map[string]any, field string) ([]map[string]any, error) {
	if spec[field] == nil {
		return nil, nil
	}
	list, ok := spec[field].([]any)
	if !ok {
		return nil, fmt.Errorf("%s is no list", field)
	}
	result := make([]map[string]any, 0, len(list))
	for i, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s[%d] is no object", field, i)
		}
		result = append(result, object)
	}
	return result, nil
}

type document struct {
	line  int // of its beginning, from 1
	value any
}

func decode(data []byte) ([]document, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		documents, err := decodeJSON(data)
		if err == nil {
			return documents, nil
		}
		// YAML in flow style begins like JSON, and a stream of YAML may begin
		// with a document of JSON. Of what neither can read, the fault is that of
		// the reader that came further.
		documents, yamlErr := decodeYAML(data)
		if yamlErr == nil {
			return documents, nil
		}
		if lineOf(yamlErr) > lineOf(err) {
			return nil, yamlErr
		}
		return nil, err
	}
	return decodeYAML(data)
}

// fault is what is wrong with a text, and on which line, from 1.
type fault struct {
	line    int
	message string
}

func (f fault) Error() string { return fmt.Sprintf("line %d: %s", f.line, f.message) }

func lineOf(err error) int {
	var at fault
	errors.As(err, &at)
	return at.line
}

func decodeJSON(data []byte) ([]document, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var documents []document
	for {
		start := decoder.InputOffset()
		var value any
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			offset := decoder.InputOffset()
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				offset = syntax.Offset
			} else if errors.Is(err, io.ErrUnexpectedEOF) {
				offset = int64(len(data))
			}
			return nil, fault{lineAt(data, offset), provider.Printable(err.Error())}
		}
		for start < int64(len(data)) && strings.IndexByte(" \t\r\n", data[start]) >= 0 {
			start++
		}
		documents = append(documents, document{line: lineAt(data, start), value: value})
	}
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(offset, int64(len(data)))], []byte("\n"))
}

// Image is one image and everything that uses it.
type Image struct {
	Image string
	// Workloads that use it, sorted, without duplicates.
	Workloads []Workload
	// VolumeOnly is true when nothing runs it: it is mounted alone.
	VolumeOnly bool
}

// Named gives the images of a list, each as often as it is named, with no
// workload that uses it.
func Named(names []string) []Image {
	images := make([]Image, len(names))
	for i, name := range names {
		images[i].Image = name
	}
	return images
}

// ByImage gathers uses by image, in the order in which the images first come.
func ByImage(uses []Use) []Image {
	var images []Image
	place := map[string]int{}
	for _, use := range uses {
		i, there := place[use.Image]
		if !there {
			i = len(images)
			place[use.Image] = i
			images = append(images, Image{Image: use.Image, VolumeOnly: true})
		}
		images[i].Workloads = append(images[i].Workloads, use.Workload)
		images[i].VolumeOnly = images[i].VolumeOnly && use.Volume
	}
	for i := range images {
		slices.SortFunc(images[i].Workloads, compare)
		images[i].Workloads = slices.Compact(images[i].Workloads)
	}
	return images
}

func compare(a, b Workload) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}
