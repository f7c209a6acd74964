package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/tests/registrytest"
)

func TestMirrorsAudit(t *testing.T) {
	source, mirror := registrytest.New(), registrytest.New()
	defer source.Close()
	defer mirror.Close()
	source.PutImage("app", "v1", "linux/amd64")
	mirror.PutImage("m/app", "v1", "linux/arm64")
	objects := "apiVersion: config.openshift.io/v1\nkind: ImageTagMirrorSet\nmetadata: {name: t}\nspec: {imageTagMirrors: [{source: \"" + source.Host() + "\", mirrors: [\"" + mirror.Host() + "/m\"]}]}\n---\n" +
		"apiVersion: config.openshift.io/v1\nkind: Image\nmetadata: {name: cluster}\nspec: {registrySources: {insecureRegistries: [\"" + source.Host() + "\", \"" + mirror.Host() + "\"]}}\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: \"" + source.Host() + "/app:v1\"}]}\n"
	stdout, stderr, status := command(t, objects, "mirrors", "audit", "-f", "-", "-o", "json")
	if status != 2 || stderr != "" {
		t.Fatalf("status %d, stderr %s", status, stderr)
	}
	var findings []struct{ Image, Status, Mirror string }
	if err := json.Unmarshal([]byte(stdout), &findings); err != nil {
		t.Fatal(err)
	}
	if len(findings) != 1 || findings[0].Status != "stale" || findings[0].Image != source.Host()+"/app:v1" || findings[0].Mirror != mirror.Host()+"/m/app" {
		t.Errorf("%s", stdout)
	}
	if _, stderr, status := command(t, "kind: Pod\napiVersion: v1\n", "mirrors", "audit", "-f", "-"); status != 1 || !strings.Contains(stderr, "no mirrors") {
		t.Errorf("status %d, stderr %s", status, stderr)
	}
}

func TestMirrorsRenderSaysWhenThereIsNothingToPrint(t *testing.T) {
	for output, want := range map[string]string{"policy.json": "no policy.json", "containerd": ""} {
		stdout, stderr, status := command(t, mirrorObjects, "mirrors", "render", "-f", "-", "-o", output)
		if status != 0 || (stdout == "") != (want != "") || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, stdout %q, stderr %q", output, status, stdout, stderr)
		}
	}
}

// command runs one command line in this process.
func command(t *testing.T, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, err bytes.Buffer
	status = run(t.Context(), append([]string{"archkeeper"}, args...), streams{in: strings.NewReader(stdin), out: &out, err: &err})
	return out.String(), err.String(), status
}

const mirrorObjects = `
apiVersion: config.openshift.io/v1
kind: ImageDigestMirrorSet
metadata: {name: one}
spec:
  imageDigestMirrors:
  - source: quay.io/org
    mirrors: [m.io/org]
    mirrorSourcePolicy: NeverContactSource
---
apiVersion: v1
kind: List
items:
- apiVersion: config.openshift.io/v1
  kind: ImageTagMirrorSet
  metadata: {name: two}
  spec:
    imageTagMirrors:
    - source: quay.io
      mirrors: [t.io:5000/q]
- apiVersion: v1
  kind: ConfigMap
  data: {a: b}
---
{"apiVersion": "config.openshift.io/v1", "kind": "Image", "metadata": {"name": "cluster"},
 "spec": {"registrySources": {"insecureRegistries": ["t.io:5000"]}}}
`

const renderedObjects = `[[registry]]
location = "quay.io/org"
blocked = true

[[registry.mirror]]
location = "m.io/org"
pull-from-mirror = "digest-only"

[[registry.mirror]]
location = "t.io:5000/q/org"
insecure = true
pull-from-mirror = "tag-only"

[[registry]]
location = "quay.io"

[[registry.mirror]]
location = "t.io:5000/q"
insecure = true
pull-from-mirror = "tag-only"

[[registry]]
location = "t.io:5000"
insecure = true
`

func TestMirrorsRender(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.yaml", mirrorObjects)
	set := func(policy string) string {
		return "apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata: {name: x}\nspec:\n  imageDigestMirrors:\n  - {source: quay.io/org, mirrors: [m.io/org], mirrorSourcePolicy: " + policy + "}\n"
	}
	for name, tc := range map[string]struct {
		stdin          string
		args           []string
		stdout, stderr string
		status         int
	}{
		"a file": {args: []string{"render", "-f", good}, stdout: renderedObjects},
		"standard input, and the output by its name": {stdin: mirrorObjects, args: []string{"render", "-f", "-", "-o", "registries.conf"}, stdout: renderedObjects},
		"a file and the same on standard input":      {stdin: mirrorObjects, args: []string{"render", "-f", "-", "-f", good}, stdout: renderedObjects},
		"nothing to say":                             {stdin: "kind: ConfigMap\napiVersion: v1\n", args: []string{"render", "-f", "-"}},
		"a rejection leaves the other bytes alone": {
			stdin:  strings.Replace(mirrorObjects, "[m.io/org]", `[m.io/org, "https://m.io"]`, 1),
			args:   []string{"render", "-f", "-"},
			stdout: renderedObjects,
			stderr: "ImageDigestMirrorSet/one spec.imageDigestMirrors[0].mirrors[1]: \"https://m.io\" is rejected: it begins with a scheme; only host[:port][/path] is allowed\n",
			status: 2,
		},
		"a conflict is a line and status 2": {
			stdin:  set("AllowContactingSource"),
			args:   []string{"render", "-f", good, "-f", "-"},
			stdout: renderedObjects,
			stderr: "ImageDigestMirrorSet/x spec.imageDigestMirrors[0].mirrorSourcePolicy: AllowContactingSource for source quay.io/org contradicts NeverContactSource of another entry; the source is not contacted\n",
			status: 2,
		},
		"a missing file": {
			args: []string{"render", "-f", good, "-f", filepath.Join(dir, "none.yaml")}, status: 1,
			stderr: "archkeeper: stat " + filepath.Join(dir, "none.yaml") + ": no such file or directory\n",
		},
		"broken YAML names file and line": {
			args: []string{"render", "-f", good, "-f", file("bad.yaml", "a: b\n---\nx:\n  - a\n b: c\n")}, status: 1,
			stderr: "archkeeper: " + filepath.Join(dir, "bad.yaml") + ":5: did not find expected key\n",
		},
		"an unknown output": {
			args: []string{"render", "-f", good, "-o", "yaml"}, status: 1,
			stderr: "archkeeper: unknown output \"yaml\": it is one of registries.conf, containerd, machineconfig, policy.json, json\n",
		},
		"no files": {args: []string{"render"}, status: 1, stderr: "archkeeper: required flag(s) \"filename\" not set\n"},
		"explain as JSON": {
			args: []string{"explain", "-f", good, "-o", "json", "quay.io/org/app:v1", "quay.io/org/app" + digest, "quay.io/x", "busybox"},
			stdout: `[
  {
    "reference": "quay.io/org/app:v1",
    "candidates": [
      {
        "reference": "t.io:5000/q/org/app:v1",
        "insecure": true
      }
    ],
    "blocked": true
  },
  {
    "reference": "quay.io/org/app` + digest + `",
    "candidates": [
      {
        "reference": "m.io/org/app` + digest + `",
        "insecure": false
      }
    ],
    "blocked": true
  },
  {
    "reference": "quay.io/x",
    "candidates": [
      {
        "reference": "t.io:5000/q/x:latest",
        "insecure": true
      },
      {
        "reference": "quay.io/x:latest",
        "insecure": false
      }
    ],
    "blocked": false
  },
  {
    "reference": "busybox",
    "candidates": [
      {
        "reference": "docker.io/library/busybox:latest",
        "insecure": false
      }
    ],
    "blocked": false
  }
]
`,
		},
		"no candidates are an empty list, warnings do not change the status": {
			args:   []string{"explain", "-f", good, "-o", "json", "quay.io:443/x:1"},
			stdout: "[\n  {\n    \"reference\": \"quay.io:443/x:1\",\n    \"candidates\": [],\n    \"blocked\": false\n  }\n]\n",
			stderr: "warning: runtimes apply the entry of quay.io, which has no port, to quay.io:443\n" +
				"warning: registries.conf entry \"quay.io\" rewrites to \"t.io:5000/q\" what is then no reference, and every pull through it fails: malformed: image reference \"t.io:5000/q:443/x:1\" is malformed: it is not of the form [host[:port]/]repository[:tag][@digest]\n",
		},
		"explain as a table shows both pulls of a bare name": {
			args: []string{"explain", "-f", good, "quay.io/org/app"},
			stdout: "" +
				"REFERENCE         PULL     CANDIDATE                    INSECURE   WHY\n" +
				"quay.io/org/app   tag      t.io:5000/q/org/app:latest   true       mirror, entry quay.io/org\n" +
				"quay.io/org/app   tag      -                            false      the source is blocked, entry quay.io/org\n" +
				"quay.io/org/app   digest   m.io/org/app@sha256:...      false      mirror, entry quay.io/org\n" +
				"quay.io/org/app   digest   -                            false      the source is blocked, entry quay.io/org\n",
		},
		"a malformed reference": {
			args: []string{"explain", "-f", good, "A b"}, status: 1,
			stderr: "archkeeper: malformed: image reference \"A b\" is malformed: it contains white space\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, status := command(t, tc.stdin, append([]string{"mirrors"}, tc.args...)...)
			if diff := cmp.Diff(tc.stdout, stdout); diff != "" {
				t.Error("stdout", diff)
			}
			if diff := cmp.Diff(tc.stderr, stderr); diff != "" {
				t.Error("stderr", diff)
			}
			if status != tc.status {
				t.Errorf("status %d, want %d", status, tc.status)
			}
		})
	}
}
