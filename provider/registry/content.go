package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/manifest"
	"github.com/archkeeper/archkeeper/provider/platform"
)

const (
	// headBadLife is how long a host is remembered not to do HEAD well.
	headBadLife = time.Hour

	// maxReads bounds the manifests and configs that are read for one image.
	maxReads = 160
	// parallelReads of one image's children.
	parallelReads = 8
)

// acceptManifest gives the Accept header of a request for a manifest.
func acceptManifest() string { return strings.Join(manifest.Accepted(), ", ") }

// found is what a look-up came to.
type found struct {
	facts    *cache.Facts
	key      cache.Key // of facts
	position int       // of the credential in the candidate's list; -1 for anonymous
}

// errKept is the outcome of a refresh that would have cost a pull when pulls
// are short and nobody waits: what is known stays.
var errKept = provider.Errorf(provider.ClassInternal, "the refresh was put off")

// lookup asks one candidate, with each credential in turn and then with none.
// first is the position of the credential that worked last, or -1.
func (i *Inspector) lookup(ctx context.Context, f *flight, c *candidate, first int, headFirst bool) (found, *provider.Error) {
	order := make([]int, 0, len(c.creds)+1)
	if first >= 0 && first < len(c.creds) {
		order = append(order, first)
	}
	for n := range c.creds {
		if n != first {
			order = append(order, n)
		}
	}
	order = append(order, -1)
	var refusal *provider.Error
	for _, n := range order {
		facts, key, err := i.lookupAs(ctx, f, c, c.credential(n), headFirst)
		if err == nil {
			return found{facts, key, n}, nil
		}
		if !refused(err) {
			return found{}, err
		}
		// What a credential was told weighs more than what nobody was told.
		if refusal == nil || err.Class == provider.ClassNotFound && n >= 0 {
			refusal = err
		}
	}
	return found{}, refusal
}

// lookupAs asks one candidate with one credential: by HEAD where the digest is
// likely known, else by GET.
func (i *Inspector) lookupAs(ctx context.Context, f *flight, c *candidate, cred credentials.Credential, headFirst bool) (*cache.Facts, cache.Key, *provider.Error) {
	state := i.transport.state(c.host, c.insecure)
	asked := c.ref.Digest()
	if asked != "" {
		_, headFirst = i.cache.Facts(c.factsKey(asked))
	}
	headDigest := ""
	if headFirst && state.usesHead(i.clock.Now()) {
		digest, err := i.head(ctx, c, cred)
		switch {
		case err == nil && digest != "" && (asked == "" || asked == digest):
			key := c.factsKey(digest)
			facts, ok := i.cache.Facts(key)
			if !ok {
				facts, ok = i.cache.SharedFacts(ctx, key)
			}
			if ok {
				state.setHead(headGood, i.clock.Now())
				return i.public(key, facts, cred), key, nil
			}
			headDigest = digest
		case err == nil:
			state.setHead(headBad, i.clock.Now())
		case !headRefused(err) || state.headIs(headGood):
			return nil, cache.Key{}, err
		}
	}
	if f.optional() && state.quotaLow(who(cred.Fingerprint()), i.clock.Now()) {
		return nil, cache.Key{}, errKept
	}
	facts, key, err := i.get(ctx, c, cred)
	if err != nil {
		return nil, key, err
	}
	if headFirst && asked == "" {
		switch headDigest {
		case facts.Digest:
			state.setHead(headGood, i.clock.Now())
		default: // refused, silent, or a lie
			state.setHead(headBad, i.clock.Now())
		}
	} else if headFirst {
		state.setHead(headBad, i.clock.Now())
	}
	return facts, key, nil
}

// public notes that content was given to an anonymous caller.
func (i *Inspector) public(key cache.Key, facts *cache.Facts, cred credentials.Credential) *cache.Facts {
	if !cred.Anonymous() || facts.Public {
		return facts
	}
	known := *facts
	known.Public = true
	return i.cache.PutFacts(key, &known)
}

// headRefused tells whether a HEAD's failure may be the method's alone.
func headRefused(err *provider.Error) bool {
	switch err.HTTPStatus {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return false
}

func (s *hostState) usesHead(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head != headBad || !now.Before(s.headUntil)
}

func (s *hostState) headIs(h headState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head == h
}

func (s *hostState) setHead(h headState, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head, s.headUntil = h, now.Add(headBadLife)
}

// head gives the digest that a registry says a reference has; "" when it does
// not say, or says no digest.
func (i *Inspector) head(ctx context.Context, c *candidate, cred credentials.Credential) (string, *provider.Error) {
	answer, err := i.transport.do(ctx, &request{
		location: c.location, method: http.MethodHead, path: "manifests/" + c.content(), accept: acceptManifest(),
		what: c.describe(), unit: "manifest", cred: cred,
	})
	if err != nil {
		return "", err
	}
	digest := answer.header.Get("Docker-Content-Digest")
	if !imageref.ValidDigest(digest) {
		return "", nil
	}
	return digest, nil
}

// describe gives repository:tag or repository@digest, for messages.
func (c *candidate) describe() string {
	if d := c.ref.Digest(); d != "" {
		return c.repository + "@" + d
	}
	return c.repository + ":" + c.ref.Tag()
}

// get reads a reference whole and keeps what it learnt.
func (i *Inspector) get(ctx context.Context, c *candidate, cred credentials.Credential) (*cache.Facts, cache.Key, *provider.Error) {
	asked := c.ref.Digest()
	answer, err := i.transport.do(ctx, &request{
		location: c.location, method: http.MethodGet, path: "manifests/" + c.content(), accept: acceptManifest(),
		what: c.describe(), limit: manifest.MaxManifest, unit: "manifest", cred: cred, pull: true,
	})
	if err != nil {
		return nil, cache.Key{}, err
	}
	document, parseErr := manifest.Parse(answer.header.Get("Content-Type"), answer.body)
	digest := document.Digest(answer.body, asked)
	if said := answer.header.Get("Docker-Content-Digest"); imageref.ValidDigest(said) && said != document.Digest(answer.body, said) {
		// A registry that does not know its own digests is not asked for them.
		i.transport.state(c.host, c.insecure).setHead(headBad, i.clock.Now())
	}
	if parseErr != nil && truncated(answer.body) && !vouched(answer, asked) {
		return nil, cache.Key{}, describeErr(c, http.StatusOK, provider.Errorf(provider.ClassUnreachable, "the manifest was cut short"))
	}
	if asked != "" && digest != asked {
		return nil, cache.Key{}, describeErr(c, http.StatusOK, provider.Errorf(provider.ClassInvalidContent, "the content has the digest %s", digest))
	}
	key := c.factsKey(digest)
	if known, ok := i.cache.Facts(key); ok {
		return i.public(key, known, cred), key, nil
	}
	reading := &reading{inspector: i, candidate: c, cred: cred}
	facts, readErr := manifest.Facts{Kind: document.Kind}, parseErr
	if parseErr == nil {
		facts, readErr = reading.document(ctx, document, 1)
	}
	learnt := &cache.Facts{
		Digest: digest, Kind: facts.Kind, Platforms: facts.Platforms, Architectures: platform.Architectures(facts.Platforms),
		ContentOnly: facts.ContentOnly, Warnings: facts.Warnings, Public: cred.Anonymous(),
	}
	if learnt.Kind == "" {
		learnt.Kind = document.Kind
	}
	if readErr != nil {
		failed := asError(readErr)
		if failed.Class.Retryable() {
			return nil, key, failed
		}
		learnt.Err = failed // names no reference: others share it
		learnt.Platforms, learnt.Architectures, learnt.ContentOnly = nil, nil, false
		if reading.doubtful.Load() {
			return nil, key, describeErr(c, http.StatusOK, failed)
		}
	}
	return i.cache.PutFacts(key, learnt), key, nil
}

// describeErr puts the image in front of a verdict on its content.
func describeErr(c *candidate, status int, err *provider.Error) *provider.Error {
	described := *err
	described.Message = c.registry + "/" + c.describe() + ": " + err.Message
	if described.HTTPStatus == 0 {
		described.HTTPStatus = status
	}
	return &described
}

// truncated tells whether a body is the beginning of a JSON value.
func truncated(body []byte) bool {
	var syntax *json.SyntaxError
	var value json.RawMessage
	err := json.Unmarshal(body, &value)
	return errors.As(err, &syntax) && syntax.Offset >= int64(len(body)) && strings.HasPrefix(syntax.Error(), "unexpected end")
}

// vouched tells whether a digest says that the body is what was meant.
func vouched(answer *response, asked string) bool {
	if asked == "" {
		asked = answer.header.Get("Docker-Content-Digest")
	}
	return imageref.ValidDigest(asked) && manifest.Digest(answer.body, asked) == asked
}

// reading is the work on one image's content, below its first document.
type reading struct {
	inspector *Inspector
	candidate *candidate
	cred      credentials.Credential
	reads     atomic.Int32
	// doubtful is set when a verdict is on what a registry did, not on content
	// whose digest was seen: it is no fact about the image.
	doubtful atomic.Bool
}

// document reads what a document points at. depth is 1 for the first document.
func (r *reading) document(ctx context.Context, d manifest.Document, depth int) (manifest.Facts, error) {
	switch {
	case d.Config != nil:
		config, err := r.fetch(ctx, "blobs/", d.Config, manifest.MaxConfig, "config")
		if err != nil {
			return d.Facts, err
		}
		return d.WithConfig(config.body)
	case len(d.Children) > 0:
		if depth >= manifest.MaxDepth {
			return d.Facts, provider.Errorf(provider.ClassInvalidContent, "indexes are nested deeper than %d", manifest.MaxDepth)
		}
		return d.WithChildren(r.children(ctx, d.Children, depth+1))
	}
	return d.Facts, nil
}

// children reads the entries of an index, each digest once.
func (r *reading) children(ctx context.Context, entries []manifest.Descriptor, depth int) []manifest.Child {
	outcomes := make([]manifest.Child, len(entries))
	first := map[string]int{}
	var group errgroup.Group
	group.SetLimit(parallelReads)
	var mu sync.Mutex
	stop := false
	for n := range entries {
		if _, ok := first[entries[n].Digest]; ok {
			continue
		}
		first[entries[n].Digest] = n
		group.Go(func() error {
			mu.Lock()
			skip := stop
			mu.Unlock()
			if skip {
				return nil // the index is unknown already
			}
			facts, err := r.child(ctx, &entries[n], depth)
			mu.Lock()
			defer mu.Unlock()
			outcomes[n] = manifest.Child{Facts: facts, Err: err}
			stop = stop || err != nil && asError(err).Class.Retryable()
			return nil
		})
	}
	_ = group.Wait() // the work reports by outcomes
	for n := range entries {
		outcomes[n] = outcomes[first[entries[n].Digest]]
	}
	return outcomes
}

func (r *reading) child(ctx context.Context, entry *manifest.Descriptor, depth int) (manifest.Facts, error) {
	answer, err := r.fetch(ctx, "manifests/", entry, manifest.MaxManifest, "manifest")
	if err != nil {
		return manifest.Facts{}, err
	}
	contentType := answer.header.Get("Content-Type")
	if contentType == "" {
		contentType = entry.MediaType
	}
	document, parseErr := manifest.Parse(contentType, answer.body)
	if parseErr != nil {
		return document.Facts, parseErr
	}
	return r.document(ctx, document, depth)
}

// fetch gives the content that a descriptor points at, its digest checked.
// Facts that are kept for the digest are not used: an index may name any
// digest, that of content included which its reader may not see.
func (r *reading) fetch(ctx context.Context, path string, d *manifest.Descriptor, limit int64, unit string) (*response, error) {
	if d.Data != nil {
		return &response{status: http.StatusOK, header: http.Header{}, body: d.Data}, nil
	}
	if r.reads.Add(1) > maxReads {
		return nil, provider.Errorf(provider.ClassInvalidContent, "the image has more than %d parts to read", maxReads)
	}
	what := r.candidate.repository + "@" + d.Digest
	ask := &request{
		location: r.candidate.location, method: http.MethodGet, path: path + d.Digest, what: what, limit: limit, unit: unit, cred: r.cred,
	}
	if unit == "manifest" {
		ask.accept, ask.pull = acceptManifest(), true
	}
	answer, failed := r.inspector.transport.do(ctx, ask)
	if failed != nil {
		if !failed.Class.Retryable() {
			r.doubtful.Store(true)
		}
		return nil, failed
	}
	if got := manifest.Digest(answer.body, d.Digest); got != d.Digest && !r.signed(answer, d.Digest) {
		if truncated(answer.body) {
			return nil, provider.Errorf(provider.ClassUnreachable, "registry %s: the %s of %s was cut short", r.candidate.registry, unit, what)
		}
		r.doubtful.Store(true)
		return nil, fmt.Errorf("%w", provider.Errorf(provider.ClassInvalidContent, "the %s %s has the digest %s", unit, d.Digest, got))
	}
	return answer, nil
}

// signed tells whether a body is a signed schema 1 manifest that a digest names.
func (r *reading) signed(answer *response, digest string) bool {
	document, err := manifest.Parse(answer.header.Get("Content-Type"), answer.body)
	return err == nil && document.Signed != nil && document.Digest(answer.body, digest) == digest
}
