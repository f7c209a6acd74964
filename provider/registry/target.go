package registry

import (
	"context"
	"errors"
	"strings"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// maxCandidates bounds the places where one image is looked for.
const maxCandidates = 32

// maxCredentials bounds the credentials tried at one place.
const maxCredentials = 16

// candidate is one place to look, with what may be shown there.
type candidate struct {
	location
	ref    imageref.Reference // at this place
	source imageref.Reference // that the user meant
	mirror bool
	creds  []credentials.Credential // in order; anonymous is tried after them
}

// content names what is asked for below /manifests/: the digest, or the tag.
func (c *candidate) content() string {
	if d := c.ref.Digest(); d != "" {
		return d
	}
	return c.ref.Tag()
}

// factsKey names the facts of a digest at this place's host. They are shared by
// all who can reach the digest there; what another host says of it is its own.
func (c *candidate) factsKey(digest string) cache.Key {
	return cache.KeyOf("facts", c.host, digest)
}

// seenKey names the hint that somebody was given an answer for this reference.
func (c *candidate) seenKey() cache.Key {
	return cache.KeyOf("seen", c.registry, c.repository, c.content())
}

// credential gives the one at a position of the caller's list; -1 and beyond
// is anonymous.
func (c *candidate) credential(n int) credentials.Credential {
	if n < 0 || n >= len(c.creds) {
		return credentials.Anonymous()
	}
	return c.creds[n]
}

// target is a query made ready: where to look, with what, and the key under
// which the answer is kept.
type target struct {
	ref        imageref.Reference
	candidates []candidate
	key        cache.Key
	public     bool // no credential is at hand
	blocked    bool // the source itself may not be contacted
	// keychainErr is why some credentials may be missing.
	keychainErr error
}

// target makes a query ready, or says why it has no answer.
func (i *Inspector) target(ctx context.Context, q provider.Query) (*target, *provider.Error) {
	ref, err := imageref.Parse(q.Image)
	if err != nil {
		return nil, asError(err)
	}
	config := i.options.Mirrors()
	tg := &target{ref: ref}
	sources := []imageref.Reference{ref}
	if searched := searchedAt(q.Image, config.SearchRegistries()); len(searched) > 0 {
		sources, tg.ref = searched, searched[0]
	}
	var resolveErr *provider.Error
	for _, source := range sources {
		resolution := config.Resolve(source)
		tg.blocked = tg.blocked || resolution.Blocked
		if resolution.Err != nil {
			resolveErr = resolution.Err
		}
		for _, place := range resolution.Candidates {
			if len(tg.candidates) == maxCandidates {
				break
			}
			tg.candidates = append(tg.candidates, candidate{
				location: location{
					registry: place.Reference.Registry(), host: dialHost(place.Reference.Registry()),
					repository: place.Reference.Repository(), insecure: place.Insecure,
				},
				ref: place.Reference, source: source, mirror: place.Reference.Name() != source.Name(),
			})
		}
	}
	if len(tg.candidates) == 0 {
		if resolveErr != nil {
			return tg, resolveErr
		}
		return tg, provider.Errorf(provider.ClassBlocked, "%s is blocked by the registry configuration", tg.ref.Name())
	}
	if err := i.permit(tg); err != nil {
		return tg, err
	}
	i.findCredentials(ctx, q.Scope, tg)
	tg.key = tg.keyFor(func(c *candidate) string { return c.content() })
	return tg, nil
}

// permit drops the candidates whose registry may not be asked at all.
func (i *Inspector) permit(tg *target) *provider.Error {
	var allowed []candidate
	var refusal error
	for _, c := range tg.candidates {
		if err := i.options.Reach.Permits(c.registry); err != nil {
			refusal = err
			continue
		}
		allowed = append(allowed, c)
	}
	if len(allowed) == 0 {
		return wrap(provider.ClassBlocked, refusal.Error(), refusal)
	}
	tg.candidates = allowed
	return nil
}

func (i *Inspector) findCredentials(ctx context.Context, scope provider.Scope, tg *target) {
	tg.public = true
	if i.options.Keychain == nil {
		return
	}
	var failed []error
	for n := range tg.candidates {
		c := &tg.candidates[n]
		found, err := i.options.Keychain.Lookup(ctx, scope, c.ref.Name())
		if err != nil {
			failed = append(failed, err)
		}
		c.creds = found[:min(len(found), maxCredentials)]
		tg.public = tg.public && len(found) == 0
	}
	tg.keychainErr = errors.Join(failed...)
}

// keyFor hashes every place with what may be shown there, in order: callers
// share a key exactly when a registry could not tell them apart.
func (tg *target) keyFor(content func(*candidate) string) cache.Key {
	parts := make([]string, 0, 8)
	parts = append(parts, "tag")
	for n := range tg.candidates {
		c := &tg.candidates[n]
		security := "verified"
		if c.insecure {
			security = "insecure"
		}
		parts = append(parts, c.registry, c.repository, content(c), security)
		for _, credential := range c.creds {
			fingerprint := credential.Fingerprint()
			parts = append(parts, string(fingerprint[:]))
		}
		parts = append(parts, "")
	}
	return cache.KeyOf(parts...)
}

// pinned gives the key of the same image by digest, when it would be looked for
// at the same places.
func (tg *target) pinned(config *mirrors.Config, digest string) (cache.Key, bool) {
	ref, err := imageref.Parse(tg.ref.Name() + "@" + digest)
	if err != nil {
		return cache.Key{}, false
	}
	places := config.Resolve(ref).Candidates
	if len(places) != len(tg.candidates) {
		return cache.Key{}, false
	}
	for n, place := range places {
		if c := &tg.candidates[n]; place.Reference.Name() != c.ref.Name() || place.Insecure != c.insecure {
			return cache.Key{}, false
		}
	}
	return tg.keyFor(func(*candidate) string { return digest }), true
}

// searchedAt gives the references that a name without a registry stands for,
// when the configuration lists registries to search.
// Rule: containers-registries.conf(5), unqualified-search-registries.
func searchedAt(image string, hosts []string) []imageref.Reference {
	if len(hosts) == 0 {
		return nil
	}
	first, _, slash := strings.Cut(image, "/")
	if slash && (strings.ContainsAny(first, ".:") || first == "localhost") {
		return nil
	}
	var refs []imageref.Reference
	for _, host := range hosts {
		if ref, err := imageref.Parse(host + "/" + image); err == nil {
			refs = append(refs, ref)
		}
	}
	return refs
}

func asError(err error) *provider.Error {
	var known *provider.Error
	if errors.As(err, &known) {
		return known
	}
	return wrap(provider.ClassInternal, "the look-up failed in a way that it should not", err)
}
