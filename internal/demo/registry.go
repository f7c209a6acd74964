package demo

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// content is what a registry stores: a manifest or a blob.
type content struct {
	mediaType types.MediaType
	digest    string
	bytes     []byte
}

// store is a read-only registry: path below /v2/ to content.
type store map[string]content

// ServeHTTP speaks the part of the distribution specification that pulling
// takes.
func (s store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "/v2/" {
		w.WriteHeader(http.StatusOK)
		return
	}
	found, ok := s[strings.TrimPrefix(r.URL.Path, "/v2/")]
	if !ok {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not here"}]}`))
		return
	}
	w.Header().Set("Content-Type", string(found.mediaType))
	w.Header().Set("Content-Length", strconv.Itoa(len(found.bytes)))
	w.Header().Set("Docker-Content-Digest", found.digest)
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_, _ = w.Write(found.bytes)
	}
}

// put stores a manifest under its digest and, when there is one, a tag.
func (s store) put(repository, tag string, manifest partial.WithRawManifest, mediaType types.MediaType) error {
	raw, err := manifest.RawManifest()
	if err != nil {
		return err
	}
	digest, err := partial.Digest(manifest)
	if err != nil {
		return err
	}
	c := content{mediaType: mediaType, digest: digest.String(), bytes: raw}
	s[repository+"/manifests/"+c.digest] = c
	if tag != "" {
		s[repository+"/manifests/"+tag] = c
	}
	return nil
}

// putImage stores an image's manifest and config.
func (s store) putImage(repository, tag string, image v1.Image) error {
	mediaType, err := image.MediaType()
	if err != nil {
		return err
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return err
	}
	digest, err := image.ConfigName()
	if err != nil {
		return err
	}
	s[repository+"/blobs/"+digest.String()] = content{mediaType: "application/octet-stream", digest: digest.String(), bytes: config}
	return s.put(repository, tag, image, mediaType)
}

// putIndex stores an index and its children.
func (s store) putIndex(repository, tag string, children ...mutate.IndexAddendum) error {
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), children...)
	for _, child := range children {
		image, ok := child.Add.(v1.Image)
		if !ok {
			return fmt.Errorf("%s: a child that is no image", repository)
		}
		if err := s.putImage(repository, "", image); err != nil {
			return err
		}
	}
	return s.put(repository, tag, index, types.OCIImageIndex)
}

// runnable makes an image for a platform, without layers: nobody runs it.
func runnable(platform v1.Platform) (v1.Image, error) {
	return mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant, OSVersion: platform.OSVersion,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
	})
}

// child is an index entry that says its platform.
func child(platform v1.Platform) (mutate.IndexAddendum, error) {
	image, err := runnable(platform)
	if err != nil {
		return mutate.IndexAddendum{}, err
	}
	return mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}}, nil
}

// attestation is what BuildKit puts beside an image: an entry that looks like
// one and is none.
func attestation(of mutate.IndexAddendum) (mutate.IndexAddendum, error) {
	image, ok := of.Add.(v1.Image)
	if !ok {
		return mutate.IndexAddendum{}, fmt.Errorf("an attestation of what is no image")
	}
	subject, err := image.Digest()
	if err != nil {
		return mutate.IndexAddendum{}, err
	}
	unknown := v1.Platform{OS: "unknown", Architecture: "unknown"}
	statement, err := runnable(unknown)
	if err != nil {
		return mutate.IndexAddendum{}, err
	}
	return mutate.IndexAddendum{Add: statement, Descriptor: v1.Descriptor{
		Platform: &unknown,
		Annotations: map[string]string{
			"vnd.docker.reference.type":   "attestation-manifest",
			"vnd.docker.reference.digest": subject.String(),
		},
	}}, nil
}

// The images of the demonstration, by repository; all have the tag 1.
const (
	repositoryMulti     = "demo/multi"
	repositoryAMD64     = "demo/amd64-only"
	repositoryARM64     = "demo/arm64-only"
	repositoryWindows   = "demo/windows"
	repositorySignature = "demo/signature"
	repositoryMissing   = "demo/missing" // not stored
)

// newStore makes the images.
func newStore() (store, error) {
	s := store{}
	amd64 := v1.Platform{OS: "linux", Architecture: "amd64"}
	arm64 := v1.Platform{OS: "linux", Architecture: "arm64"}

	var multi []mutate.IndexAddendum
	for _, platform := range []v1.Platform{amd64, arm64} {
		entry, err := child(platform)
		if err != nil {
			return nil, err
		}
		proof, err := attestation(entry)
		if err != nil {
			return nil, err
		}
		multi = append(multi, entry, proof)
	}
	if err := s.putIndex(repositoryMulti, "1", multi...); err != nil {
		return nil, err
	}

	only, err := child(amd64)
	if err != nil {
		return nil, err
	}
	if err := s.putIndex(repositoryAMD64, "1", only); err != nil {
		return nil, err
	}

	single, err := runnable(arm64)
	if err != nil {
		return nil, err
	}
	if err := s.putImage(repositoryARM64, "1", single); err != nil {
		return nil, err
	}

	var windows []mutate.IndexAddendum
	for _, version := range []string{"10.0.17763.6414", "10.0.20348.2762"} {
		entry, err := child(v1.Platform{OS: "windows", Architecture: "amd64", OSVersion: version})
		if err != nil {
			return nil, err
		}
		windows = append(windows, entry)
	}
	if err := s.putIndex(repositoryWindows, "1", windows...); err != nil {
		return nil, err
	}

	signature := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.oci.empty.v1+json")
	return s, s.putImage(repositorySignature, "1", signature)
}
