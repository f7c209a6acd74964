package registry

import (
	"context"
	"errors"
	"slices"
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
	// canonical is source written out, and place is ref without tag and digest.
	canonical, place string
	creds            []credentials.Credential // in order; anonymous is tried after them
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
	canonical  string // ref written out
	candidates []candidate
	key        cache.Key
	public     bool // no credential is at hand
	blocked    bool // the source itself may not be contacted
	// keychainErr is why some credentials may be missing.
	keychainErr error
}

// target makes a query ready, or says why it has no answer. What it gives may be
// shared: treat it as immutable.
func (i *Inspector) target(ctx context.Context, q provider.Query) (*target, *provider.Error) {
	p, err := i.plan(q.Image)
	if err != nil {
		return nil, err
	}
	if p.err != nil {
		return &p.target, p.err
	}
	return i.withCredentials(ctx, q.Scope, &p.target), nil
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

// withCredentials gives a target with the credentials that a scope may show, or
// the same one when there are none.
func (i *Inspector) withCredentials(ctx context.Context, scope provider.Scope, planned *target) *target {
	if i.options.Keychain == nil {
		return planned
	}
	tg := planned
	var failed []error
	for n := range planned.candidates {
		found, err := i.options.Keychain.Lookup(ctx, scope, planned.candidates[n].place)
		if err != nil {
			failed = append(failed, err)
		}
		if len(found) == 0 {
			continue
		}
		if tg == planned {
			own := *planned
			own.candidates = slices.Clone(planned.candidates)
			own.public = false
			tg = &own
		}
		tg.candidates[n].creds = found[:min(len(found), maxCredentials)]
	}
	if len(failed) > 0 {
		if tg == planned {
			own := *planned
			tg = &own
		}
		tg.keychainErr = errors.Join(failed...)
	}
	if !tg.public {
		tg.key = tg.keyFor(func(c *candidate) string { return c.content() })
	}
	return tg
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
