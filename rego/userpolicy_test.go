package rego_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/rego"
)

// narrowing is an extension that leaves one architecture of every image, which its
// data names.
const narrowing = `package archkeeper.extension

architectures[image] := {data.shop.architecture} if some image, _ in input.images
`

// bundleOf makes an OPA bundle, a .tar.gz, of files.
func bundleOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	archive := tar.NewWriter(zip)
	for name, content := range files {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func narrowedTo(t *testing.T, architecture string) []byte {
	t.Helper()
	return bundleOf(t, map[string]string{
		"/.manifest":        `{"revision": "` + architecture + `", "roots": ["archkeeper/extension", "archkeeper/extension_test", "shop"]}`,
		"/extension.rego":   narrowing,
		"/shop/data.json":   `{"architecture": "` + architecture + `"}`,
		"/policy_test.rego": "package archkeeper.extension_test\n\ntest_never_loaded if undefined_function(1)\n",
	})
}

// replace puts a file in the place of another, as a tool that delivers it would.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestABundleIsLoadedAndFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.tar.gz")
	replace(t, path, narrowedTo(t, "arm64"))
	var log bytes.Buffer
	clock := clocktesting.NewFakeClock(time.Now())
	registry := prometheus.NewRegistry()
	reloaded := make(chan struct{}, 10)
	e, err := rego.New(t.Context(), rego.Options{
		UserPolicy: path, Clock: clock, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: rego.NewMetrics(registry),
		UserDeadline: time.Minute, OnReload: func() { reloaded <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]rego.Image{"r.io/a:1": {
		Status: rego.StatusKnown, Architectures: []string{"amd64", "arm64", "s390x"}, Platforms: []string{"linux/amd64", "linux/arm64", "linux/s390x"},
	}}
	decides := func(want string) {
		t.Helper()
		d, err := e.Decide(t.Context(), input(t, "{}", answers))
		if err != nil || strings.Join(d.Architectures, ",") != want {
			t.Errorf("it decides %+v, %v, want %s", d, err, want)
		}
	}
	decides("arm64")

	e.Look(t.Context())
	if len(reloaded) != 0 {
		t.Error("an unchanged bundle was loaded again")
	}

	// Broken in each way in which a bundle can be.
	for sentence, content := range map[string][]byte{
		"cut short":             narrowedTo(t, "amd64")[:60],
		"no archive":            []byte("not a bundle"),
		"without Rego":          bundleOf(t, map[string]string{"/shop/data.json": "{}"}),
		"no Rego that reads":    bundleOf(t, map[string]string{"/extension.rego": "package archkeeper.extension\n\nallow if"}),
		"no Rego that compiles": bundleOf(t, map[string]string{"/extension.rego": "package archkeeper.extension\n\nexempt contains reason if reason := undefined_function(1)\n"}),
		"with network":          bundleOf(t, map[string]string{"/extension.rego": "package archkeeper.extension\n\nexempt contains http.send({\"method\": \"get\", \"url\": \"http://r.io\"}).status\n"}),
		"outside its roots":     bundleOf(t, map[string]string{"/.manifest": `{"roots": ["other"]}`, "/extension.rego": narrowing}),
		"empty":                 {},
	} {
		log.Reset()
		replace(t, path, content)
		e.Look(t.Context())
		e.Look(t.Context())
		if n := strings.Count(log.String(), "the last good one stays in use"); n != 1 || !strings.Contains(log.String(), path) {
			t.Errorf("%s: %d lines:\n%s", sentence, n, log.String())
		}
		if len(reloaded) != 0 {
			t.Errorf("%s: it was loaded", sentence)
		}
		decides("arm64")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	e.Look(t.Context())
	decides("arm64")

	// Replaced by a good one while Run looks at each interval.
	replace(t, path, narrowedTo(t, "s390x"))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	for len(reloaded) == 0 {
		if clock.HasWaiters() {
			clock.Step(time.Second)
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	decides("s390x")
	if want := `
# HELP archkeeper_policy_reloads_total Changes of the user policy, by result (loaded, failed).
# TYPE archkeeper_policy_reloads_total counter
archkeeper_policy_reloads_total{result="failed"} 9
archkeeper_policy_reloads_total{result="loaded"} 1
`; testutil.GatherAndCompare(registry, strings.NewReader(want), "archkeeper_policy_reloads_total") != nil {
		t.Error(testutil.GatherAndCompare(registry, strings.NewReader(want), "archkeeper_policy_reloads_total"))
	}
}

func TestABundleMustBeGoodAtTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.tar.gz")
	replace(t, path, narrowedTo(t, "arm64")[:60])
	if _, err := rego.New(t.Context(), rego.Options{UserPolicy: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}
