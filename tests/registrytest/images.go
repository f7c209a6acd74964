package registrytest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Media types of what is put into a Registry.
const (
	Index        = "application/vnd.oci.image.index.v1+json"
	Image        = "application/vnd.oci.image.manifest.v1+json"
	Config       = "application/vnd.oci.image.config.v1+json"
	DockerList   = "application/vnd.docker.distribution.manifest.list.v2+json"
	DockerImage  = "application/vnd.docker.distribution.manifest.v2+json"
	DockerConfig = "application/vnd.docker.container.image.v1+json"
	Schema1      = "application/vnd.docker.distribution.manifest.v1+json"
	Layer        = "application/vnd.oci.image.layer.v1.tar+gzip"
	Empty        = "application/vnd.oci.empty.v1+json"
)

// Object is a JSON object.
type Object map[string]any

// JSON encodes a value.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encoding test content: %v", err)) // of this package's own making
	}
	return b
}

// Platform reads os/architecture[/variant] into the object of a descriptor.
func Platform(text string) Object {
	parts := strings.SplitN(text, "/", 3)
	p := Object{"os": parts[0]}
	if name, version, ok := strings.Cut(strings.TrimSuffix(parts[0], ")"), "("); ok {
		p["os"], p["os.version"] = name, version
	}
	if len(parts) > 1 {
		p["architecture"] = parts[1]
	}
	if len(parts) > 2 {
		p["variant"] = parts[2]
	}
	return p
}

// Descriptor points at content; platform is "" for none.
func Descriptor(mediaType, digest string, size int, platform string) Object {
	d := Object{"mediaType": mediaType, "digest": digest, "size": size}
	if platform != "" {
		d["platform"] = Platform(platform)
	}
	return d
}

// IndexOf gives an index of entries.
func IndexOf(entries ...Object) []byte {
	if entries == nil {
		entries = []Object{}
	}
	return JSON(Object{"schemaVersion": 2, "mediaType": Index, "manifests": entries})
}

// Absent gives the descriptor of an image manifest that no registry has.
func Absent(platform string) Object {
	return Descriptor(Image, Digest([]byte("absent "+platform)), 500, platform)
}

// PutIndex stores an index whose entries have platforms and are not there.
func (r *Registry) PutIndex(repository, tag string, platforms ...string) (digest string) {
	var entries []Object
	for _, p := range platforms {
		entries = append(entries, Absent(p))
	}
	return r.Put(repository, tag, Index, IndexOf(entries...))
}

// PutImage stores a single image and its config.
func (r *Registry) PutImage(repository, tag, platform string) (digest string) {
	config := Platform(platform)
	config["rootfs"] = Object{"type": "layers", "diff_ids": []string{}}
	config["config"] = Object{"Labels": Object{"made-for": repository + ":" + tag}}
	return r.PutConfigured(repository, tag, Config, JSON(config))
}

// PutConfigured stores an image manifest with any config.
func (r *Registry) PutConfigured(repository, tag, configType string, config []byte) (digest string) {
	configDigest := r.PutBlob(repository, config)
	return r.Put(repository, tag, Image, ImageOf(Descriptor(configType, configDigest, len(config), "")))
}

// ImageOf gives an image manifest with a config.
func ImageOf(config Object) []byte {
	return JSON(Object{
		"schemaVersion": 2, "mediaType": Image, "config": config,
		"layers": []Object{Descriptor(Layer, Digest([]byte("layer")), 5, "")},
	})
}
