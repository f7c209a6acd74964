package certificates

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// File is what an installation says about its certificates: the part of Options
// that is no client. All names are of Secrets and ConfigMaps in the controllers'
// own namespace.
type File struct {
	Authority       string           `json:"authority,omitempty"`
	Follow          string           `json:"follow,omitempty"`
	Trust           string           `json:"trust,omitempty"`
	Leaves          []fileLeaf       `json:"leaves,omitempty"`
	Webhooks        []string         `json:"webhooks,omitempty"`
	AdmissionSecret string           `json:"admissionSecret,omitempty"`
	ClientAuthority fileAuthority    `json:"clientAuthority,omitzero"`
	Providers       []map[string]any `json:"providers,omitempty"`
	Lifetimes       fileLifetimes    `json:"lifetimes,omitzero"`
}

type fileLeaf struct {
	Name       string   `json:"name"`
	CommonName string   `json:"commonName,omitempty"`
	Hosts      []string `json:"hosts,omitempty"`
	Client     bool     `json:"client,omitempty"`
}

type fileAuthority struct {
	Webhook   string `json:"webhook"`
	ConfigMap string `json:"configMap"`
}

type fileLifetimes struct {
	Authority metav1.Duration `json:"authority,omitzero"`
	Leaf      metav1.Duration `json:"leaf,omitzero"`
	Overlap   metav1.Duration `json:"overlap,omitzero"`
}

// ParseFile reads a File, YAML. An unknown field is an error, and so is a file
// from which nothing could be kept.
func ParseFile(text []byte) (File, error) {
	var f File
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return File{}, fmt.Errorf("certificates: %w", err)
	}
	switch {
	case (f.Authority == "") == (f.Follow == ""):
		return File{}, errors.New("certificates: one of authority and follow is needed")
	case f.Authority != "" && f.Trust != "":
		return File{}, errors.New("certificates: trust belongs to follow: an authority of our own is in its Secret")
	case f.Authority == "" && len(f.Leaves) > 0:
		return File{}, errors.New("certificates: leaves need an authority")
	case (f.ClientAuthority.Webhook == "") != (f.ClientAuthority.ConfigMap == ""):
		return File{}, errors.New("certificates: clientAuthority needs both webhook and configMap")
	}
	for i, l := range f.Leaves {
		if l.Name == "" {
			return File{}, fmt.Errorf("certificates: leaves[%d].name is missing", i)
		}
	}
	for i, p := range f.Providers {
		if name, _, _ := unstructured.NestedString(p, "metadata", "name"); name == "" || p["kind"] != "Provider" {
			return File{}, fmt.Errorf("certificates: providers[%d] is no Provider with a name", i)
		}
	}
	life := f.Lifetimes.lifetimes().withDefaults()
	for name, d := range map[string]time.Duration{"authority": life.Authority, "leaf": life.Leaf, "overlap": life.Overlap} {
		if d <= 0 {
			return File{}, fmt.Errorf("certificates: lifetimes.%s is not positive", name)
		}
	}
	// The next authority is published when a third of the active one's life is
	// left, and must take over while the active one is valid.
	if life.Overlap > life.Authority/4 {
		return File{}, fmt.Errorf("certificates: lifetimes.overlap %s is more than a quarter of lifetimes.authority %s", life.Overlap, life.Authority)
	}
	return f, nil
}

// Options gives what the file says; the rest is for the caller to fill in.
func (f File) Options() Options {
	o := Options{
		Authority: f.Authority, Follow: f.Follow, Trust: f.Trust, Webhooks: f.Webhooks, AdmissionSecret: f.AdmissionSecret,
		ClientAuthority: ClientAuthority(f.ClientAuthority), Lifetimes: f.Lifetimes.lifetimes(),
	}
	for _, l := range f.Leaves {
		o.Leaves = append(o.Leaves, Request(l))
	}
	for _, p := range f.Providers {
		o.Providers = append(o.Providers, unstructured.Unstructured{Object: whole(p)})
	}
	return o
}

func (l fileLifetimes) lifetimes() Lifetimes {
	return Lifetimes{Authority: l.Authority.Duration, Leaf: l.Leaf.Duration, Overlap: l.Overlap.Duration}
}

// whole gives a map with the number types that unstructured objects have: YAML
// reads every number as a float64.
func whole(m map[string]any) map[string]any {
	out := maps.Clone(m)
	for k, v := range out {
		out[k] = wholeValue(v)
	}
	return out
}

func wholeValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return whole(v)
	case []any:
		list := slices.Clone(v)
		for i := range list {
			list[i] = wholeValue(list[i])
		}
		return list
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}
