package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// binaryDir holds the binary for all tests of the package; TestMain removes it.
var binaryDir string

// build builds the binary, once.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "archkeeper")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "archkeeper")
	out, err := exec.Command("go", "build", "-ldflags", "-X main.version=v0.0.0-test", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, os.Symlink(path, filepath.Join(dir, "kubectl-archkeeper"))
})

func TestMain(m *testing.M) {
	status := m.Run()
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
	os.Exit(status)
}

// execute runs the built binary as a user would, with an empty home.
func execute(t *testing.T, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return executeAs(t, path, stdin, args...)
}

func executeAs(t *testing.T, path, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(stdin)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	failed := cmd.Run()
	var exit *exec.ExitError
	if failed != nil && !errors.As(failed, &exit) {
		t.Fatal(failed)
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// shelf is a registry with one image of each usual shape, by repository.
func shelf(t *testing.T) *registrytest.Registry {
	t.Helper()
	r := registrytest.New()
	t.Cleanup(r.Close)
	r.PutIndex("both", "v1", "linux/arm64", "linux/amd64")
	r.PutImage("amd64", "v1", "linux/amd64")
	r.PutIndex("windows", "v1", "windows(10.0.17763.1)/amd64")
	r.PutConfigured("chart", "v1", "application/vnd.cncf.helm.config.v1+json", []byte(`{}`))
	return r
}

func TestBinaryInspects(t *testing.T) {
	r := shelf(t)
	stdout, stderr, status := execute(t, "", "inspect", "-o", "json", "--plain-http-host", r.Host(), r.Host()+"/both:v1", r.Host()+"/chart:v1", " x")
	if status != 3 || stderr != "" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	for _, want := range []string{
		`"reference": "` + r.Host() + `/both:v1"`, `"kind": "index"`, "\"platforms\": [\n      \"linux/amd64\",\n      \"linux/arm64\"\n    ]",
		"\"architectures\": [\n      \"amd64\",\n      \"arm64\"\n    ]", `"kind": "artifact"`, `"class": "not-runnable"`, `"image": " x"`, `"class": "malformed"`,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %s in\n%s", want, stdout)
		}
	}
	if got := r.Lines(); len(got) != 2 {
		t.Errorf("two images cost two requests: %q", got)
	}
}

func TestBinaryChecks(t *testing.T) {
	r := shelf(t)
	manifest := strings.ReplaceAll("kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - image: R/both:v1\n  - image: R/amd64:v1\n", "R", r.Host())
	stdout, stderr, status := execute(t, manifest, "check", "--require", "linux/amd64,linux/arm64", "-f", "-", "--plain-http-host", r.Host())
	if status != 2 || !strings.Contains(stdout, "unmet: no linux/arm64") || !strings.Contains(stderr, "2 images: 1 met, 1 unmet, 0 undetermined") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, "\x1b") {
		t.Error("colour or a progress bar off a terminal")
	}
}

func TestBinaryAsPlugin(t *testing.T) {
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, status := executeAs(t, filepath.Join(filepath.Dir(path), "kubectl-archkeeper"), "", "inspect", "--help")
	if status != 0 || !strings.Contains(stdout, "kubectl archkeeper inspect IMAGE...") {
		t.Errorf("status %d\n%s", status, stdout)
	}
	stdout, _, status = execute(t, "", "version")
	if status != 0 || !strings.HasPrefix(stdout, "archkeeper v0.0.0-test (go1.") {
		t.Errorf("status %d\n%s", status, stdout)
	}
}

func TestBinaryCompletes(t *testing.T) {
	stdout, _, status := execute(t, "", "__complete", "inspect", "-o", "")
	if status != 0 || !strings.Contains(stdout, "json") || !strings.Contains(stdout, "wide") {
		t.Errorf("status %d\n%s", status, stdout)
	}
	stdout, _, status = execute(t, "", "completion", "bash")
	if status != 0 || !strings.Contains(stdout, "__start_archkeeper") {
		t.Errorf("status %d", status)
	}
}
