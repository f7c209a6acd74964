// Package imageref reads image references as the kubelet and the container
// runtimes do, and writes them in one canonical form.
//
// The parser is go-containerregistry's name package. What that parser lets
// through and a runtime would not (path components such as "..", tags that
// begin with a dot, hosts that are no host names) is refused here, by the
// grammar of the OCI distribution specification ("Pulling manifests") and of
// the reference grammar that kubelet, containerd and CRI-O share.
package imageref

import (
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/archkeeper/archkeeper/provider"
)

const (
	// MaxLength of a reference in bytes. Its longest legal parts (host 253,
	// port, repository 255, tag 128, sha512 digest 135) stay below it.
	MaxLength = 1024

	hub         = "docker.io"
	maxHost     = 253
	maxPath     = 255
	maxTag      = 128
	defaultTag  = "latest"
	hexIDLength = 64
)

// Reference is a parsed image reference. It is comparable: equal References
// name the same thing. The zero Reference names nothing.
type Reference struct {
	registry, repository, tag, digest string
}

// Parse reads a reference as a user writes it in a pod. It never trims and
// never repairs: white space is malformed. Errors are *provider.Error of
// ClassMalformed and quote what is wrong, escaped and cut.
//
//   - docker.io and index.docker.io are one registry, written docker.io, and a
//     repository of one component there gets the prefix library/.
//   - The part before the first slash is a host when it is localhost or has a
//     dot or a colon: localhost/x, registry:5000/x, [::1]:5000/x. A host with
//     capitals is kept as written, as runtimes do.
//   - Without tag and digest the tag is latest. Beside a digest a tag is kept,
//     and no tag is made up.
//   - Digests are sha256 or sha512, in lower case.
func Parse(text string) (Reference, error) {
	if err := checkCharacters(text); err != nil {
		return Reference{}, err
	}
	if scheme, _, found := strings.Cut(text, "://"); found {
		return Reference{}, malformed(text, "it must not begin with a scheme such as %s", provider.Quote(scheme+"://"))
	}
	base, dig, pinned := strings.Cut(text, "@")
	if pinned {
		if err := checkDigest(text, dig); err != nil {
			return Reference{}, err
		}
	}
	// An empty default tag tells "no tag" from "latest".
	parsed, err := name.NewTag(base, name.WithDefaultTag(""))
	if err != nil {
		return Reference{}, refused(text, base)
	}
	ref := Reference{registry: parsed.RegistryStr(), repository: parsed.RepositoryStr(), tag: parsed.TagStr(), digest: dig}
	if ref.registry == name.DefaultRegistry {
		ref.registry = hub
	}
	if ref.tag == "" && !pinned {
		ref.tag = defaultTag
	}
	if err := ref.check(text); err != nil {
		return Reference{}, err
	}
	if len(base) == hexIDLength && lowerHex(base) {
		return Reference{}, malformed(text, "%d hexadecimal digits are an image ID, not a name", hexIDLength)
	}
	return ref, nil
}

// Registry gives host[:port]; docker.io for Docker Hub.
func (r Reference) Registry() string { return r.registry }

// Repository gives the path without the registry, such as library/busybox.
func (r Reference) Repository() string { return r.repository }

// Name gives registry/repository.
func (r Reference) Name() string { return r.registry + "/" + r.repository }

// Tag is latest when the reference gave neither tag nor digest, and empty only
// when it gave a digest alone.
func (r Reference) Tag() string { return r.tag }

// Digest is algorithm:hex, or empty. Where there is one it decides what is
// meant, whatever the tag says.
func (r Reference) Digest() string { return r.digest }

// String gives the canonical form, registry/repository[:tag][@digest]. Parse
// reads it back to an equal Reference. Empty for the zero Reference.
func (r Reference) String() string {
	if r == (Reference{}) {
		return ""
	}
	text := r.Name()
	if r.tag != "" {
		text += ":" + r.tag
	}
	if r.digest != "" {
		text += "@" + r.digest
	}
	return text
}

// WithName gives the same tag and digest at another place, written
// registry/repository, as a mirror keeps them. A name with a tag or a digest of
// its own is malformed.
func (r Reference) WithName(place string) (Reference, error) {
	other, err := Parse(place)
	if err != nil {
		return Reference{}, err
	}
	if other.digest != "" || strings.HasSuffix(place, ":"+other.tag) {
		return Reference{}, malformed(place, "a name without tag and digest is needed")
	}
	other.tag, other.digest = r.tag, r.digest
	return other, nil
}

// WithDigest gives the same reference pinned to a digest; the tag is kept.
func (r Reference) WithDigest(dig string) (Reference, error) {
	if err := checkDigest(r.Name()+"@"+dig, dig); err != nil {
		return Reference{}, err
	}
	r.digest = dig
	return r, nil
}

func (r Reference) check(text string) error {
	host, path := r.registry, r.repository
	if !validHost(host) {
		return malformed(text, "%s is no registry host", provider.Quote(host))
	}
	if len(path) > maxPath {
		return malformed(text, "the repository is longer than %d characters", maxPath)
	}
	if !validPath(path) {
		return malformed(text, "%s is no repository", provider.Quote(path))
	}
	if r.tag != "" && !validTag(r.tag) {
		return malformed(text, "%s is no tag", provider.Quote(r.tag))
	}
	return nil
}

func checkCharacters(text string) error {
	if text == "" {
		return provider.Errorf(provider.ClassMalformed, "the image reference is empty")
	}
	if len(text) > MaxLength {
		return malformed(text, "it is longer than %d bytes", MaxLength)
	}
	for _, r := range text {
		if r == ' ' || r == '\t' || r == '\n' || r == '\r' || r == '\v' || r == '\f' {
			return malformed(text, "it contains white space")
		}
		if r <= ' ' || r >= 0x7f {
			return malformed(text, "it contains the character %s", strconv.QuoteRuneToASCII(r))
		}
	}
	return nil
}

func checkDigest(text, dig string) error {
	if strings.Contains(dig, "@") {
		return malformed(text, "it has two digests")
	}
	if !ValidDigest(dig) {
		return malformed(text, "%s is no sha256 or sha512 digest", provider.Quote(dig))
	}
	return nil
}

// refused says in our words why the parser did not take base.
func refused(text, base string) error {
	path := base
	if host, rest, found := strings.Cut(base, "/"); found && strings.ContainsAny(host, ".:") {
		path = rest
	}
	switch {
	case base == "":
		return malformed(text, "it names no repository")
	case strings.HasSuffix(base, ":"):
		return malformed(text, "the tag after the colon is empty")
	case strings.ContainsAny(strings.SplitN(path, ":", 2)[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
		return malformed(text, "a repository must be in lower case")
	}
	return malformed(text, "it is not of the form [host[:port]/]repository[:tag][@digest]")
}

func malformed(text, format string, args ...any) error {
	err := provider.Errorf(provider.ClassMalformed, format, args...)
	err.Message = "image reference " + provider.Quote(text) + " is malformed: " + err.Message
	return err
}
