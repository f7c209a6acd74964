// Command image builds the multi-architecture image without a container engine,
// pushes it, and looks at what was pushed with the program itself.
//
//	go run ./deploy/image -repository registry.example/archkeeper -tag v1.0.0
//
// Without -repository it pushes to a registry of its own that ends with it: a
// rehearsal. Two builds of one source tree, with one Go and one file of
// authorities, have the same digest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o := Options{Log: os.Stderr}
	var repository, tag, platforms string
	flag.StringVar(&o.Package, "package", "./cmd/archkeeper", "main package")
	flag.StringVar(&o.Version, "version", "devel", "version, for the program and a label")
	flag.StringVar(&repository, "repository", "", "HOST/REPOSITORY to push to; a throw-away registry when empty")
	flag.StringVar(&tag, "tag", "devel", "tag")
	flag.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64,linux/s390x,linux/ppc64le", "platforms, by comma")
	flag.StringVar(&o.CAFile, "ca-file", "/etc/ssl/certs/ca-certificates.crt", "PEM file of the authorities that the image trusts")
	flag.Parse()
	o.Platforms = strings.Split(platforms, ",")
	if err := run(ctx, o, repository, tag); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o Options, repository, tag string) (err error) {
	dir, err := os.MkdirTemp("", "archkeeper-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.WorkDir = dir
	plainHTTP := false
	if repository == "" {
		host, end, err := throwAway()
		if err != nil {
			return err
		}
		defer end()
		repository, plainHTTP = host+"/archkeeper", true
	}
	var options []name.Option
	if plainHTTP {
		options = append(options, name.Insecure)
	}
	reference, err := name.NewTag(repository+":"+tag, options...)
	if err != nil {
		return err
	}
	built, err := Build(ctx, o)
	if err != nil {
		return err
	}
	digest, err := Push(ctx, reference, built)
	if err != nil {
		return err
	}
	fmt.Println(reference.Context().Digest(digest.String()))
	if err := billed(ctx, reference, o.Platforms); err != nil {
		return err
	}
	return verify(ctx, o, reference.String(), reference.RegistryStr(), plainHTTP)
}

// throwAway serves a registry on loopback.
func throwAway() (host string, end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at the start
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // it ends with Close
	return listener.Addr().String(), func() { _ = server.Close() }, nil
}

// Push writes the index and what is attached to its images, and gives its digest.
func Push(ctx context.Context, reference name.Tag, built Built) (v1.Hash, error) {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(reference, built.Index, options...); err != nil {
		return v1.Hash{}, fmt.Errorf("push %s: %w", reference, err)
	}
	for _, attached := range built.SBOMs {
		digest, err := attached.Digest()
		if err != nil {
			return v1.Hash{}, err
		}
		if err := remote.Write(reference.Context().Digest(digest.String()), attached, options...); err != nil {
			return v1.Hash{}, fmt.Errorf("push a bill of materials: %w", err)
		}
	}
	return built.Index.Digest()
}

// billed looks whether what was pushed has an image for each platform, and each
// image a bill of materials that refers to it.
func billed(ctx context.Context, reference name.Tag, platforms []string) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	index, err := remote.Index(reference, options...)
	if err != nil {
		return fmt.Errorf("read %s back: %w", reference, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("read %s back: %w", reference, err)
	}
	if len(manifest.Manifests) != len(platforms) {
		return fmt.Errorf("%s has %d images for the platforms %v", reference, len(manifest.Manifests), platforms)
	}
	for _, d := range manifest.Manifests {
		referrers, err := remote.Referrers(reference.Context().Digest(d.Digest.String()), append(options, remote.WithFilter("artifactType", sbomType))...)
		if err != nil {
			return fmt.Errorf("bill of materials of %s: %w", d.Platform, err)
		}
		found, err := referrers.IndexManifest()
		if err != nil {
			return fmt.Errorf("bill of materials of %s: %w", d.Platform, err)
		}
		if len(found.Manifests) != 1 {
			return fmt.Errorf("%d bills of materials refer to the image for %s, want one", len(found.Manifests), d.Platform)
		}
	}
	return nil
}

// verify looks at what was pushed with the program that is in it.
func verify(ctx context.Context, o Options, reference, host string, plainHTTP bool) error {
	program := filepath.Join(o.WorkDir, programName(runtime.GOOS+"/"+runtime.GOARCH))
	if _, err := os.Stat(program); err != nil {
		return errors.New("nothing was built for this machine, so nothing was verified")
	}
	var flags []string
	if plainHTTP {
		flags = append(flags, "--plain-http-host", host)
	}
	for _, arguments := range [][]string{
		{"inspect", reference, "-o", "json"},
		{"check", "--require", strings.Join(o.Platforms, ","), reference},
	} {
		cmd := exec.CommandContext(ctx, program, append(arguments, flags...)...) //nolint:gosec // built here
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("archkeeper %s %s: %w", arguments[0], reference, err)
		}
	}
	return nil
}
