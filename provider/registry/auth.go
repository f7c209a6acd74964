package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/archkeeper/archkeeper/provider"
)

const (
	// defaultTokenLife is what the token specification says of a token without
	// expires_in. Source: distribution, "Token Authentication Specification".
	defaultTokenLife = time.Minute
	maxTokenLife     = 12 * time.Hour
	maxTokenBody     = 1 << 20
	maxTokens        = 16384
	// refusalLife is how long a token service's refusal is believed: a list of
	// images must not try a wrong password once for each.
	refusalLife = 10 * time.Second
	clientID    = "archkeeper"
)

// authorize gives the Authorization header for a request: "" for none. scope is
// what the last challenge asked for, or "" for the usual one. fromCache is true
// when the header is a token that was kept from before.
func (t *transport) authorize(ctx context.Context, state *hostState, r *request, scope string) (header string, fromCache bool, err *provider.Error) {
	auth := r.cred.AuthConfig()
	if auth.RegistryToken != "" {
		return "Bearer " + auth.RegistryToken, false, nil
	}
	known := state.lastChallenge()
	if known == nil || known.scheme == "basic" {
		// Basic is shown unasked: the registry that takes it saves a request,
		// and the one that wants a token sends its challenge all the same.
		if auth.Username == "" && auth.Password == "" {
			return "", false, nil
		}
		return basic(auth), false, nil
	}
	return t.tokens.get(ctx, t, tokenKey{
		host: r.host, insecure: r.insecure, realm: known.parameters["realm"], service: known.parameters["service"], scope: r.scope(scope), who: r.who(),
	}, r, auth)
}

// scope gives what a challenge asked for, or else what a pull needs.
func (r *request) scope(asked string) string {
	if asked != "" {
		return asked
	}
	return "repository:" + r.repository + ":pull"
}

func basic(auth authn.AuthConfig) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(auth.Username+":"+auth.Password))
}

// tokenKey names a token. The host is part of it, so that a host that names
// another's realm is never shown the other's tokens.
type tokenKey struct {
	host, realm, service, scope string
	insecure                    bool
	who                         who
}

// tokens keeps bearer tokens: at most one exchange for a key at a time, the
// next one begun before the kept token ends.
type tokens struct {
	clock clock.Clock
	// background runs a renewal that nobody waits for; false when it cannot.
	background func(func(context.Context)) bool

	mu   sync.Mutex
	kept map[tokenKey]*token
}

type token struct {
	header   string
	renewAt  time.Time
	expires  time.Time
	exchange chan struct{} // closed when the running exchange is over; nil when none runs
	err      *provider.Error
	errUntil time.Time // until then a refusal is not asked for again
}

func newTokens(c clock.Clock, background func(func(context.Context)) bool) *tokens {
	return &tokens{clock: c, background: background, kept: map[tokenKey]*token{}}
}

// get gives a token that is good now.
func (s *tokens) get(ctx context.Context, t *transport, key tokenKey, r *request, auth authn.AuthConfig) (header string, fromCache bool, err *provider.Error) {
	for {
		s.mu.Lock()
		kept := s.kept[key]
		if kept == nil {
			s.bound()
			kept = &token{}
			s.kept[key] = kept
		}
		now := s.clock.Now()
		if kept.header != "" && now.Before(kept.expires) {
			header := kept.header
			renew := kept.exchange == nil && !now.Before(kept.renewAt)
			if renew {
				kept.exchange = make(chan struct{})
			}
			s.mu.Unlock()
			if renew && !s.background(func(ctx context.Context) { s.renew(ctx, t, key, kept, r, auth) }) {
				s.mu.Lock()
				close(kept.exchange)
				kept.exchange = nil
				s.mu.Unlock()
			}
			return header, true, nil
		}
		if running := kept.exchange; running != nil {
			s.mu.Unlock()
			select {
			case <-running:
			case <-ctx.Done():
				return "", false, timeoutError(ctx, r.registry, "waiting for a token")
			}
			s.mu.Lock()
			header, err := kept.header, kept.err
			s.mu.Unlock()
			switch {
			case err == nil && header != "":
				return header, false, nil
			case err != nil && (err.Class != provider.ClassTimeout || ctx.Err() != nil):
				return "", false, err
			}
			continue // the one who fetched it gave up, or it was rejected at once
		}
		if kept.err != nil && now.Before(kept.errUntil) {
			err := kept.err
			s.mu.Unlock()
			return "", false, err
		}
		kept.exchange = make(chan struct{})
		s.mu.Unlock()
		s.renew(ctx, t, key, kept, r, auth)
		s.mu.Lock()
		header, err := kept.header, kept.err
		s.mu.Unlock()
		return header, false, err
	}
}

// renew makes the exchange whose channel the caller has put into kept.
func (s *tokens) renew(ctx context.Context, t *transport, key tokenKey, kept *token, r *request, auth authn.AuthConfig) {
	text, life, err := t.exchange(ctx, key, r, auth)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(kept.exchange)
	kept.exchange, kept.err = nil, err
	if err != nil {
		if err.Class == provider.ClassUnauthorized {
			kept.errUntil = s.clock.Now().Add(refusalLife)
		}
		if !s.clock.Now().Before(kept.expires) {
			kept.header = ""
		}
		return
	}
	now := s.clock.Now()
	kept.header = "Bearer " + text
	// A tenth of its life, 30 seconds at most, is kept for the clock's
	// inaccuracy and for the request that uses it.
	kept.expires = now.Add(life - min(life/10, 30*time.Second))
	kept.renewAt = now.Add(life * 3 / 4)
}

// reject forgets a token that a registry did not take.
func (s *tokens) reject(header string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, kept := range s.kept {
		if kept.header == header {
			kept.header = ""
			if kept.exchange == nil {
				delete(s.kept, key)
			}
		}
	}
}

// bound makes room. The lock is held.
func (s *tokens) bound() {
	if len(s.kept) < maxTokens {
		return
	}
	now := s.clock.Now()
	for key, kept := range s.kept {
		if kept.exchange == nil && !now.Before(kept.expires) {
			delete(s.kept, key)
		}
	}
	for key, kept := range s.kept {
		if len(s.kept) < maxTokens*3/4 {
			return
		}
		if kept.exchange == nil {
			delete(s.kept, key)
		}
	}
}

// exchange asks a realm for a token. With an identity token it is the refresh of
// OAuth 2, else a GET with the credential as Basic, or with none.
// Source: distribution, "Token Authentication Specification" and "Oauth2 Token
// Authentication".
func (t *transport) exchange(ctx context.Context, key tokenKey, r *request, auth authn.AuthConfig) (string, time.Duration, *provider.Error) {
	realm, err := url.Parse(key.realm)
	if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != "http" {
		return "", 0, provider.Errorf(provider.ClassUnreachable, "registry %s: its token realm %s is no URL", r.registry, provider.Quote(key.realm))
	}
	realm.User = nil
	if realm.Scheme == "http" && !t.reach.PlainHTTP(realm.Host) && !t.reach.PlainHTTP(r.registry) && !r.insecure {
		return "", 0, provider.Errorf(provider.ClassBlocked, "registry %s: its token realm is on plain HTTP", r.registry)
	}
	c := call{
		method: http.MethodGet, url: realm, who: key.who, repository: r.repository, limit: maxTokenBody, unit: "token", what: r.repository,
		header: http.Header{"Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {t.agent}},
	}
	if auth.IdentityToken != "" {
		c.method = http.MethodPost
		c.form = url.Values{
			"grant_type": {"refresh_token"}, "refresh_token": {auth.IdentityToken}, "client_id": {clientID},
			"service": {key.service}, "scope": {key.scope},
		}
	} else {
		query := realm.Query()
		if key.service != "" {
			query.Set("service", key.service)
		}
		for scope := range strings.FieldsSeq(key.scope) {
			query.Add("scope", scope)
		}
		realm.RawQuery = query.Encode()
		if auth.Username != "" || auth.Password != "" {
			c.header.Set("Authorization", basic(auth))
		}
	}
	state := t.state(realm.Host, r.insecure)
	tripper := t.reach.RoundTripper(r.registry, r.insecure)
	answer, failed := t.once(ctx, tripper, state, c)
	if failed != nil {
		return "", 0, failed
	}
	if answer.status != http.StatusOK {
		return "", 0, tokenError(r, answer)
	}
	var body struct {
		Token       string  `json:"token"`
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"`
	}
	if err := json.Unmarshal(answer.body, &body); err != nil {
		return "", 0, provider.Errorf(provider.ClassUnreachable, "registry %s: its token service sent no JSON", r.registry)
	}
	text := body.Token
	if text == "" {
		text = body.AccessToken
	}
	if text == "" || strings.ContainsAny(text, "\r\n\x00") {
		return "", 0, provider.Errorf(provider.ClassUnauthorized, "registry %s: its token service gave no token for %s", r.registry, r.what)
	}
	life := defaultTokenLife
	if body.ExpiresIn > 0 {
		life = time.Duration(min(body.ExpiresIn, maxTokenLife.Seconds()) * float64(time.Second))
	}
	return text, life, nil
}

// tokenError classifies a token service's refusal. What it has to say of a
// credential, or of a repository that is not there, is a refusal of both.
func tokenError(r *request, answer *response) *provider.Error {
	status := answer.status
	if status == http.StatusTooManyRequests || status >= 500 {
		return statusError(r.registry, r.what, status, answer.header, false)
	}
	if status >= 300 && status < 400 {
		return provider.Errorf(provider.ClassUnreachable, "registry %s: its token service redirects, which could give a credential away", r.registry)
	}
	err := statusError(r.registry, r.what, http.StatusUnauthorized, answer.header, false)
	err.HTTPStatus = status
	return err
}
