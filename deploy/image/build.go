package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Options say what is built.
type Options struct {
	// Package is the main package, as go build takes it, and Version what it is
	// told to be.
	Package, Version string
	// Platforms, such as linux/arm64.
	Platforms []string
	// CAFile is the PEM file of the authorities that the image trusts.
	CAFile string
	// WorkDir keeps the built programs.
	WorkDir string
	Log     io.Writer
}

// Built is an index, and a CycloneDX bill of materials for each of its images,
// which refers to it.
type Built struct {
	Index v1.ImageIndex
	SBOMs []v1.Image
}

// sbomType is the media type of a bill of materials.
const sbomType = "application/vnd.cyclonedx+json"

// user is nobody in particular, as in distroless images.
const user = "65532"

// Build builds the program for each platform and puts an image around it:
// nothing but the program, the authorities and a user.
func Build(ctx context.Context, o Options) (Built, error) {
	authorities, err := os.ReadFile(o.CAFile)
	if err != nil {
		return Built{}, fmt.Errorf("authorities: %w", err)
	}
	built := Built{Index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex)}
	for _, platform := range o.Platforms {
		goos, goarch, ok := strings.Cut(platform, "/")
		if !ok {
			return Built{}, fmt.Errorf("platform %q is not OS/ARCHITECTURE", platform)
		}
		fmt.Fprintln(o.Log, "building", platform)
		program, err := compile(ctx, o, platform, goos, goarch)
		if err != nil {
			return Built{}, err
		}
		image, err := imageOf(program, authorities, o.Version, goos, goarch)
		if err != nil {
			return Built{}, fmt.Errorf("%s: %w", platform, err)
		}
		sbom, err := attach(image, program, o.Version)
		if err != nil {
			return Built{}, fmt.Errorf("%s: %w", platform, err)
		}
		built.SBOMs = append(built.SBOMs, sbom)
		built.Index = mutate.AppendManifests(built.Index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: goos, Architecture: goarch}},
		})
	}
	return built, nil
}

// programName is the file of a platform's program in WorkDir.
func programName(platform string) string {
	return "archkeeper-" + strings.ReplaceAll(platform, "/", "-")
}

func compile(ctx context.Context, o Options, platform, goos, goarch string) (path string, err error) {
	path = filepath.Join(o.WorkDir, programName(platform))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+o.Version, "-o", path, o.Package) //nolint:gosec // our own package
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s for %s: %w\n%s", o.Package, platform, err, out)
	}
	return path, nil
}

// imageOf puts one layer around a program. Every time in it is the epoch.
func imageOf(program string, authorities []byte, version, goos, goarch string) (v1.Image, error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	layerTar, err := tarOf([]file{
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")},
		{"etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n")},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities},
		{"archkeeper", 0o755, binary},
	})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layerTar)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = goos, goarch, v1.Time{Time: time.Unix(0, 0).UTC()}
	config.History = []v1.History{{Created: config.Created, CreatedBy: "deploy/image"}}
	config.Config = v1.Config{
		User: user + ":" + user, Entrypoint: []string{"/archkeeper"}, WorkingDir: "/",
		Env: []string{"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "archkeeper",
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/archkeeper/archkeeper",
		},
	}
	return mutate.ConfigFile(image, config)
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func tarOf(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{}
	folder := func(name string) error {
		if name == "." || made[name] {
			return nil
		}
		made[name] = true
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR})
	}
	for _, f := range files {
		var parents []string
		for dir := filepath.Dir(f.name); dir != "."; dir = filepath.Dir(dir) {
			parents = append(parents, dir)
		}
		slices.Reverse(parents)
		for _, dir := range parents {
			if err := folder(dir); err != nil {
				return nil, err
			}
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// attach makes the artifact with the bill of materials of an image's program. It
// refers to the image as its subject: OCI distribution 1.1, referrers.
func attach(image v1.Image, program, version string) (v1.Image, error) {
	bill, err := sbom(program, version)
	if err != nil {
		return nil, err
	}
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomType)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(bill, sbomType))
	if err != nil {
		return nil, err
	}
	subject.Platform = nil
	attached, ok := mutate.Subject(artifact, *subject).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("an artifact with a subject is no image")
	}
	return attached, nil
}

// component of a CycloneDX bill of materials.
type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
}

// sbom lists the modules that the linker put into a program, as Go wrote them
// down in it: CycloneDX 1.6, without a time or a random number.
func sbom(program, version string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("bill of materials: %w", err)
	}
	components := []component{{Type: "library", Name: "std", Version: info.GoVersion, PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, component{Type: "library", Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + m.Path + "@" + m.Version})
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   map[string]any{"component": component{Type: "application", Name: "archkeeper", Version: version}},
		"components": components,
	}, "", "  ")
}
