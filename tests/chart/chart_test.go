// Package chart lints and renders the Helm chart with Helm itself, over every
// file of values in its folder ci, and compares what it renders with the
// program that it starts.
package chart

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	root      = "../.."
	chartDir  = root + "/deploy/charts/archkeeper"
	release   = "archkeeper"
	namespace = "archkeeper-system"
)

// combination is one file of values.
type combination struct {
	name   string
	values map[string]any
}

func combinations(t *testing.T) []combination {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*-values.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("files of values: %v, %v", files, err)
	}
	var all []combination
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]any{}
		if err := yaml.UnmarshalStrict(text, &values); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, combination{strings.TrimSuffix(filepath.Base(file), "-values.yaml"), values})
	}
	return all
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// renderFiles gives what each template makes, by its path.
func renderFiles(t *testing.T, releaseName, ns string, values map[string]any) (map[string]string, error) {
	t.Helper()
	c := load(t)
	all, err := chartutil.ToRenderValues(c, values, common.ReleaseOptions{Name: releaseName, Namespace: ns, Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

type object = map[string]any

// render gives the objects, those of hooks included.
func render(t *testing.T, values map[string]any) []object {
	t.Helper()
	files, err := renderFiles(t, release, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	var objects []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, document := range regexp.MustCompile(`(?m)^---\s*$`).Split(files[name], -1) {
			var o object
			if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, document)
			}
			if len(o) > 0 {
				objects = append(objects, o)
			}
		}
	}
	return objects
}

func at(o any, path ...string) any {
	for _, key := range path {
		m, ok := o.(object)
		if !ok {
			return nil
		}
		o = m[key]
	}
	return o
}

func list(o any, path ...string) []any {
	l, _ := at(o, path...).([]any)
	return l
}

func text(o any, path ...string) string {
	s, _ := at(o, path...).(string)
	return s
}

func TestLintFindsNothing(t *testing.T) {
	for _, c := range combinations(t) {
		t.Run(c.name, func(t *testing.T) {
			for _, m := range lint.RunAll(chartDir, c.values, namespace).Messages {
				if m.Severity > support.InfoSev {
					t.Errorf("%s: %v", m.Path, m.Err)
				}
			}
		})
	}
}

func TestTwoRendersAreEqual(t *testing.T) {
	for _, c := range combinations(t) {
		t.Run(c.name, func(t *testing.T) {
			first, err := renderFiles(t, release, namespace, c.values)
			if err != nil {
				t.Fatal(err)
			}
			second, err := renderFiles(t, release, namespace, c.values)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(first, second) {
				t.Error("two renders differ")
			}
		})
	}
}

// A release with a name of 53 characters and dots, which is all that Helm
// allows, in a namespace of 63.
func TestOddNamesMakeValidNames(t *testing.T) {
	odd, ns := "9.a-release.with-dots."+strings.Repeat("x", 31), strings.Repeat("n", 63)
	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	for _, c := range combinations(t) {
		t.Run(c.name, func(t *testing.T) {
			files, err := renderFiles(t, odd, ns, c.values)
			if err != nil {
				t.Fatal(err)
			}
			for name, content := range files {
				for _, document := range regexp.MustCompile(`(?m)^---\s*$`).Split(content, -1) {
					var o object
					if !strings.HasSuffix(name, ".yaml") || yaml.Unmarshal([]byte(document), &o) != nil || len(o) == 0 {
						continue
					}
					kind, called := text(o, "kind"), text(o, "metadata", "name")
					if kind == "MutatingWebhookConfiguration" || kind == "ConstraintTemplate" {
						continue // their names have dots, or are not made from the release's
					}
					if !label.MatchString(called) {
						t.Errorf("%s %q (%d characters)", kind, called, len(called))
					}
				}
			}
		})
	}
}

func TestNothingIsLookedUpInTheCluster(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chartDir, "templates", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, function := range []string{"lookup", "randAlpha", "genCA", "genSignedCert", "now"} {
			if regexp.MustCompile(`\{\{[^}]*\b` + function + `\b`).Match(content) {
				t.Errorf("%s calls %s: what it renders would not be the same twice", file, function)
			}
		}
	}
}

func TestAValueThatDoesNotExistIsRefused(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"a misspelt value":       {"provider": object{"replicaz": 3}},
		"a value of no list":     {"tls": object{"mode": "magic"}},
		"a gate nobody frees":    {"policies": object{"schedulingGate": true}, "controllers": object{"placement": object{"enabled": false}}},
		"a template of nobody's": {"policies": object{"templates": []any{"nonsense"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := renderFiles(t, release, namespace, values); err == nil {
				t.Error("it was rendered")
			}
		})
	}
}

// pods gives each pod template with the name of its object.
func pods(objects []object) map[string]object {
	found := map[string]object{}
	for _, o := range objects {
		if spec, ok := at(o, "spec", "template", "spec").(object); ok {
			found[text(o, "kind")+" "+text(o, "metadata", "name")] = spec
		}
	}
	return found
}

func containers(pod object) []object {
	var all []object
	for _, key := range []string{"initContainers", "containers"} {
		for _, c := range list(pod, key) {
			all = append(all, c.(object))
		}
	}
	return all
}

func args(container object) []string {
	var all []string
	for _, a := range list(container, "args") {
		all = append(all, fmt.Sprint(a))
	}
	return all
}

// binary builds the program once a run.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archkeeper")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/archkeeper")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the program: %v\n%s", err, out)
	}
	return path
}

// Every flag that the chart renders is one of the command, and its value has
// the flag's type: the program parses the whole command line before it looks at
// --help.
func TestTheProgramTakesEveryRenderedArgument(t *testing.T) {
	program := binary(t)
	run := func(arguments ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), program, append(arguments, "--help")...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("provider", "--no-such-flag=1"); err == nil || !strings.Contains(out, "no-such-flag") {
		t.Fatalf("an unknown flag was taken (%v): this test would see nothing", err)
	}
	if _, err := run("provider", "--deadline=soon"); err == nil {
		t.Fatal("a value of the wrong type was taken: this test would see nothing")
	}
	seen := map[string]bool{}
	for _, c := range combinations(t) {
		for where, pod := range pods(render(t, c.values)) {
			for _, container := range containers(pod) {
				line := args(container)
				if len(line) == 0 || len(list(container, "command")) > 0 {
					t.Errorf("%s, %s: no arguments, or a command of its own", c.name, where)
					continue
				}
				seen[line[0]] = true
				if out, err := run(line...); err != nil {
					t.Errorf("%s, %s: %v\n%s", c.name, where, err, out)
				}
			}
		}
	}
	for _, command := range []string{"provider", "controllers", "all-in-one", "node-agent", "ungate"} {
		if !seen[command] {
			t.Errorf("no combination of values starts %q", command)
		}
	}
}

// Every file that an argument names lies in something mounted, every mount has
// its volume, and every volume is mounted.
func TestEveryNamedFileIsMounted(t *testing.T) {
	for _, c := range combinations(t) {
		objects := render(t, c.values)
		made := map[string]bool{}
		for _, o := range objects {
			made[text(o, "kind")+"/"+text(o, "metadata", "name")] = true
		}
		for where, pod := range pods(objects) {
			volumes := map[string]bool{}
			for _, v := range list(pod, "volumes") {
				volumes[text(v, "name")] = false
			}
			for _, container := range containers(pod) {
				var mounts []string
				for _, m := range list(container, "volumeMounts") {
					name := text(m, "name")
					if _, ok := volumes[name]; !ok {
						t.Errorf("%s, %s: mount %q has no volume", c.name, where, name)
					}
					volumes[name] = true
					mounts = append(mounts, text(m, "mountPath"))
				}
				for _, a := range args(container) {
					_, value, _ := strings.Cut(a, "=")
					if !strings.HasPrefix(value, "/") {
						continue
					}
					if !slices.ContainsFunc(mounts, func(m string) bool {
						return value == m || strings.HasPrefix(value, m+"/") || strings.HasPrefix(m, value+"/")
					}) {
						t.Errorf("%s, %s: %s lies in no mount of %v", c.name, where, a, mounts)
					}
				}
			}
			for name, mounted := range volumes {
				if !mounted {
					t.Errorf("%s, %s: volume %q is not mounted", c.name, where, name)
				}
			}
		}
	}
}

// Secrets may be read by the provider and, in our own namespace and by name, by
// the controllers; nobody else, and nobody everywhere unless asked.
func TestSecretsAreReadByTheProviderAlone(t *testing.T) {
	for _, c := range combinations(t) {
		cluster := text(c.values, "registries", "secretAccess") == "cluster"
		for _, o := range render(t, c.values) {
			kind, name := text(o, "kind"), text(o, "metadata", "name")
			if kind != "ClusterRole" && kind != "Role" {
				continue
			}
			for _, rule := range list(o, "rules") {
				var resources, verbs []string
				for _, r := range list(rule, "resources") {
					resources = append(resources, fmt.Sprint(r))
				}
				for _, v := range list(rule, "verbs") {
					verbs = append(verbs, fmt.Sprint(v))
				}
				if slices.Contains(resources, "*") || slices.Contains(verbs, "*") {
					t.Errorf("%s: %s %s has a rule for everything", c.name, kind, name)
				}
				reads := slices.Contains(verbs, "get") || slices.Contains(verbs, "list") || slices.Contains(verbs, "watch")
				if !slices.Contains(resources, "secrets") || !reads {
					continue
				}
				switch {
				case kind == "ClusterRole" && !(cluster && name == "archkeeper-provider"):
					t.Errorf("%s: ClusterRole %s reads secrets everywhere", c.name, name)
				case kind == "Role" && strings.HasSuffix(name, "-controllers") && len(list(rule, "resourceNames")) == 0:
					t.Errorf("%s: Role %s reads every secret of our namespace", c.name, name)
				}
			}
		}
	}
}

// Pods of ours carry the label by which they are never gated, and the hook's too.
func TestOurOwnPodsAreNeverGated(t *testing.T) {
	for _, c := range combinations(t) {
		for _, o := range render(t, c.values) {
			labels, ok := at(o, "spec", "template", "metadata", "labels").(object)
			if ok && labels["archkeeper.io/placement"] != "disabled" {
				t.Errorf("%s: %s %s", c.name, text(o, "kind"), text(o, "metadata", "name"))
			}
			if text(o, "kind") == "MutatingWebhookConfiguration" {
				if rendered, _ := yaml.Marshal(o); !bytes.Contains(rendered, []byte(namespace)) || !bytes.Contains(rendered, []byte("gatekeeper-system")) {
					t.Errorf("%s: the webhook's selector excludes neither us nor Gatekeeper", c.name)
				}
			}
		}
	}
}
