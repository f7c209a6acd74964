package importmode

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
)

// push makes a multi-architecture image at repo and gives its registry's host.
func push(t *testing.T, repo string, archs ...string) string {
	t.Helper()
	server := httptest.NewServer(ggcr.New())
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	index := v1.ImageIndex(empty.Index)
	for _, arch := range archs {
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: arch})
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	ref, err := name.ParseReference(host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	return host
}

func inventory(t *testing.T, text string) Inventory {
	t.Helper()
	var v Inventory
	for _, doc := range strings.Split(text, "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatal(err)
		}
		if !v.Sort(o) {
			t.Fatalf("an audit has no use for %s", o.GetKind())
		}
	}
	return v
}

func TestReadNamesTheLineOfTheFile(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"broken YAML in the second document": {"kind: Node\n---\nkind: Pod\nspec: [\n", "f.yaml: yaml: line 4: "},
		"a list whose items are none":        {"kind: Node\n---\n\napiVersion: v1\nkind: List\nitems: [5]\n", "f.yaml, line 4: "},
	} {
		t.Run(name, func(t *testing.T) {
			var v Inventory
			if err := v.Read("f.yaml", []byte(tc.text)); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%v, want %s...", err, tc.want)
			}
		})
	}
}

func TestReadTakesListsAndStreams(t *testing.T) {
	var v Inventory
	text := `{"apiVersion": "v1", "kind": "Node"}{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "v1", "kind": "PodList", "items": []}]}`
	if err := v.Read("-", []byte(text)); err != nil {
		t.Fatal(err)
	}
	if len(v.Nodes) != 1 || len(v.Pods) != 1 {
		t.Errorf("%d nodes, %d pods, want 1 of each", len(v.Nodes), len(v.Pods))
	}
}

func TestAudit(t *testing.T) {
	host := push(t, "team/app:v1", "amd64", "arm64", "s390x")
	inspector, err := registry.New(registry.Options{Reach: mustReach(t, host)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(inspector.Close)
	v := inventory(t, strings.ReplaceAll(`apiVersion: v1
kind: Node
metadata: {name: a, labels: {kubernetes.io/arch: amd64}}
---
apiVersion: v1
kind: Node
metadata: {name: b, labels: {kubernetes.io/arch: arm64}}
---
apiVersion: config.openshift.io/v1
kind: Image
metadata: {name: cluster}
status: {imageStreamImportMode: PreserveOriginal}
---
apiVersion: config.openshift.io/v1
kind: ClusterVersion
metadata: {name: version}
status:
  desired: {image: payload}
  history: [{state: Completed}]
---
apiVersion: image.openshift.io/v1
kind: ImageStream
metadata:
  namespace: shop
  name: app
  managedFields:
  - manager: argocd
    fieldsV1: {"f:spec": {"f:tags": {"k:{\"name\":\"legacy\"}": {"f:importPolicy": {"f:importMode": {}}}}}}
spec:
  tags:
  - {name: legacy, from: {kind: DockerImage, name: "HOST/team/app:v1"}, importPolicy: {importMode: Legacy}}
  - {name: follows, from: {kind: DockerImage, name: "HOST/team/app:v1"}, importPolicy: {importMode: PreserveOriginal}}
  - {name: gone, from: {kind: DockerImage, name: "HOST/team/gone:v1"}, importPolicy: {importMode: Legacy}}
status:
  dockerImageRepository: internal:5000/shop/app
  tags:
  - {tag: legacy, items: [{dockerImageReference: "HOST/team/app@sha256:1", image: "sha256:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web}
spec: {containers: [{name: web, image: "internal:5000/shop/app:legacy"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: other}
spec: {containers: [{name: other, image: elsewhere}]}
`, "HOST", host))

	r := Audit(t.Context(), v, inspector)
	got := map[string]Finding{}
	for _, f := range r.Findings {
		got[f.Kind+" "+f.Object] = f
	}
	if len(got) != 5 {
		t.Errorf("%d findings, want 5: %+v", len(got), r.Findings)
	}
	if f := got["TagDoesNotFollow imagestreamtag shop/app:legacy"]; !strings.Contains(f.Message, `field manager "argocd"`) {
		t.Errorf("who set the mode is not named: %q", f.Message)
	}
	if f := got["PodsHeldBack imagestreamtag shop/app:legacy"]; len(f.Pods) != 1 || f.Pods[0] != "shop/web" || !strings.Contains(f.Message, "amd64, arm64") {
		t.Errorf("held back: %+v", f)
	}
	if _, ok := got["SingleArchPayload clusterversion version"]; !ok {
		t.Error("nodes of two architectures under a payload of one were not found")
	}
	if f := got["SourceNotDetermined imagestreamtag shop/app:gone"]; f.Class != "not-found" {
		t.Errorf("a source that is gone: %+v", f)
	}
	if want := (Estimate{Tags: 1, Images: 3, Bytes: 3 * imageObjectBytes, Undetermined: 1}); r.Estimate != want {
		t.Errorf("estimate %+v, want %+v", r.Estimate, want)
	}
	if r.ExitStatus() != 2 {
		t.Errorf("exit status %d, want 2", r.ExitStatus())
	}
}

// answers gives every query the same index.
type answers struct{}

func (answers) Inspect(_ context.Context, queries []provider.Query) []provider.Answer {
	out := make([]provider.Answer, len(queries))
	for i, q := range queries {
		out[i] = provider.Answer{Image: q.Image, Kind: provider.KindIndex, Platforms: []string{"linux/amd64", "linux/arm64"}, Architectures: []string{"amd64", "arm64"}}
	}
	return out
}

func TestPodsHeldBackInEveryListOfContainers(t *testing.T) {
	v := inventory(t, `apiVersion: v1
kind: Node
metadata: {name: a, labels: {kubernetes.io/arch: amd64}}
---
apiVersion: v1
kind: Node
metadata: {name: b, labels: {kubernetes.io/arch: arm64}}
---
apiVersion: image.openshift.io/v1
kind: ImageStream
metadata: {namespace: shop, name: app}
spec: {tags: [{name: v1, from: {kind: DockerImage, name: x.io/app}, importPolicy: {importMode: Legacy}}]}
status: {dockerImageRepository: internal/shop/app, tags: [{tag: v1, items: [{dockerImageReference: "x.io/app@sha256:1", image: "sha256:1"}]}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: by-tag}
spec: {containers: [{image: "internal/shop/app:v1"}, {image: "internal/shop/app@sha256:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: at-first}
spec: {containers: [{image: other}], initContainers: [{image: "x.io/app@sha256:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: to-debug}
spec: {containers: [{image: other}], ephemeralContainers: [{image: "internal/shop/app:v1"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: other}
spec: {containers: [{image: other}]}
`)
	for _, f := range Audit(t.Context(), v, answers{}).Findings {
		if f.Kind == FindingHeldBack {
			if got, want := strings.Join(f.Pods, " "), "shop/at-first shop/by-tag shop/to-debug"; got != want {
				t.Errorf("held back: %s, want %s", got, want)
			}
			return
		}
	}
	t.Error("nothing is held back")
}

// BenchmarkAudit is a large cluster: its time must grow with tags plus pods, not
// with their product.
//
//	go test -run '^$' -bench Audit ./controllers/importmode
func BenchmarkAudit(b *testing.B) {
	const tags, pods = 1000, 5000
	v := Inventory{ImageStreams: make([]unstructured.Unstructured, 0, tags), Pods: make([]unstructured.Unstructured, 0, pods)}
	for _, arch := range []string{"amd64", "arm64"} {
		v.Sort(unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"labels": map[string]any{"kubernetes.io/arch": arch}}}})
	}
	for i := range tags {
		name := fmt.Sprint("app", i)
		v.Sort(unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "image.openshift.io/v1", "kind": "ImageStream", "metadata": map[string]any{"namespace": "shop", "name": name},
			"spec":   map[string]any{"tags": []any{map[string]any{"name": "v1", "from": map[string]any{"kind": "DockerImage", "name": "x.io/" + name}}}},
			"status": map[string]any{"dockerImageRepository": "internal/" + name, "tags": []any{map[string]any{"tag": "v1"}}},
		}})
	}
	for i := range pods {
		v.Sort(unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "shop", "name": fmt.Sprint("pod", i)},
			"spec": map[string]any{"containers": []any{map[string]any{"image": fmt.Sprintf("internal/app%d:v1", i%tags)}}},
		}})
	}
	for b.Loop() {
		if got := len(Audit(b.Context(), v, answers{}).Findings); got != tags {
			b.Fatalf("%d findings, want %d", got, tags)
		}
	}
}

func mustReach(t *testing.T, plain string) *reach.Reach {
	t.Helper()
	r, err := reach.New(reach.Config{PlainHTTPHosts: []string{plain}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
