package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider/wire"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// home gives the test an empty home, so that nobody's login is used.
func home(t *testing.T) {
	t.Helper()
	for _, name := range []string{"XDG_RUNTIME_DIR", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
}

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// reachWorld gives the flags with which the command line reaches a world.
func reachWorld(t *testing.T, w *registrytest.World) []string {
	t.Helper()
	dir := t.TempDir()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Secure.Server().Certificate().Raw})
	writeFile(t, dir, filepath.Join(w.Secure.Host(), "ca.crt"), string(certificate))
	flags := []string{"--certs-dir", dir}
	for _, host := range w.PlainHosts() {
		flags = append(flags, "--plain-http-host", host)
	}
	for i, account := range w.Accounts {
		entry := map[string]string{}
		if account.IdentityToken != "" {
			entry["identitytoken"] = account.IdentityToken
		}
		entry["auth"] = base64.StdEncoding.EncodeToString([]byte(account.User + ":" + account.Password))
		auths := map[string]any{}
		for _, r := range []*registrytest.Registry{w.Registry, w.Other, w.Secure, w.Untrusted} {
			auths[r.Host()] = entry
		}
		text, err := json.Marshal(map[string]any{"auths": auths})
		if err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--authfile", writeFile(t, dir, string(rune('a'+i))+".json", string(text)))
	}
	return flags
}

// TestInspectEveryCase: the command line gives the right answer for everything
// that registries are known to do wrong.
func TestInspectEveryCase(t *testing.T) {
	for _, c := range registrytest.Cases() {
		if c.Guarded {
			continue // the command line refuses no address
		}
		t.Run(c.Group+"/"+c.Name, func(t *testing.T) {
			home(t)
			w, err := registrytest.NewWorld()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Close)
			image := c.Set(w)
			timeout := "20s"
			if c.Stalls {
				timeout = "300ms"
			}
			args := append([]string{"inspect", "-o", "json", "--timeout", timeout}, reachWorld(t, w)...)
			stdout, stderr, status := command(t, "", append(args, "--", image)...)
			var images []wire.Image
			if err := json.Unmarshal([]byte(stdout), &images); err != nil || len(images) != 1 {
				t.Fatalf("%v: %s%s", err, stdout, stderr)
			}
			got := images[0]
			if got.Image != image {
				t.Errorf("image %q, want %q", got.Image, image)
			}
			if c.Want.Class != "" {
				if got.Error == nil || got.Error.Class != c.Want.Class || got.Error.HTTPStatus != c.Want.Status || got.Error.Retryable != c.Want.Class.Retryable() {
					t.Errorf("error %+v, want class %s, status %d", got.Error, c.Want.Class, c.Want.Status)
				}
				if got.Platforms != nil || got.Architectures != nil || got.ContentOnly || status != 3 {
					t.Errorf("status %d, beside the error: %+v", status, got)
				}
				return
			}
			if got.Error != nil || status != 0 {
				t.Fatalf("status %d, %+v", status, got.Error)
			}
			if got.Kind != c.Want.Kind || got.ContentOnly != c.Want.ContentOnly || got.Architectures == nil {
				t.Errorf("got %+v, want %+v", got, c.Want)
			}
			if !slices.Equal(got.Platforms, c.Want.Platforms) {
				t.Errorf("want -, got +:\n%s", cmp.Diff(c.Want.Platforms, got.Platforms))
			}
			// That no credentials were needed is a warning of the command's own.
			warnings := strings.Count(stderr, "warning:") - strings.Count(stderr, "answered without any")
			if (warnings > 0) != c.Want.Warns {
				t.Errorf("stderr %q, warnings wanted: %v", stderr, c.Want.Warns)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	r := shelf(t)
	dir := t.TempDir()
	pod := func(image string) string {
		return "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: '" + strings.ReplaceAll(image, "R", r.Host()) + "'}]}\n"
	}
	writeFile(t, dir, "good/deep/a.yaml", pod("R/both:v1"))
	writeFile(t, dir, "good/b.yml", "kind: ConfigMap\n---\n"+pod("R/both:v1"))
	writeFile(t, dir, "broken.yaml", "kind: Pod\nspec: [\n")
	writeFile(t, dir, "empty.yaml", "kind: ConfigMap\n")
	writeFile(t, dir, "volume.yaml", "kind: Pod\nspec: {containers: [{image: '"+r.Host()+"/both:v1'}], volumes: [{name: v, image: {reference: '"+r.Host()+"/chart:v1'}}]}\n")
	for sentence, row := range map[string]struct {
		args   []string
		status int
		stdout string // a part; nothing at all when empty
		stderr string // a part
	}{
		"a requirement is met":                   {[]string{"--require", "linux/amd64,linux/arm64", "R/both:v1"}, 0, "met", "1 images: 1 met"},
		"an alias is met":                        {[]string{"--require", "linux/aarch64", "R/both:v1"}, 0, "met", ""},
		"windows of any version":                 {[]string{"--require", "windows/amd64", "R/windows:v1"}, 0, "met", ""},
		"a flag for each":                        {[]string{"--require", "linux/amd64", "--require", "linux/arm64", "R/amd64:v1"}, 2, "unmet: no linux/arm64", ""},
		"what cannot run":                        {[]string{"--require", "linux/amd64", "R/chart:v1"}, 2, "unmet: not-runnable", "error: "},
		"what is not there":                      {[]string{"--require", "linux/amd64", "R/gone:v1"}, 3, "undetermined: not-found", "error: "},
		"what is malformed":                      {[]string{"--require", "linux/amd64", "R/Gone:v1"}, 3, "undetermined: malformed", ""},
		"unmet wins over undetermined":           {[]string{"--require", "linux/arm64", "R/gone:v1", "R/amd64:v1"}, 2, "unmet", ""},
		"the names of those that fail":           {[]string{"--require", "linux/arm64", "-o", "name", "R/both:v1", "R/amd64:v1"}, 2, "R/amd64:v1\n", ""},
		"a folder":                               {[]string{"--require", "linux/arm64", "-f", "D/good"}, 0, "Pod/p", "1 images: 1 met"},
		"an image that is mounted may be data":   {[]string{"--require", "linux/arm64", "-f", "D/volume.yaml"}, 0, "met", "2 images: 2 met"},
		"no requirement":                         {[]string{"R/both:v1"}, 1, "", "require"},
		"an empty requirement":                   {[]string{"--require", "", "R/both:v1"}, 1, "", "require"},
		"a requirement that is none":             {[]string{"--require", "arm64", "R/both:v1"}, 1, "", `"arm64"`},
		"nothing to check":                       {[]string{"--require", "linux/arm64"}, 1, "", "-f"},
		"images and files":                       {[]string{"--require", "linux/arm64", "-f", "D/good", "R/both:v1"}, 1, "", "not both"},
		"a file that is missing":                 {[]string{"--require", "linux/arm64", "-f", "D/none.yaml"}, 1, "", "none.yaml"},
		"broken YAML, by file and line":          {[]string{"--require", "linux/arm64", "-f", "D/good", "-f", "D/broken.yaml"}, 1, "", "broken.yaml: line "},
		"files without an image":                 {[]string{"--require", "linux/arm64", "-f", "D/empty.yaml"}, 1, "", "no image found"},
		"an unknown output":                      {[]string{"--require", "linux/arm64", "-o", "xml", "R/both:v1"}, 1, "", `"xml"`},
		"an authfile that is missing":            {[]string{"--require", "linux/arm64", "--authfile", "D/none.json", "R/both:v1"}, 1, "", "none.json"},
		"an authfile that is broken":             {[]string{"--require", "linux/arm64", "--authfile", "D/broken.yaml", "R/both:v1"}, 1, "", "broken.yaml"},
		"an authority that is missing":           {[]string{"--require", "linux/arm64", "--ca-file", "D/none.crt", "R/both:v1"}, 1, "", "none.crt"},
		"an authority that is none":              {[]string{"--require", "linux/arm64", "--ca-file", "D/empty.yaml", "R/both:v1"}, 1, "", "empty.yaml"},
		"a mirror configuration that is missing": {[]string{"--require", "linux/arm64", "--registries-conf", "D/none.conf", "R/both:v1"}, 1, "", "none.conf"},
		"a mirror configuration that is broken":  {[]string{"--require", "linux/arm64", "--registries-conf", "D/broken.yaml", "R/both:v1"}, 1, "", "broken.yaml"},
		"a deadline below zero":                  {[]string{"--require", "linux/arm64", "--timeout", "-5s", "R/both:v1"}, 1, "", "--timeout"},
		"a deadline without a unit":              {[]string{"--require", "linux/arm64", "--timeout", "5", "R/both:v1"}, 1, "", `must be a duration like "30s"`},
		"a deadline of none":                     {[]string{"--require", "linux/arm64", "--timeout", "0", "R/both:v1"}, 0, "met", ""},
		"an unknown flag":                        {[]string{"--require", "linux/arm64", "--nope", "R/both:v1"}, 1, "", "--nope"},
	} {
		t.Run(sentence, func(t *testing.T) {
			home(t)
			args := []string{"check", "--plain-http-host", r.Host()}
			for _, arg := range row.args {
				args = append(args, strings.NewReplacer("R/", r.Host()+"/", "D/", dir+"/").Replace(arg))
			}
			stdout, stderr, status := command(t, "", args...)
			want := strings.ReplaceAll(row.stdout, "R/", r.Host()+"/")
			if status != row.status || !strings.Contains(stdout, want) || !strings.Contains(stderr, row.stderr) || (want == "") != (stdout == "") {
				t.Errorf("status %d\nstdout %s\nstderr %s", status, stdout, stderr)
			}
			if want == "" && strings.Count(stderr, "\n") != 1 {
				t.Errorf("an error is one line: %q", stderr)
			}
		})
	}
}

func TestInspectThroughAMirror(t *testing.T) {
	home(t)
	r := shelf(t)
	conf := writeFile(t, t.TempDir(), "registries.conf", "[[registry]]\nlocation = \"registry.invalid\"\n[[registry.mirror]]\nlocation = \""+r.Host()+"\"\ninsecure = true\n[[registry]]\nlocation = \"evil.invalid\"\nblocked = true\n")
	stdout, stderr, status := command(t, "", "inspect", "--registries-conf", conf, "-o", "json", "registry.invalid/both:v1", "evil.invalid/x")
	var images []wire.Image
	if err := json.Unmarshal([]byte(stdout), &images); err != nil || len(images) != 2 || status != 3 {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if images[0].Mirror != r.Host()+"/both" || images[0].Reference != "registry.invalid/both:v1" || len(images[0].Platforms) != 2 {
		t.Errorf("got %+v", images[0])
	}
	if images[1].Error == nil || images[1].Error.Class != "blocked" {
		t.Errorf("got %+v", images[1])
	}
}

func TestOneSlowRegistryCostsNoOther(t *testing.T) {
	home(t)
	r := shelf(t)
	w, err := registrytest.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	stdout, stderr, status := command(t, "", "inspect", "--plain-http-host", r.Host(), "--plain-http-host", w.Silent, "--timeout", "2s", "-o", "name",
		w.Silent+"/x:1", r.Host()+"/both:v1", r.Host()+"/amd64:v1")
	if want := r.Host() + "/both:v1\n" + r.Host() + "/amd64:v1\n"; stdout != want || status != 3 || !strings.Contains(stderr, "error: "+w.Silent+"/x:1: timeout") {
		t.Errorf("status %d\nstdout %s\nstderr %s", status, stdout, stderr)
	}
}

func TestAMissingArgumentIsAskedForInWords(t *testing.T) {
	for args, want := range map[string]string{
		"inspect":              "archkeeper: name at least one image\n",
		"mirrors explain -f x": "archkeeper: name at least one image\n",
		"images":               "archkeeper: say which images: -A for all of the cluster, -n NAMESPACE, or -f PATH\n",
	} {
		if stdout, stderr, status := command(t, "", strings.Fields(args)...); status != 1 || stdout != "" || stderr != want {
			t.Errorf("%s: status %d, stdout %q, stderr %q", args, status, stdout, stderr)
		}
	}
}

func TestImagesOfFiles(t *testing.T) {
	home(t)
	r := shelf(t)
	list := strings.ReplaceAll(`{"kind":"List","items":[{"kind":"Deployment","metadata":{"name":"a","namespace":"n"},"spec":{"template":{"spec":{"containers":[{"image":"R/both:v1"},{"image":"R/gone:v1"}]}}}},`+
		`{"kind":"Pod","metadata":{"name":"b"},"spec":{"initContainers":[{"image":"R/both:v1"}],"containers":[{"image":"R/windows:v1"}]}}]}`, "R/", r.Host()+"/")
	stdout, stderr, status := command(t, list, "images", "-f", "-", "--plain-http-host", r.Host(), "-o", "csv")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if status != 3 || len(lines) != 4 || stderr != "" {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	for i, want := range []string{"image,reference", "linux/amd64 linux/arm64,amd64 arm64,,,,Pod/b Deployment/n/a", "not-found", "windows(10.0.17763.1)/amd64,,,,,Pod/b"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %s, want %s", i+1, lines[i], want)
		}
	}
	for _, args := range [][]string{{"images"}, {"images", "-A", "-f", "x"}, {"images", "-n", ""}, {"images", "-A"}} {
		if stdout, stderr, status := command(t, "", args...); status != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, %s%s", args, status, stdout, stderr)
		}
	}
}
