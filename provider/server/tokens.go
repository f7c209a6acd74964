package server

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
)

// Limits of the checking of tokens.
const (
	// DefaultTokenTTL is for how long a token that was found good is not
	// checked again. A revoked token lives that long at most.
	DefaultTokenTTL = 15 * time.Second
	// DefaultTokenTimeout bounds the two questions to the API server together.
	DefaultTokenTimeout = 3 * time.Second

	maxRememberedTokens = 1024
	maxTokenChecks      = 16      // at a time
	maxTokenSize        = 8 << 10 // bytes
)

// TokenOptions say how bearer tokens are checked.
type TokenOptions struct {
	// Reviews and Access are the API server's two questions. Both are needed.
	Reviews authenticationclient.TokenReviewInterface
	Access  authorizationclient.SubjectAccessReviewInterface
	// Clock for the memory of good tokens; the real one when nil.
	Clock clock.PassiveClock
	// TTL of a good token; DefaultTokenTTL when 0.
	TTL time.Duration
	// Timeout of one check; DefaultTokenTimeout when 0.
	Timeout time.Duration
	// Log takes failures of the API server; nothing is logged when nil.
	Log *slog.Logger
}

// Tokens prove callers by a bearer token: TokenReview says whose it is,
// SubjectAccessReview whether that user may use the method's verb on the
// path as a non-resource URL. Only yes is remembered, for a short time, under
// a keyed hash; the token itself is not kept.
type Tokens struct {
	o       TokenOptions
	key     []byte
	flights singleflight.Group
	slots   chan struct{}

	mu   sync.Mutex
	good map[[sha256.Size]byte]time.Time // until when
}

// NewTokens makes a Tokens.
func NewTokens(o TokenOptions) *Tokens {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.TTL <= 0 {
		o.TTL = DefaultTokenTTL
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTokenTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails: crypto/rand ends the process instead
	return &Tokens{o: o, key: key, slots: make(chan struct{}, maxTokenChecks), good: map[[sha256.Size]byte]time.Time{}}
}

// check tells whether the token's user may use verb on path; nil is a yes.
func (t *Tokens) check(ctx context.Context, token, path, verb string) *refusal {
	if token == "" || len(token) > maxTokenSize {
		return &refusal{http.StatusUnauthorized, reasonToken, "the Authorization header holds no usable bearer token"}
	}
	mark := t.fingerprint(token, path, verb)
	if t.remembered(mark) {
		return nil
	}
	// Concurrent asks share one check, on a context of its own: a caller who
	// leaves does not spoil it for the others.
	flight := t.flights.DoChan(string(mark[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.o.Timeout)
		defer cancel()
		select {
		case t.slots <- struct{}{}:
			defer func() { <-t.slots }()
		case <-ctx.Done():
			return unchecked("too many tokens are being checked"), nil
		}
		refused := t.ask(ctx, token, path, verb)
		if refused == nil {
			t.remember(mark)
		}
		return refused, nil
	})
	select {
	case result := <-flight:
		refused, _ := result.Val.(*refusal)
		return refused
	case <-ctx.Done():
		return unchecked("the caller left before the token was checked")
	}
}

func unchecked(why string) *refusal {
	return &refusal{http.StatusServiceUnavailable, reasonUnchecked, "the bearer token could not be checked: " + why}
}

func (t *Tokens) ask(ctx context.Context, token, path, verb string) *refusal {
	review, err := t.o.Reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		t.o.Log.Warn("could not review a bearer token", "error", err)
		return unchecked("the Kubernetes API server did not answer the TokenReview")
	}
	if !review.Status.Authenticated {
		return &refusal{http.StatusUnauthorized, reasonToken, "the Kubernetes API server does not accept the bearer token"}
	}
	user := review.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	access, err := t.o.Access.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.o.Log.Warn("could not review a caller's access", "path", path, "verb", verb, "error", err)
		return unchecked("the Kubernetes API server did not answer the SubjectAccessReview")
	}
	if !access.Status.Allowed || access.Status.Denied {
		return &refusal{http.StatusForbidden, reasonForbidden,
			"user " + user.Username + " may not " + verb + " the non-resource URL " + path}
	}
	return nil
}

func (t *Tokens) fingerprint(token, path, verb string) [sha256.Size]byte {
	mac := hmac.New(sha256.New, t.key)
	// Neither a path nor a verb of ours holds a NUL.
	mac.Write([]byte(verb + "\x00" + path + "\x00" + token))
	return [sha256.Size]byte(mac.Sum(nil))
}

func (t *Tokens) remembered(mark [sha256.Size]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.good[mark]
	return ok && t.o.Clock.Now().Before(until)
}

func (t *Tokens) remember(mark [sha256.Size]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Clock.Now()
	if len(t.good) >= maxRememberedTokens {
		for p, until := range t.good {
			if !now.Before(until) {
				delete(t.good, p)
			}
		}
	}
	if len(t.good) >= maxRememberedTokens {
		for p := range t.good { // all of them still good: one makes room
			delete(t.good, p)
			break
		}
	}
	t.good[mark] = now.Add(t.o.TTL)
}
