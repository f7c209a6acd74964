// Package manifest reads the bytes that registries serve (image manifests,
// indexes, Docker schema 1, image configs) and tells which platforms they name
// and what else must be read to know. It is pure: the caller fetches, checks
// digests and hands the bytes in.
//
// The whole of it is three steps:
//
//	document, err := manifest.Parse(contentType, body)
//	if document.Config != nil   // one image: read its config, then
//	    facts, err = document.WithConfig(config)
//	if len(document.Children) > 0 // entries that do not say their platform:
//	    facts, err = document.WithChildren(what each of them gave)
//	else                          // the body said it all
//	    facts = document.Facts
//
// An error is a *provider.Error: ClassNotRunnable for content that is well
// formed and no container image, ClassInvalidContent for content that breaks
// its specification or a limit. Beside an error the Document's Kind is set when
// it is known.
//
// Content types are hints only: registries omit them, add parameters, write
// them in the wrong case, and lie. The body decides.
package manifest

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
	"strings"

	sigsjson "sigs.k8s.io/json"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/platform"
)

// The limits. Whatever is beyond them is ClassInvalidContent.
const (
	// MaxManifest is the greatest size of a manifest or index in bytes, the
	// one that the OCI distribution specification asks registries to accept.
	MaxManifest = 4 << 20
	// MaxConfig is the greatest size of an image config in bytes.
	MaxConfig = 8 << 20
	// MaxDepth is how many manifests and indexes may stand on the way from the
	// reference to an image, both ends counted: an index of indexes of images
	// is as deep as it gets. Configs are not counted.
	MaxDepth = 3
	// MaxChildren is how many entries of one index may lack a platform. Each
	// costs one request or two.
	MaxChildren = 64
	// MaxPlatforms is how many different platforms one image may have.
	MaxPlatforms = 256
)

// The media types of what can be read.
const (
	OCIIndex       = "application/vnd.oci.image.index.v1+json"
	OCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	OCIArtifact    = "application/vnd.oci.artifact.manifest.v1+json" // never released; some registries hold it
	OCIConfig      = "application/vnd.oci.image.config.v1+json"
	OCIEmpty       = "application/vnd.oci.empty.v1+json"
	DockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	DockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	DockerConfig   = "application/vnd.docker.container.image.v1+json"
	DockerSchema1  = "application/vnd.docker.distribution.manifest.v1+json"
	DockerSigned1  = "application/vnd.docker.distribution.manifest.v1+prettyjws"
)

// Accepted lists the media types to put into an Accept header, best first.
// Schema 1 stands last: registries that can convert to it must not.
func Accepted() []string {
	return []string{OCIIndex, DockerList, OCIManifest, DockerManifest, DockerSigned1, DockerSchema1}
}

// Facts is what content says about where it runs.
type Facts struct {
	Kind provider.Kind
	// Platforms in the form of platform.Platform.String, sorted, without
	// duplicates.
	Platforms []string
	// ContentOnly is set for data that is no program (OLM bundles). Platforms
	// is empty then.
	ContentOnly bool
	// Warnings for a human, at most a handful; no hostile text unescaped.
	Warnings []string
}

// Descriptor points at content.
type Descriptor struct {
	MediaType string
	Digest    string // valid: sha256 or sha512
	Size      int64
	// Data is the content itself where the descriptor carries it and it has
	// the right digest; else nil.
	Data []byte
	// declared is what an index says, incompletely, of this entry's platform.
	declared platformJSON
}

// Document is one manifest or index, read.
type Document struct {
	// Facts known from the bytes alone. They are the whole answer when Config
	// is nil and Children is empty.
	Facts
	// MediaType that the body turned out to have.
	MediaType string
	// Config to read and give to WithConfig; nil when it is not needed.
	Config *Descriptor
	// Children to read, config included, and give to WithChildren. In the
	// order of the index; at most MaxChildren.
	Children []Descriptor
	// Signed is the payload of a signed schema 1 manifest, whose digest names
	// it; nil for everything else, which is named by the digest of the body.
	Signed []byte
}

// Digest gives the digest that names the document, body being what Parse read:
// that of the payload for a signed schema 1 manifest. like is a digest whose
// algorithm is wanted, usually the one asked for; sha256 when it is empty.
func (d Document) Digest(body []byte, like string) string {
	if d.Signed != nil {
		body = d.Signed
	}
	return Digest(body, like)
}

// Digest gives the digest of body with the algorithm of the digest like; sha256
// when like is empty.
func Digest(body []byte, like string) string {
	if strings.HasPrefix(like, "sha512:") {
		sum := sha512.Sum512(body)
		return "sha512:" + hex.EncodeToString(sum[:])
	}
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

type platformJSON struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	OSVersion    string `json:"os.version"`
	Variant      string `json:"variant"`
}

func (p platformJSON) normalize() (platform.Platform, error) {
	return platform.Normalize(p.OS, p.OSVersion, p.Architecture, p.Variant)
}

type descriptorJSON struct {
	MediaType    string        `json:"mediaType"`
	Digest       string        `json:"digest"`
	Size         int64         `json:"size"`
	Data         []byte        `json:"data"`
	ArtifactType string        `json:"artifactType"`
	Platform     *platformJSON `json:"platform"`
	Annotations  struct {
		// ReferenceType is what BuildKit marks its attestations with.
		ReferenceType *string `json:"vnd.docker.reference.type"`
	} `json:"annotations"`
}

// present notes that a field is there, whatever it holds, without keeping it.
type present bool

// UnmarshalJSON takes every value but null for present.
func (p *present) UnmarshalJSON(value []byte) error {
	*p = present(string(value) != "null")
	return nil
}

type documentJSON struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Manifests    *[]descriptorJSON `json:"manifests"`
	Config       *descriptorJSON   `json:"config"`
	Layers       present           `json:"layers"`
	Blobs        present           `json:"blobs"`

	// Schema 1.
	FSLayers     present `json:"fsLayers"`
	Architecture string  `json:"architecture"`
	History      []struct {
		V1Compatibility string `json:"v1Compatibility"`
	} `json:"history"`
	Signatures []struct {
		Protected string `json:"protected"`
	} `json:"signatures"`
}

// Parse reads a manifest or index. contentType is the header as it was served;
// it is used for a warning and where the body is silent.
func Parse(contentType string, body []byte) (Document, error) {
	if len(body) > MaxManifest {
		return Document{}, invalid("the manifest is larger than %d bytes", MaxManifest)
	}
	var raw documentJSON
	if err := decode(body, &raw); err != nil {
		return Document{}, invalid("the manifest is no valid JSON: %w", err)
	}
	if string(bytes.TrimSpace(body)) == "null" {
		return Document{}, invalid("the manifest is null")
	}
	served := mediaType(contentType)
	document, err := raw.read(served, body)
	if document.MediaType != "" && known(served) && served != document.MediaType {
		document.warn("the registry serves content type %s for %s", served, document.MediaType)
	}
	return document, err
}

func (raw *documentJSON) read(served string, body []byte) (Document, error) {
	declared := mediaType(raw.MediaType)
	index := raw.Manifests != nil
	image := raw.Config != nil || bool(raw.Layers)
	schema1 := bool(raw.FSLayers)
	switch {
	case index && image, index && schema1, image && schema1:
		// Readers that differ in what they take it for are the attack of CVE-2021-41190.
		return Document{}, invalid("the manifest is ambiguous: it has the fields of more than one kind of manifest")
	case index, !image && !schema1 && (indexType(declared) || declared == "" && indexType(served)):
		return raw.index(choose(indexType, OCIIndex, declared, served))
	case schema1:
		return raw.schema1(body)
	case raw.Config != nil && raw.Config.Digest != "":
		return raw.image(choose(manifestType, OCIManifest, declared, served))
	case bool(raw.Blobs) || declared == OCIArtifact:
		return Document{Facts: Facts{Kind: provider.KindArtifact}, MediaType: OCIArtifact},
			notRunnable("it is an artifact, no container image")
	case image || manifestType(declared):
		return Document{}, invalid("the manifest has no config")
	}
	return Document{}, invalid("the content is neither an image manifest nor an index")
}

func (raw *documentJSON) index(mediaType string) (Document, error) {
	document := Document{Facts: Facts{Kind: provider.KindIndex}, MediaType: mediaType}
	var entries []descriptorJSON
	if raw.Manifests != nil {
		entries = *raw.Manifests
	}
	var found platformSet
	var badPlatform, badType tally
	for i := range entries {
		entry := &entries[i]
		switch entry.role() {
		case roleAttestation, roleArtifact:
		case roleForeign:
			badType.add(entry.MediaType)
		case roleChild:
			if !imageref.ValidDigest(entry.Digest) {
				return document, invalid("the index has an entry with the digest %s", provider.Quote(entry.Digest))
			}
			if len(document.Children) == MaxChildren {
				document.Children = nil
				return document, invalid("the index has more than %d entries without a platform", MaxChildren)
			}
			document.Children = append(document.Children, entry.descriptor())
		case rolePlatform:
			p, err := entry.Platform.normalize()
			if err != nil {
				badPlatform.add(message(err))
				continue
			}
			found.add(p.String())
		}
	}
	badPlatform.warn(&document.Facts, "%d of the index's entries have no valid platform and are left out; the first: %s")
	badType.warnQuoted(&document.Facts, "%d of the index's entries are no manifests and are left out; the first is of type %s")
	err := document.settle(&found, badPlatform.count > 0)
	return document, err
}

// settle puts the found platforms into the document and judges an index that
// has none.
func (d *Document) settle(found *platformSet, hadInvalid bool) error {
	if found.overflow {
		return invalid("the index names more than %d platforms", MaxPlatforms)
	}
	d.Platforms = found.sorted()
	switch {
	case len(d.Platforms) > 0 || len(d.Children) > 0:
		return nil
	case hadInvalid:
		return invalid("no entry of the index has a valid platform: %s", strings.Join(d.Warnings, "; "))
	}
	return notRunnable("the index has no entry that a container runtime could run")
}

func (raw *documentJSON) image(mediaType string) (Document, error) {
	document := Document{Facts: Facts{Kind: provider.KindManifest}, MediaType: mediaType}
	if !imageConfigType(raw.Config.MediaType) {
		document.Kind = provider.KindArtifact
		return document, notRunnable("it is an artifact of type %s, no container image", provider.Quote(raw.artifactType()))
	}
	if !imageref.ValidDigest(raw.Config.Digest) {
		return document, invalid("the config has the digest %s", provider.Quote(raw.Config.Digest))
	}
	if raw.Config.Size > MaxConfig {
		return document, invalid("the config is larger than %d bytes", MaxConfig)
	}
	config := raw.Config.descriptor()
	if len(raw.Config.Data) > 0 && config.Data == nil {
		document.warn("the config that the manifest carries does not have the digest %s", config.Digest)
	}
	document.Config = &config
	return document, nil
}

// artifactType gives what an artifact says it is: its own field, in front of
// the type of a config that is empty.
func (raw *documentJSON) artifactType() string {
	if raw.ArtifactType != "" {
		return raw.ArtifactType
	}
	return raw.Config.MediaType
}

type role int

const (
	rolePlatform    role = iota // counts as the platform that it declares
	roleChild                   // must be read
	roleAttestation             // says unknown/unknown or is marked by BuildKit
	roleArtifact                // says that it is no image
	roleForeign                 // is no manifest at all
)

func (d *descriptorJSON) role() role {
	kind := mediaType(d.MediaType)
	switch {
	case d.Annotations.ReferenceType != nil, d.Platform != nil && d.Platform.unknown():
		return roleAttestation
	case d.ArtifactType != "" && !imageConfigType(d.ArtifactType):
		return roleArtifact
	case kind == OCIArtifact:
		return roleArtifact
	case !indexType(kind) && !manifestType(kind) && !schema1Type(kind) && !vague(kind):
		return roleForeign
	case d.Platform == nil || d.Platform.OS == "" || d.Platform.Architecture == "":
		return roleChild
	}
	return rolePlatform
}

// unknown tells whether os or architecture say so; no image's do.
func (p *platformJSON) unknown() bool {
	return strings.EqualFold(p.OS, "unknown") || strings.EqualFold(p.Architecture, "unknown")
}

func (d *descriptorJSON) descriptor() Descriptor {
	descriptor := Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
	if len(d.Data) > 0 && Digest(d.Data, d.Digest) == d.Digest {
		descriptor.Data = d.Data
	}
	if d.Platform != nil {
		descriptor.declared = *d.Platform
	}
	return descriptor
}

func indexType(t string) bool    { return t == OCIIndex || t == DockerList }
func manifestType(t string) bool { return t == OCIManifest || t == DockerManifest }
func schema1Type(t string) bool  { return t == DockerSchema1 || t == DockerSigned1 }
func known(t string) bool {
	return indexType(t) || manifestType(t) || schema1Type(t) || t == OCIArtifact
}

// vague tells whether a media type says nothing about its content.
func vague(t string) bool {
	switch t {
	case "", "application/json", "application/octet-stream", "text/plain", "text/html":
		return true
	}
	return false
}

// imageConfigType tells whether a config descriptor may point at an image
// config. The vague types stand for it in images that registries of 2016 wrote
// (distribution issue 1621); runtimes take them, and the config's content decides.
func imageConfigType(t string) bool {
	t = mediaType(t)
	return t == OCIConfig || t == DockerConfig || vague(t)
}

// mediaType gives a media type in lower case without its parameters.
func mediaType(t string) string {
	if t == "" {
		return ""
	}
	parsed, _, err := mime.ParseMediaType(t)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		parsed, _, _ = strings.Cut(t, ";")
		parsed = strings.ToLower(strings.TrimSpace(parsed))
	}
	return parsed
}

// choose gives the first of the candidates that fits, else the fallback.
func choose(fits func(string) bool, fallback string, candidates ...string) string {
	for _, candidate := range candidates {
		if fits(candidate) {
			return candidate
		}
	}
	return fallback
}

// decode reads JSON strictly where two readers could differ: names of fields
// are case-sensitive and may not come twice, nothing may follow the value.
func decode(body []byte, into any) error {
	twice, err := sigsjson.UnmarshalStrict(body, into, sigsjson.DisallowDuplicateFields)
	if err != nil {
		return errors.New(provider.Printable(err.Error()))
	}
	if len(twice) > 0 {
		return errors.New(provider.Printable(twice[0].Error()))
	}
	return nil
}

func invalid(format string, args ...any) *provider.Error {
	return provider.Errorf(provider.ClassInvalidContent, format, args...)
}

func notRunnable(format string, args ...any) *provider.Error {
	return provider.Errorf(provider.ClassNotRunnable, format, args...)
}

func message(err error) string {
	var known *provider.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return err.Error()
}

func (f *Facts) warn(format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}
