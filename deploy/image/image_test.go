package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// other is an architecture that is not this machine's.
func other() string {
	if runtime.GOARCH == "s390x" {
		return "linux/arm64"
	}
	return "linux/s390x"
}

func options(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	authorities := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(authorities, []byte("authorities"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Options{
		Package: "./testdata/hello", Version: "v1.2.3", Platforms: []string{"linux/" + runtime.GOARCH, other()},
		CAFile: authorities, WorkDir: dir, Log: io.Discard,
	}
}

func TestWhatIsPushed(t *testing.T) {
	o := options(t)
	built, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	host, end, err := throwAway()
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	reference, err := name.NewTag(host+"/archkeeper:v1.2.3", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Push(t.Context(), reference, built); err != nil {
		t.Fatal(err)
	}
	if err := billed(t.Context(), reference, o.Platforms); err != nil {
		t.Error(err)
	}
	if err := billed(t.Context(), reference, o.Platforms[:1]); err == nil {
		t.Error("an image more than was built for is not seen")
	}
	index, err := remote.Index(reference)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 2 {
		t.Fatalf("%d images", len(manifest.Manifests))
	}
	for i, d := range manifest.Manifests {
		if got := d.Platform.String(); got != o.Platforms[i] {
			t.Errorf("image %d is for %s, want %s", i, got, o.Platforms[i])
		}
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/archkeeper" || config.OS+"/"+config.Architecture != o.Platforms[i] {
			t.Errorf("config %+v", config)
		}
		checkFiles(t, image)
		checkBill(t, reference, d.Digest)
	}
}

func checkFiles(t *testing.T, image v1.Image) {
	t.Helper()
	content := mutate.Extract(image)
	defer content.Close()
	found := map[string]string{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if header.ModTime.Unix() != 0 {
			t.Errorf("%s is of %s", header.Name, header.ModTime)
		}
		found[header.Name] = string(text)
	}
	if found["etc/ssl/certs/ca-certificates.crt"] != "authorities" || !strings.Contains(found["etc/passwd"], "nonroot:x:65532") || !strings.HasPrefix(found["archkeeper"], "\x7fELF") {
		t.Errorf("files %d", len(found))
	}
}

func checkBill(t *testing.T, reference name.Tag, digest v1.Hash) {
	t.Helper()
	referrers, err := remote.Referrers(reference.Context().Digest(digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := referrers.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d artifacts refer to %s, want one", len(manifest.Manifests), digest)
	}
	artifact, err := remote.Image(reference.Context().Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := artifact.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(layers, err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		Format     string `json:"bomFormat"`
		Components []struct{ Name, Version string }
	}
	if err := json.NewDecoder(content).Decode(&bill); err != nil {
		t.Fatal(err)
	}
	if bill.Format != "CycloneDX" || len(bill.Components) == 0 || bill.Components[0].Version != runtime.Version() {
		t.Errorf("bill of materials %+v", bill)
	}
}

func TestTwoBuildsAreTheSame(t *testing.T) {
	var digests []v1.Hash
	for range 2 {
		o := options(t)
		o.Platforms = o.Platforms[:1]
		built, err := Build(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := built.Index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("%s and %s", digests[0], digests[1])
	}
}
