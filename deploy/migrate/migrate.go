// Package migrate turns the configuration of the multiarch-tuning-operator into
// ours: ClusterPodPlacementConfig into a Configuration, each PodPlacementConfig
// into a Gatekeeper mutation for its namespace. It is pure.
package migrate

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/internal/document"
)

// group of the operator's kinds, of which v1alpha1 and v1beta1 exist.
const group = "multiarch.openshift.io/"

// Result of a migration.
type Result struct {
	// Configuration is ours; nil without a ClusterPodPlacementConfig.
	Configuration *config.Configuration
	// Mutations are Gatekeeper Assign objects, in the order of their names,
	// which is the order in which Gatekeeper applies them.
	Mutations []map[string]any
	// Lost says what has no counterpart, one line each, naming the object and
	// the field.
	Lost []string
}

// source is as much of the operator's objects as means something here.
type source struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
	Spec       struct {
		NamespaceSelector    *metav1.LabelSelector `json:"namespaceSelector"`
		LabelSelector        *metav1.LabelSelector `json:"labelSelector"`
		Priority             uint8                 `json:"priority"`
		FallbackArchitecture string                `json:"fallbackArchitecture"`
		LogVerbosity         string                `json:"logVerbosity"`
		Plugins              struct {
			NodeAffinityScoring *struct {
				Enabled   bool `json:"enabled"`
				Platforms []struct {
					Architecture string `json:"architecture"`
					Weight       int32  `json:"weight"`
				} `json:"platforms"`
			} `json:"nodeAffinityScoring"`
			ExecFormatErrorMonitor *struct {
				Enabled bool `json:"enabled"`
			} `json:"execFormatErrorMonitor"`
		} `json:"plugins"`
	} `json:"spec"`
	Items []runtime.RawExtension `json:"items"`
}

func (s source) String() string {
	if s.Metadata.Namespace != "" {
		return s.Kind + "/" + s.Metadata.Namespace + "/" + s.Metadata.Name
	}
	return s.Kind + "/" + s.Metadata.Name
}

// Add takes the objects of a YAML or JSON text, Lists included. Other kinds are
// passed over. Two ClusterPodPlacementConfigs are an error, since the operator
// allows one. An error names the file and the line.
func (r *Result) Add(name string, data []byte) error {
	documents, err := document.All(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, d := range documents {
		if err := r.add(d.JSON, 0); err != nil {
			return fmt.Errorf("%s, line %d: %w", name, d.Line, err)
		}
	}
	return nil
}

// maxDepth of Lists in Lists.
const maxDepth = 8

func (r *Result) add(data []byte, depth int) error {
	var s source
	if err := yaml.Unmarshal(data, &s); err != nil {
		return err
	}
	if strings.HasSuffix(s.Kind, "List") && depth < maxDepth {
		for _, item := range s.Items {
			if err := r.add(item.Raw, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if !strings.HasPrefix(s.APIVersion, group) {
		return nil
	}
	switch s.Kind {
	case "ClusterPodPlacementConfig":
		return r.addCluster(s)
	case "PodPlacementConfig":
		r.addNamespaced(s)
	}
	return nil
}

func (r *Result) lose(s source, field, format string, args ...any) {
	r.Lost = append(r.Lost, s.String()+" "+field+": "+fmt.Sprintf(format, args...))
}

func (r *Result) addCluster(s source) error {
	if r.Configuration != nil {
		return fmt.Errorf("%s is the second ClusterPodPlacementConfig", s)
	}
	c := config.Default()
	c.Placement.Mode = config.ModeObserve // while the operator still acts
	if s.Spec.NamespaceSelector != nil {
		c.Placement.NamespaceSelector = *s.Spec.NamespaceSelector
	}
	c.Placement.FallbackArchitecture = s.Spec.FallbackArchitecture
	c.Placement.Preferred = []config.Preference{}
	if scoring := s.Spec.Plugins.NodeAffinityScoring; scoring != nil && scoring.Enabled {
		for _, p := range scoring.Platforms {
			c.Placement.Preferred = append(c.Placement.Preferred, config.Preference{Architecture: p.Architecture, Weight: p.Weight})
		}
	}
	if v := s.Spec.LogVerbosity; v != "" && v != "Normal" {
		r.lose(s, "spec.logVerbosity", "%s: the level is set while running, on the probe port (docs/provider.md)", v)
	}
	if m := s.Spec.Plugins.ExecFormatErrorMonitor; m != nil && m.Enabled {
		r.lose(s, "spec.plugins.execFormatErrorMonitor", "there is no counterpart: watch pods that fail with \"exec format error\" by your own means")
	}
	r.Configuration = &c
	return nil
}

// addNamespaced makes the mutation that prefers architectures for the pods that
// the labelSelector chooses. Of several for one pod the operator takes the
// highest priority; Gatekeeper applies mutations by name and ours leave a pod
// alone that has preferences, so the highest priority has the first name.
func (r *Result) addNamespaced(s source) {
	scoring := s.Spec.Plugins.NodeAffinityScoring
	if scoring == nil || !scoring.Enabled || len(scoring.Platforms) == 0 {
		r.lose(s, "spec.plugins", "nothing is enabled: the object has no effect and is left out")
		return
	}
	var preferred []any
	for _, p := range scoring.Platforms {
		preferred = append(preferred, map[string]any{
			"weight": p.Weight,
			"preference": map[string]any{"matchExpressions": []any{map[string]any{
				"key": "kubernetes.io/arch", "operator": "In", "values": []any{p.Architecture},
			}}},
		})
	}
	const location = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
	match := map[string]any{
		"source": "Original", "scope": "Namespaced", "namespaces": []any{s.Metadata.Namespace},
		"kinds": []any{map[string]any{"apiGroups": []any{""}, "kinds": []any{"Pod"}}},
	}
	if s.Spec.LabelSelector != nil {
		match["labelSelector"] = s.Spec.LabelSelector
	}
	r.Mutations = append(r.Mutations, map[string]any{
		"apiVersion": "mutations.gatekeeper.sh/v1", "kind": "Assign",
		"metadata": map[string]any{"name": fmt.Sprintf("archkeeper-prefer-%03d-%s-%s", 255-int(s.Spec.Priority), s.Metadata.Namespace, s.Metadata.Name)},
		"spec": map[string]any{
			"applyTo":  []any{map[string]any{"groups": []any{""}, "kinds": []any{"Pod"}, "versions": []any{"v1"}, "operations": []any{"CREATE"}}},
			"match":    match,
			"location": location,
			"parameters": map[string]any{
				"pathTests": []any{map[string]any{"subPath": location, "condition": "MustNotExist"}},
				"assign":    map[string]any{"value": preferred},
			},
		},
	})
}

// YAML writes the result as documents, the Configuration first. It is empty
// when there is nothing to write.
func (r *Result) YAML() ([]byte, error) {
	var docs []any
	if r.Configuration != nil {
		docs = append(docs, r.Configuration)
	}
	mutations := slices.Clone(r.Mutations)
	slices.SortFunc(mutations, func(a, b map[string]any) int { return strings.Compare(nameOf(a), nameOf(b)) })
	for _, m := range mutations {
		docs = append(docs, m)
	}
	var out bytes.Buffer
	for i, d := range docs {
		text, err := yaml.Marshal(d)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

func nameOf(o map[string]any) string {
	metadata, _ := o["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}
