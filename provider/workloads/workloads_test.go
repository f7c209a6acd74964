package workloads_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider/workloads"
)

// uses writes uses as image@workload, with a star for volumes.
func uses(list []workloads.Use) []string {
	var texts []string
	for _, use := range list {
		text := use.Image + "@" + use.Workload.String()
		if use.Volume {
			text += "*"
		}
		texts = append(texts, text)
	}
	return texts
}

func TestExtract(t *testing.T) {
	const podSpec = `containers: [{name: c, image: i}]`
	for sentence, row := range map[string]struct {
		text string
		want []string
	}{
		"a pod, every kind of container and volume": {`
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: ns}
spec:
  volumes:
  - name: v
    image: {reference: vol, pullPolicy: IfNotPresent}
  - name: w
    emptyDir: {}
  containers:
  - image: main
  - image: side
  initContainers:
  - image: init
  ephemeralContainers:
  - image: debug
`, []string{"init@Pod/ns/p", "main@Pod/ns/p", "side@Pod/ns/p", "debug@Pod/ns/p", "vol@Pod/ns/p*"}},
		"a Deployment":                       {"kind: Deployment\nmetadata: {name: d}\nspec: {template: {spec: {" + podSpec + "}}}", []string{"i@Deployment/d"}},
		"a StatefulSet":                      {"kind: StatefulSet\nmetadata: {name: d}\nspec: {template: {spec: {" + podSpec + "}}}", []string{"i@StatefulSet/d"}},
		"a Job with a generated name":        {"kind: Job\nmetadata: {generateName: j-}\nspec: {template: {spec: {" + podSpec + "}}}", []string{"i@Job/j-*"}},
		"a CronJob":                          {"kind: CronJob\nmetadata: {name: d}\nspec: {jobTemplate: {spec: {template: {spec: {" + podSpec + "}}}}}", []string{"i@CronJob/d"}},
		"a PodTemplate":                      {"kind: PodTemplate\nmetadata: {name: d}\ntemplate: {spec: {" + podSpec + "}}", []string{"i@PodTemplate/d"}},
		"a custom kind of that shape":        {"kind: Rollout\nmetadata: {name: d}\nspec: {template: {spec: {" + podSpec + "}}}", []string{"i@Rollout/d"}},
		"a List in a List":                   {`{"kind":"List","items":[{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"image":"i"}]}}]}]}`, []string{"i@Pod/p"}},
		"a PodList whose items have no kind": {`{"kind":"PodList","items":[{"metadata":{"name":"p"},"spec":{"containers":[{"image":"i"}]}}]}`, []string{"i@Pod/p"}},
		"several documents":                  {"---\nkind: Pod\nspec: {" + podSpec + "}\n---\n# nothing\n---\nkind: Pod\nmetadata: {name: b}\nspec: {" + podSpec + "}\n...\n", []string{"i@Pod/", "i@Pod/b"}},
		"several JSON values":                {`{"kind":"Pod","spec":{"containers":[{"image":"a"}]}} {"kind":"Pod","spec":{"containers":[{"image":"b"}]}}`, []string{"a@Pod/", "b@Pod/"}},
		"JSON with tabs":                     {"{\n\t\"kind\": \"Pod\",\n\t\"spec\": {\"containers\": [{\"image\": \"a\"}]}\n}", []string{"a@Pod/"}},
		"YAML in flow style":                 {`{kind: Pod, spec: {containers: [{image: a}]}}`, []string{"a@Pod/"}},
		"a byte order mark":                  {"\ufeffkind: Pod\nspec: {" + podSpec + "}", []string{"i@Pod/"}},
		"anchors":                            {"kind: Pod\nspec:\n  containers:\n  - &c {image: a}\n  - *c", []string{"a@Pod/", "a@Pod/"}},
		"merged keys":                        {"base: &b {image: a}\nkind: Pod\nspec: {containers: [{<<: *b}, {<<: [*b, {image: z}]}, {<<: *b, image: c}]}", []string{"a@Pod/", "a@Pod/", "c@Pod/"}},
		"an image with white space is kept":  {"kind: Pod\nspec: {containers: [{image: ' a '}]}", []string{" a @Pod/"}},
		"a container without an image":       {"kind: Pod\nspec: {containers: [{name: c}]}", []string{"@Pod/"}},
		"null lists":                         {"kind: Pod\nspec: {containers: [{image: a}], initContainers: null, volumes: null}", []string{"a@Pod/"}},
		"kinds that hold no pod":             {"kind: Service\nspec: {ports: []}\n---\nkind: ConfigMap\ndata: {image: x}\n---\nkind: CustomResourceDefinition\nspec: {versions: []}", nil},
		"values of a chart":                  {"image: {repository: x}\ncontainers: [{image: a}]", nil},
		"scalars":                            {"hello", nil},
		"nothing":                            {"", nil},
		"white space":                        {" \n", nil},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, err := workloads.Extract("f.yaml", []byte(row.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, uses(got)); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func TestExtractRefuses(t *testing.T) {
	for sentence, row := range map[string]struct{ text, says string }{
		"broken YAML, by file and line":          {"kind: Pod\nspec:\n  containers: [\n", "f.yaml: line"},
		"broken YAML in the second document":     {"kind: Pod\n---\na: b\nc: d\n  e: f\n", "f.yaml: line 5"},
		"a template that is not rendered":        {"kind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n", "f.yaml: line 3"},
		"a tab":                                  {"kind: Pod\nspec:\n\tcontainers: []\n", "f.yaml: line 3"},
		"a key twice":                            {"kind: Pod\nspec: {}\nspec: {}\n", "f.yaml: line 3"},
		"broken JSON":                            {"{\"kind\":\n\"Pod\",\n\"spec\": ]}", "f.yaml: line 3"},
		"JSON that ends early":                   {"{\"kind\":\n\"Pod\"", "f.yaml: line 2"},
		"a list that is not closed":              {"kind: Pod\nspec:\n  containers:\n  - name: [a\n    image: x\n", "f.yaml: line 4"},
		"a list that is not closed, at the end":  {"a: [b,\n  c]\nd: [e]\nf: [", "f.yaml: line 4"},
		"a field that is out of line":            {"kind: Pod\nmetadata:\n  labels: {a: b,\n    c: d}\n  name: p\n namespace: n\nspec: {}\n", "f.yaml: line 6"},
		"a text that is not closed":              {"kind: Pod\na: \"b\nc: d\n", "f.yaml: line 2"},
		"an unknown alias":                       {"kind: Pod\n---\na: b\nc: *d\ne: f\n", "f.yaml: line 4"},
		"YAML that breaks behind JSON":           {"{\"kind\":\"Pod\"}\n---\nkind: Pod\nspec:\n  a: b\n c: d\n", "f.yaml: line 6"},
		"JSON that breaks behind JSON":           {"{\"kind\":\"Pod\"}\n{\"kind\":\n]}", "f.yaml: line 3"},
		"JSON that breaks behind a separator":    {"{\"kind\":\"Pod\"}\n---\n{\"kind\":\n\"Pod\"}\n---\n]", "f.yaml: line 6"},
		"a key twice in YAML behind JSON":        {"{\"kind\":\"Pod\"}\n---\nkind: Pod\nkind: Pod\n", "f.yaml: line 4"},
		"containers that are no list":            {"\n\nkind: Pod\nmetadata: {name: p}\nspec: {containers: 5}", "f.yaml: line 3: Pod/p: containers is no list"},
		"a container that is no object":          {"kind: Pod\nspec: {containers: [5]}", "containers[0] is no object"},
		"an image that is no string":             {"kind: Pod\nspec: {containers: [{image: a}, {image: 1.5}]}", "containers[1].image is no string"},
		"a volume's reference that is no string": {"kind: Pod\nspec: {containers: [], volumes: [{image: {reference: [x]}}]}", "volumes[0].image.reference is no string"},
		"an object of the second document":       {"kind: Pod\n---\nkind: Pod\nspec: {containers: 5}", "f.yaml: line 3"},
		"an anchor that contains itself":         {"kind: &a {b: *a}", "line 1"},
		"a bomb of aliases":                      {bomb(), "through its aliases"},
		"lists nested without end":               {strings.Repeat(`{"kind":"List","items":[`, 20) + strings.Repeat(`]}`, 20), "nested deeper"},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, err := workloads.Extract("f.yaml", []byte(row.text))
			if err == nil || !strings.Contains(err.Error(), row.says) || got != nil {
				t.Errorf("got %v, %v; want an error with %q", got, err, row.says)
			}
		})
	}
}

func bomb() string {
	var text strings.Builder
	text.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := range 9 {
		name := string(rune('0' + i))
		next := string(rune('1' + i))
		text.WriteString("a" + next + ": &a" + next + " [" + strings.TrimSuffix(strings.Repeat("*a"+name+",", 10), ",") + "]\n")
	}
	return text.String()
}

// TestLargeMappings: a ConfigMap may have very many keys.
func TestLargeMappings(t *testing.T) {
	var text strings.Builder
	text.WriteString("kind: ConfigMap\ndata:\n")
	for i := range 50_000 {
		fmt.Fprintf(&text, "  key-%d: x\n", i)
	}
	allocated := testing.AllocsPerRun(1, func() {
		if _, err := workloads.Extract("f", []byte(text.String())); err != nil {
			t.Error(err)
		}
	})
	if allocated > 2_000_000 {
		t.Errorf("%.0f allocations", allocated)
	}
}

func TestByImage(t *testing.T) {
	pod := func(namespace, name string) workloads.Workload {
		return workloads.Workload{Kind: "Pod", Namespace: namespace, Name: name}
	}
	got := workloads.ByImage([]workloads.Use{
		{Image: "b", Workload: pod("z", "p")}, {Image: "a", Workload: pod("n", "p"), Volume: true},
		{Image: "b", Workload: pod("a", "q")}, {Image: "b", Workload: pod("z", "p"), Volume: true},
	})
	want := []workloads.Image{
		{Image: "b", Workloads: []workloads.Workload{pod("a", "q"), pod("z", "p")}},
		{Image: "a", Workloads: []workloads.Workload{pod("n", "p")}, VolumeOnly: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add("kind: Pod\nspec:\n  containers:\n  - &c {image: a}\n  - *c")
	f.Add(`{"kind":"List","items":[{"kind":"Pod","spec":{"containers":[{"image":"i"}]}}]}`)
	f.Add("---\n{{")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := workloads.Extract("f", []byte(text))
		if err != nil && (got != nil || !strings.HasPrefix(err.Error(), "f: line ")) {
			t.Fatalf("%q: %v, %v", text, got, err)
		}
	})
}
