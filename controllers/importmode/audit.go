package importmode

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/archkeeper/archkeeper/provider"
)

// Inventory is what an audit looks at: plain lists of objects, from a cluster
// or from files. Objects of other kinds are passed over.
type Inventory struct {
	ImageStreams []unstructured.Unstructured // image.openshift.io/v1
	Images       []unstructured.Unstructured // image.openshift.io/v1, for the size of what exists
	Nodes        []unstructured.Unstructured
	Pods         []unstructured.Unstructured
	ImageConfig  *unstructured.Unstructured // config.openshift.io/v1 Image "cluster"
	Version      *unstructured.Unstructured // config.openshift.io/v1 ClusterVersion "version"
}

// Sort takes an object into its list; false when an audit has no use for it.
func (v *Inventory) Sort(o unstructured.Unstructured) bool {
	group, _, _ := strings.Cut(o.GetAPIVersion(), "/")
	switch kind := o.GetKind(); {
	case group == "image.openshift.io" && kind == "ImageStream":
		v.ImageStreams = append(v.ImageStreams, o)
	case group == "image.openshift.io" && kind == "Image":
		v.Images = append(v.Images, o)
	case group == configGroup().Group && kind == "Image" && o.GetName() == imageName:
		v.ImageConfig = &o
	case group == configGroup().Group && kind == "ClusterVersion" && o.GetName() == versionName:
		v.Version = &o
	case o.GetAPIVersion() == "v1" && kind == "Node":
		v.Nodes = append(v.Nodes, o)
	case o.GetAPIVersion() == "v1" && kind == "Pod":
		v.Pods = append(v.Pods, o)
	default:
		return false
	}
	return true
}

// Findings of an audit.
const (
	FindingTagMode       = "TagDoesNotFollow"    // a tag has a mode of its own, other than the cluster's
	FindingSinglePayload = "SingleArchPayload"   // nodes of several architectures, payload of one
	FindingHeldBack      = "PodsHeldBack"        // pods use a Legacy tag whose source runs on more
	FindingUnknown       = "SourceNotDetermined" // a registry gave no answer
)

// Finding is one thing that an administrator may want to change.
type Finding struct {
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Message string `json:"message"`
	// Pods are namespace/name, sorted; only for FindingHeldBack.
	Pods []string `json:"pods,omitempty"`
	// Class is the error class of FindingUnknown.
	Class provider.Class `json:"class,omitempty"`
}

// Estimate is what a switch of all Legacy tags to PreserveOriginal would add.
type Estimate struct {
	// Tags are those whose source is a manifest list.
	Tags int `json:"tags"`
	// Images are Image objects: one for each platform and one for the list
	// itself, less the one that a Legacy import has already made.
	Images int `json:"images"`
	// Bytes in etcd: Images times the mean size of the cluster's Image objects,
	// or times 8 KiB when there are none to measure.
	Bytes int64 `json:"bytes"`
	// Undetermined are tags whose source could not be inspected.
	Undetermined int `json:"undetermined"`
}

// AuditReport is the outcome of an audit. Findings are sorted by kind and object.
type AuditReport struct {
	ClusterMode       Mode      `json:"clusterMode"`
	NodeArchitectures []string  `json:"nodeArchitectures"`
	Findings          []Finding `json:"findings"`
	Estimate          Estimate  `json:"estimate"`
}

// ExitStatus is 2 with findings, 3 when only undetermined ones remain, else 0.
func (r AuditReport) ExitStatus() int {
	status := 0
	for _, f := range r.Findings {
		if f.Kind != FindingUnknown {
			return 2
		}
		status = 3
	}
	return status
}

// imageObjectBytes stands in for the size of an Image object when there is
// none to measure.
const imageObjectBytes = 8 << 10

// tag is one tag of an image stream.
type tag struct {
	stream, name string // "namespace/stream", tag
	source       string // the reference it is imported from; empty when it is none
	mode         Mode
	manager      string   // who set the mode
	images       []string // references under which pods use it
}

func (t tag) String() string { return "imagestreamtag " + t.stream + ":" + t.name }

// Audit compares the image streams with the cluster's import mode, nodes and
// pods. It reads the sources through the inspector, in one batch, and changes
// nothing.
func Audit(ctx context.Context, v Inventory, inspector provider.Inspector) AuditReport {
	r := AuditReport{ClusterMode: effectiveMode(v), NodeArchitectures: nodeArchitectures(v.Nodes), Findings: []Finding{}}
	if rel := release(v.Version); rel != nil && rel.Image != "" && rel.Architecture == "" && rel.Latest == "Completed" && len(r.NodeArchitectures) > 1 {
		r.Findings = append(r.Findings, Finding{Kind: FindingSinglePayload, Object: "clusterversion version",
			Message: fmt.Sprintf("nodes are %s, but the payload has one architecture: move to the multi payload (oc adm upgrade --to-multi-arch)", strings.Join(r.NodeArchitectures, ", "))})
	}

	var tags []tag
	for i := range v.ImageStreams {
		tags = append(tags, tagsOf(&v.ImageStreams[i])...)
	}
	var queries []provider.Query
	for _, t := range tags {
		if t.mode != r.ClusterMode && t.mode != Unset {
			r.Findings = append(r.Findings, Finding{Kind: FindingTagMode, Object: t.String(), Message: t.why(r.ClusterMode)})
		}
		if t.effective(r.ClusterMode) == Legacy && t.source != "" {
			queries = append(queries, provider.Query{Image: t.source})
		}
	}
	answers := map[string]provider.Answer{}
	for _, a := range inspector.Inspect(ctx, unique(queries)) {
		answers[a.Image] = a
	}
	perImage, users := meanSize(v.Images), podsByImage(v.Pods)
	for _, t := range tags {
		if t.effective(r.ClusterMode) != Legacy || t.source == "" {
			continue
		}
		a := answers[t.source]
		if a.Err != nil {
			r.Estimate.Undetermined++
			r.Findings = append(r.Findings, Finding{Kind: FindingUnknown, Object: t.String(), Class: a.Err.Class, Message: fmt.Sprintf("source %s: %v", t.source, a.Err)})
			continue
		}
		if a.Kind != provider.KindIndex {
			continue
		}
		r.Estimate.Tags++
		r.Estimate.Images += len(a.Platforms)
		r.Estimate.Bytes += int64(len(a.Platforms)) * perImage
		if f, held := heldBack(t, a, users, r.NodeArchitectures); held {
			r.Findings = append(r.Findings, f)
		}
	}
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Object, b.Object)
	})
	return r
}

// effective is the mode by which a tag is imported.
func (t tag) effective(cluster Mode) Mode {
	if t.mode != Unset {
		return t.mode
	}
	return cluster
}

func (t tag) why(cluster Mode) string {
	who := "set on the tag itself"
	if t.manager != "" {
		who = fmt.Sprintf("set on the tag by field manager %q", t.manager)
	}
	return fmt.Sprintf("importPolicy.importMode is %s, %s; the cluster's is %s, which applies to new tags alone", t.mode, who, cluster)
}

// heldBack finds pods that use a Legacy tag although its source runs on
// further architectures that the cluster has.
func heldBack(t tag, a provider.Answer, pods map[string][]string, nodes []string) (Finding, bool) {
	var usable []string
	for _, arch := range a.Architectures {
		if slices.Contains(nodes, arch) {
			usable = append(usable, arch)
		}
	}
	if len(usable) < 2 {
		return Finding{}, false
	}
	var users []string
	for _, image := range t.images {
		users = append(users, pods[image]...)
	}
	if len(users) == 0 {
		return Finding{}, false
	}
	slices.Sort(users)
	users = slices.Compact(users)
	return Finding{Kind: FindingHeldBack, Object: t.String(), Pods: users,
		Message: fmt.Sprintf("%d pods use one architecture of %s, which runs on %s of this cluster's nodes", len(users), t.source, strings.Join(usable, ", "))}, true
}

// podsByImage gives the pods, as namespace/name, that use an image as it is
// written.
func podsByImage(pods []unstructured.Unstructured) map[string][]string {
	users := map[string][]string{}
	for i := range pods {
		spec, _ := pods[i].Object["spec"].(map[string]any)
		for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
			containers, _ := spec[list].([]any)
			for _, c := range containers {
				fields, _ := c.(map[string]any)
				if image, _ := fields["image"].(string); image != "" {
					users[image] = append(users[image], pods[i].GetNamespace()+"/"+pods[i].GetName())
				}
			}
		}
	}
	return users
}

// tagsOf reads the tags of an image stream.
func tagsOf(o *unstructured.Unstructured) []tag {
	var stream struct {
		Spec struct {
			Tags []struct {
				Name string `json:"name"`
				From *struct {
					Kind string `json:"kind"`
					Name string `json:"name"`
				} `json:"from"`
				Reference    bool `json:"reference"`
				ImportPolicy struct {
					ImportMode Mode `json:"importMode"`
				} `json:"importPolicy"`
			} `json:"tags"`
		} `json:"spec"`
		Status struct {
			Repository string `json:"dockerImageRepository"`
			Tags       []struct {
				Tag   string `json:"tag"`
				Items []struct {
					Reference string `json:"dockerImageReference"`
					Image     string `json:"image"`
				} `json:"items"`
			} `json:"tags"`
		} `json:"status"`
	}
	raw, err := o.MarshalJSON()
	if err != nil || json.Unmarshal(raw, &stream) != nil {
		return nil
	}
	used := map[string][]string{}
	for _, t := range stream.Status.Tags {
		if repo := stream.Status.Repository; repo != "" {
			used[t.Tag] = append(used[t.Tag], repo+":"+t.Tag)
		}
		if len(t.Items) > 0 {
			used[t.Tag] = append(used[t.Tag], t.Items[0].Reference)
			if repo := stream.Status.Repository; repo != "" {
				used[t.Tag] = append(used[t.Tag], repo+"@"+t.Items[0].Image)
			}
		}
	}
	tags := make([]tag, 0, len(stream.Spec.Tags))
	for _, s := range stream.Spec.Tags {
		t := tag{stream: o.GetNamespace() + "/" + o.GetName(), name: s.Name, mode: s.ImportPolicy.ImportMode, images: used[s.Name], manager: managerOf(o, s.Name)}
		if s.From != nil && s.From.Kind == "DockerImage" && !s.Reference {
			t.source = s.From.Name
		}
		tags = append(tags, t)
	}
	return tags
}

// managerOf names the field manager that set a tag's import mode.
func managerOf(o *unstructured.Unstructured, name string) string {
	key := fmt.Sprintf(`k:{"name":%q}`, name)
	for _, entry := range o.GetManagedFields() {
		if entry.FieldsV1 == nil {
			continue
		}
		var f struct {
			Spec struct {
				Tags map[string]struct {
					Policy map[string]json.RawMessage `json:"f:importPolicy"`
				} `json:"f:tags"`
			} `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &f) != nil {
			continue
		}
		if _, ok := f.Spec.Tags[key].Policy["f:importMode"]; ok {
			return entry.Manager
		}
	}
	return ""
}

// effectiveMode is the mode that new tags get: what the status says, or else
// what would be decided.
func effectiveMode(v Inventory) Mode {
	if m := mode(v.ImageConfig, "status"); m != Unset {
		return m
	}
	d := Decide(Facts{Spec: mode(v.ImageConfig, "spec"), Release: release(v.Version), WhenMissing: Legacy})
	if d.Want == Unset {
		return Legacy
	}
	return d.Want
}

func nodeArchitectures(nodes []unstructured.Unstructured) []string {
	archs := []string{}
	for i := range nodes {
		if arch := nodes[i].GetLabels()["kubernetes.io/arch"]; arch != "" {
			archs = append(archs, arch)
		}
	}
	slices.Sort(archs)
	return slices.Compact(archs)
}

func meanSize(images []unstructured.Unstructured) int64 {
	var total, n int64
	for i := range images {
		if raw, err := images[i].MarshalJSON(); err == nil {
			total += int64(len(raw))
			n++
		}
	}
	if n == 0 {
		return imageObjectBytes
	}
	return total / n
}

// unique keeps the first query of each image.
func unique(queries []provider.Query) []provider.Query {
	seen := map[string]bool{}
	out := make([]provider.Query, 0, len(queries))
	for _, q := range queries {
		if !seen[q.Image] {
			seen[q.Image] = true
			out = append(out, q)
		}
	}
	return out
}
