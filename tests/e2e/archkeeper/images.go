package archkeeper

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Registry serves images over plain HTTP on a loopback port, to anonymous
// callers.
type Registry struct {
	// Host is 127.0.0.1:PORT, the first part of every reference.
	Host string

	handler  http.Handler
	requests atomic.Int64
	delay    atomic.Int64 // nanoseconds; below zero: no answer at all
	limits   atomic.Bool

	mu     sync.Mutex
	server *http.Server // nil while it is down
}

// ServeImages starts an empty registry.
func ServeImages() (*Registry, error) {
	r := &Registry{Host: "127.0.0.1:0", handler: registry.New(registry.Logger(nothing))}
	if err := r.Up(); err != nil {
		return nil, err
	}
	return r, nil
}

// Up serves again after Down, at the same port and with the same images.
func (r *Registry) Up() error {
	listener, err := net.Listen("tcp", r.Host)
	if err != nil {
		return fmt.Errorf("starting a registry: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(r.serve), ReadHeaderTimeout: readTimeout}
	r.mu.Lock()
	r.Host, r.server = listener.Addr().String(), server
	r.mu.Unlock()
	go func() { _ = server.Serve(listener) }() // it ends with Down
	return nil
}

// Down refuses connections, and ends those that are open.
func (r *Registry) Down() error {
	r.mu.Lock()
	server := r.server
	r.server = nil
	r.mu.Unlock()
	if server == nil {
		return nil
	}
	if err := server.Close(); err != nil {
		return fmt.Errorf("ending the registry: %w", err)
	}
	return nil
}

// Close ends the registry.
func (r *Registry) Close() error { return r.Down() }

// Delay makes each GET and HEAD take at least that long; below zero it gets no
// answer at all.
func (r *Registry) Delay(d time.Duration) { r.delay.Store(int64(d)) }

// LimitAnonymous refuses callers without credentials, whatever these are, for a
// minute: 429, with Retry-After.
func (r *Registry) LimitAnonymous() { r.limits.Store(true) }

func (r *Registry) serve(w http.ResponseWriter, request *http.Request) {
	if r.limits.Load() {
		switch _, _, known := request.BasicAuth(); {
		case known:
		case request.URL.Path == "/v2/":
			w.Header().Set("WWW-Authenticate", `Basic realm="limited"`)
			http.Error(w, "log in", http.StatusUnauthorized)
			return
		default:
			w.Header().Set("Retry-After", "60")
			http.Error(w, "too many", http.StatusTooManyRequests)
			return
		}
	}
	if request.Method == http.MethodGet || request.Method == http.MethodHead {
		r.requests.Add(1)
		delay := time.Duration(r.delay.Load())
		var over <-chan time.Time // never
		if delay >= 0 {
			timer := time.NewTimer(delay)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-over:
		case <-request.Context().Done():
			return
		}
	}
	r.handler.ServeHTTP(w, request)
}

// Requests is how many GET and HEAD requests the registry has seen.
func (r *Registry) Requests() int64 { return r.requests.Load() }

// Push stores an image and returns its reference, HOST/REPOSITORY:TAG. One
// platform makes a single manifest, several an index; each is written as
// "linux/arm64", or "windows/amd64:10.0.17763.1" with a version. An index also
// gets an attestation, as builders add it.
func (r *Registry) Push(ctx context.Context, repository string, platforms ...string) (string, error) {
	reference := r.Host + "/" + repository
	ref, err := name.ParseReference(reference, name.StrictValidation, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("pushing %s: %w", reference, err)
	}
	var images []v1.Image
	for _, platform := range platforms {
		image, err := imageFor(repository, platform)
		if err != nil {
			return "", fmt.Errorf("making %s for %s: %w", reference, platform, err)
		}
		images = append(images, image)
	}
	if len(images) == 1 {
		err = remote.Write(ref, images[0], remote.WithContext(ctx))
	} else {
		var index v1.ImageIndex
		if index, err = indexOf(images, platforms); err == nil {
			err = remote.WriteIndex(ref, index, remote.WithContext(ctx))
		}
	}
	if err != nil {
		return "", fmt.Errorf("pushing %s: %w", reference, err)
	}
	return reference, nil
}

// Digest of what a reference of this registry names now.
func (r *Registry) Digest(ctx context.Context, reference string) (string, error) {
	ref, err := name.ParseReference(reference, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("asking for the digest of %s: %w", reference, err)
	}
	descriptor, err := remote.Head(ref, remote.WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("asking for the digest of %s: %w", reference, err)
	}
	return descriptor.Digest.String(), nil
}

func platformOf(text string) (v1.Platform, error) {
	os, arch, found := strings.Cut(text, "/")
	if !found {
		return v1.Platform{}, fmt.Errorf("%q is no platform", text)
	}
	arch, version, _ := strings.Cut(arch, ":")
	arch, variant, _ := strings.Cut(arch, "/")
	return v1.Platform{OS: os, Architecture: arch, Variant: variant, OSVersion: version}, nil
}

func imageFor(repository, platform string) (v1.Image, error) {
	p, err := platformOf(platform)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), &v1.ConfigFile{
		OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, OSVersion: p.OSVersion,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Labels: map[string]string{"repository": repository}},
	})
}

func indexOf(images []v1.Image, platforms []string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, image := range images {
		p, err := platformOf(platforms[i])
		if err != nil {
			return nil, err
		}
		digest, err := image.Digest()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &p}},
			mutate.IndexAddendum{Add: attestation(i), Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
				Annotations: map[string]string{
					"vnd.docker.reference.type":   "attestation-manifest",
					"vnd.docker.reference.digest": digest.String(),
				},
			}},
		)
	}
	return index, nil
}

// attestation is a manifest beside the n-th image that no runtime runs.
func attestation(n int) v1.Image {
	return mutate.Annotations(mutate.MediaType(empty.Image, types.OCIManifestSchema1), map[string]string{"of": fmt.Sprint(n)}).(v1.Image)
}
