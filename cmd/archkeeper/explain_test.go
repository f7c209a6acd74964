package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// explained is what a script reads of explain -o json.
type explained struct {
	Action        string          `json:"action"`
	Architectures []string        `json:"architectures"`
	Patch         json.RawMessage `json:"patch"`
	Reason        string          `json:"reason"`
	Message       string          `json:"message"`
	Images        []struct {
		Image         string   `json:"image"`
		Architectures []string `json:"architectures"`
		Error         *struct {
			Class string `json:"class"`
		} `json:"error"`
	} `json:"images"`
}

func TestExplain(t *testing.T) {
	registry := registrytest.New()
	t.Cleanup(registry.Close)
	registry.PutIndex("both", "v1", "linux/amd64", "linux/arm64")
	registry.PutImage("amd64", "v1", "linux/amd64")
	registry.PutImage("arm64", "v1", "linux/arm64")
	registry.PutIndex("windows", "v1", "linux/amd64", "linux/arm64", "windows(10.0.17763.1)/amd64")
	registry.Put("chart", "v1", registrytest.Image, registrytest.JSON(registrytest.Object{
		"schemaVersion": 2, "mediaType": registrytest.Image, "artifactType": "application/x",
		"config": registrytest.Descriptor(registrytest.Empty, registrytest.Digest([]byte("{}")), 2, ""),
		"layers": []any{},
	}))
	registry.PutBlob("chart", []byte("{}"))
	registry.Behave("", "/v2/busy/", registrytest.Status(429))

	const gate = "schedulingGates: [{name: archkeeper.io/architecture}]"
	old := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for name, tc := range map[string]struct {
		spec, metadata string
		config         string
		args           []string
		status         int
		action, reason string
		architectures  string
		terms          string
	}{
		"placed":                   {spec: "containers: [{name: a, image: R/both:v1}]", action: "place", reason: "Placed", architectures: "amd64 arm64", terms: "arch In amd64,arm64"},
		"placed from the gate":     {spec: "containers: [{name: a, image: R/both:v1}]\n" + gate, action: "place", reason: "Placed", architectures: "amd64 arm64", terms: "arch In amd64,arm64"},
		"windows":                  {spec: "containers: [{name: a, image: R/windows:v1}]", action: "place", reason: "Placed", architectures: "amd64 arm64", terms: "arch In amd64,arm64; os In linux | arch In amd64; os In windows"},
		"nodes of windows":         {spec: "containers: [{name: a, image: R/amd64:v1}]", args: []string{"--cluster-operating-systems", "linux,windows"}, action: "place", reason: "Placed", architectures: "amd64", terms: "arch In amd64; os In linux"},
		"no common architecture":   {spec: "containers: [{name: a, image: R/amd64:v1}]\ninitContainers: [{name: b, image: R/arm64:v1}]", status: 2, action: "place", reason: "NoCommonArchitecture", terms: "archkeeper.io/no-common-architecture Exists"},
		"contradiction":            {spec: "containers: [{name: a, image: R/amd64:v1}]\nnodeSelector: {kubernetes.io/arch: arm64}", status: 2, action: "ignore", reason: "ArchitectureContradiction"},
		"chosen":                   {spec: "containers: [{name: a, image: R/both:v1}]\nnodeSelector: {kubernetes.io/arch: arm64}", action: "ignore", reason: "UserArchitecture", architectures: "arm64"},
		"chosen, image unknown":    {spec: "containers: [{name: a, image: R/busy:v1}]\nnodeSelector: {kubernetes.io/arch: arm64}", action: "ignore", reason: "UserArchitecture", architectures: "arm64"},
		"rate-limited":             {spec: "containers: [{name: a, image: R/busy:v1}]", status: 3, action: "gate", reason: "ImagesUnknown"},
		"rate-limited, gated":      {spec: "containers: [{name: a, image: R/busy:v1}]\n" + gate, status: 3, action: "hold", reason: "ImagesUnknown"},
		"rate-limited, long gated": {spec: "containers: [{name: a, image: R/busy:v1}]\n" + gate, metadata: "creationTimestamp: " + old, status: 3, action: "release", reason: "DeadlineExceeded"},
		"rate-limited, fallback":   {spec: "containers: [{name: a, image: R/busy:v1}]\n" + gate, metadata: "creationTimestamp: " + old, config: "{fallbackArchitecture: arm64}", action: "place", reason: "FallbackArchitecture", architectures: "arm64", terms: "arch In arm64"},
		"not found":                {spec: "containers: [{name: a, image: R/nothing:v1}]", status: 3, action: "gate", reason: "ImagesUnknown"},
		"malformed":                {spec: "containers: [{name: a, image: 'R/both:v1 '}]", status: 3, action: "ignore", reason: "ImageUnusable"},
		"malformed, gated":         {spec: "containers: [{name: a, image: localhost/UPPER}]\n" + gate, status: 3, action: "release", reason: "ImageUnusable"},
		"an artifact to run":       {spec: "containers: [{name: a, image: R/chart:v1}]", status: 3, action: "ignore", reason: "ImageUnusable"},
		"an artifact to mount":     {spec: "containers: [{name: a, image: R/amd64:v1}]\nvolumes: [{name: v, image: {reference: R/chart:v1}}]", action: "place", reason: "Placed", architectures: "amd64", terms: "arch In amd64"},
		"a system namespace":       {spec: "containers: [{name: a, image: R/amd64:v1}]", metadata: "namespace: kube-system", action: "ignore", reason: "ExcludedNamespace"},
		"our namespace":            {spec: "containers: [{name: a, image: R/amd64:v1}]\n" + gate, metadata: "namespace: archkeeper-system", action: "release", reason: "ExcludedNamespace"},
		"observed":                 {spec: "containers: [{name: a, image: R/amd64:v1}]", config: "{mode: observe}", action: "place", reason: "Placed", architectures: "amd64", terms: "arch In amd64"},
		"everywhere":               {spec: "containers: [{name: a, image: R/both:v1}]", config: "{constrainAlways: false}", args: []string{"--cluster-architectures", "amd64,arm64"}, action: "place", reason: "RunsEverywhere", architectures: "amd64 arm64"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			pod := []byte(strings.ReplaceAll("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  "+strings.ReplaceAll(tc.spec, "\n", "\n  ")+"\n", "R/", registry.Host()+"/"))
			if tc.metadata != "" {
				pod = bytes.Replace(pod, []byte("{name: p}"), []byte("{name: p, "+tc.metadata+"}"), 1)
			}
			file := filepath.Join(dir, "pod.yaml")
			if err := os.WriteFile(file, pod, 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"archkeeper", "explain", "-f", file, "-o", "json", "--plain-http-host", registry.Host()}, tc.args...)
			if tc.config != "" {
				path := filepath.Join(dir, "config.yaml")
				document := "apiVersion: archkeeper.io/v1alpha1\nkind: Configuration\nplacement: " + tc.config
				if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config", path)
			}
			var out, errs bytes.Buffer
			if status := run(t.Context(), args, streams{in: strings.NewReader(""), out: &out, err: &errs}); status != tc.status {
				t.Errorf("exit status %d, want %d: %s", status, tc.status, errs.String())
			}
			var got explained
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%v in %s", err, out.String())
			}
			if got.Action != tc.action || got.Reason != tc.reason || strings.Join(got.Architectures, " ") != tc.architectures {
				t.Errorf("%s %s %v: %s", got.Action, got.Reason, got.Architectures, got.Message)
			}
			if got.Architectures == nil || !slices.Contains([]byte{'['}, got.Patch[0]) || got.Message == "" || len(got.Images) == 0 {
				t.Errorf("not the contract's shape: %s", out.String())
			}
			if terms := termsAfter(t, pod, got.Patch); terms != tc.terms {
				t.Errorf("terms %q, want %q", terms, tc.terms)
			}
		})
	}
}

// podAfter applies the patch.
func podAfter(t *testing.T, pod, patch []byte) corev1.Pod {
	t.Helper()
	raw, err := yaml.YAMLToJSON(pod)
	if err != nil {
		t.Fatal(err)
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = operations.Apply(raw); err != nil {
		t.Fatal(err)
	}
	var after corev1.Pod
	if err := json.Unmarshal(raw, &after); err != nil {
		t.Fatal(err)
	}
	return after
}

// termsAfter applies the patch and writes the required terms in short.
func termsAfter(t *testing.T, pod, patch []byte) string {
	t.Helper()
	affinity := podAfter(t, pod, patch).Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	var terms []string
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var words []string
		for _, e := range term.MatchExpressions {
			words = append(words, strings.TrimSpace(strings.TrimPrefix(e.Key, "kubernetes.io/")+" "+string(e.Operator)+" "+strings.Join(e.Values, ",")))
		}
		terms = append(terms, strings.Join(words, "; "))
	}
	return strings.Join(terms, " | ")
}

func TestExplainPins(t *testing.T) {
	registry := registrytest.New()
	t.Cleanup(registry.Close)
	digest := registry.PutIndex("both", "v1", "linux/amd64", "linux/arm64")
	ref := registry.Host() + "/both:v1"
	conf := filepath.Join(t.TempDir(), "registries.conf")
	tagMirror := fmt.Sprintf("[[registry]]\nlocation = %q\n[[registry.mirror]]\nlocation = %q\npull-from-mirror = \"tag-only\"\n", registry.Host()+"/both", registry.Host()+"/copy")
	if err := os.WriteFile(conf, []byte(tagMirror), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		image, config string
		args          []string
		want          string
	}{
		"a tag":                     {image: ref, config: "{pin: true}", want: ref + "@" + digest},
		"a tag, observed":           {image: ref, config: "{pin: true, mode: observe}", want: ref + "@" + digest},
		"not asked for":             {image: ref, config: "{}", want: ref},
		"a digest":                  {image: ref + "@" + digest, config: "{pin: true}", want: ref + "@" + digest},
		"a tag that mirrors answer": {image: ref, config: "{pin: true}", args: []string{"--registries-conf", conf}, want: ref},
	} {
		t.Run(name, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(config, []byte("apiVersion: archkeeper.io/v1alpha1\nkind: Configuration\nplacement: "+tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, gates := range []string{"", ", schedulingGates: [{name: archkeeper.io/architecture}]"} {
				pod := fmt.Sprintf("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: %q}], initContainers: [{name: b, image: %q}]%s}", tc.image, tc.image, gates)
				args := append([]string{"archkeeper", "explain", "-f", "-", "-o", "json", "--config", config, "--plain-http-host", registry.Host()}, tc.args...)
				var out, errs bytes.Buffer
				if status := run(t.Context(), args, streams{in: strings.NewReader(pod), out: &out, err: &errs}); status != statusSatisfied {
					t.Fatalf("exit status %d: %s", status, errs.String())
				}
				var got explained
				if err := json.Unmarshal(out.Bytes(), &got); err != nil {
					t.Fatal(err)
				}
				after := podAfter(t, []byte(pod), got.Patch)
				if image := after.Spec.Containers[0].Image; image != tc.want || after.Spec.InitContainers[0].Image != tc.want {
					t.Errorf("images %q and %q, want %q", image, after.Spec.InitContainers[0].Image, tc.want)
				}
			}
		})
	}
}

func TestExplainRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		args []string
		want string
	}{
		"a Deployment":              {in: "apiVersion: apps/v1\nkind: Deployment", args: []string{"-f", "-"}, want: `kind "Deployment"`},
		"a List":                    {in: "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod}]", args: []string{"-f", "-"}, want: `kind "List"`},
		"a Pod of another group":    {in: "apiVersion: x/v1\nkind: Pod", args: []string{"-f", "-"}, want: `apiVersion "x/v1"`},
		"two pods":                  {in: "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod", args: []string{"-f", "-"}, want: "several documents"},
		"nothing":                   {in: "# nothing\n", args: []string{"-f", "-"}, want: "empty"},
		"no containers":             {in: "apiVersion: v1\nkind: Pod\nspec: {containers: []}", args: []string{"-f", "-"}, want: "no containers"},
		"a container without image": {in: "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a}]}", args: []string{"-f", "-"}, want: `"a"`},
		"a pod of the wrong shape":  {in: "apiVersion: v1\nkind: Pod\nspec: {containers: 1}", args: []string{"-f", "-"}, want: "no Pod"},
		"broken YAML":               {in: "a: [", args: []string{"-f", "-"}, want: "standard input"},
		"a file that is not there":  {args: []string{"-f", "/nonexistent.yaml"}, want: "/nonexistent.yaml"},
		"neither pod nor file":      {want: "-f"},
		"both pod and file":         {args: []string{"p", "-f", "-"}, want: "-f"},
		"a format that is none":     {args: []string{"-f", "-", "-o", "xml"}, want: "xml"},
		"a config that is not there": {in: "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: x}]}",
			args: []string{"-f", "-", "--config", "/nonexistent.yaml"}, want: "/nonexistent.yaml"},
		"a pod without cluster": {args: []string{"p"}, want: "cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "")
			var out, errs bytes.Buffer
			status := run(t.Context(), append([]string{"archkeeper", "explain"}, tc.args...), streams{in: strings.NewReader(tc.in), out: &out, err: &errs})
			if status != statusFailed || out.Len() > 0 || !strings.Contains(errs.String(), tc.want) {
				t.Errorf("exit status %d, stdout %q, stderr %q", status, out.String(), errs.String())
			}
		})
	}
}

func TestExplainForPeople(t *testing.T) {
	registry := registrytest.New()
	t.Cleanup(registry.Close)
	registry.PutImage("amd64", "v1", "linux/amd64")
	pod := "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: '" + registry.Host() + "/amd64:v1'}]}"
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"archkeeper", "explain", "-f", "-", "--plain-http-host", registry.Host()},
		streams{in: strings.NewReader(pod), out: &out, err: &errs}); status != statusSatisfied {
		t.Errorf("exit status %d: %s", status, errs.String())
	}
	for _, want := range []string{"linux/amd64", "place (when the pod is created)", "Placed: runs on amd64", "/spec/affinity"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
