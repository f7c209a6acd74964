package registrytest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Account is what a registry lets in. The zero Account is everybody.
type Account struct {
	User, Password string
	// IdentityToken for the refresh of OAuth 2.
	IdentityToken string
}

// Basic makes the registry demand one of the accounts by Basic.
func (r *Registry) Basic(accounts ...Account) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.auth = func(w http.ResponseWriter, q *http.Request) bool {
		user, password, _ := q.BasicAuth()
		for _, a := range accounts {
			if user == a.User && password == a.Password && user != "" {
				return true
			}
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		Error(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return false
	}
}

// Tokens says how a token service behaves.
type Tokens struct {
	// Anonymous lets everybody pull.
	Anonymous bool
	// Accounts that may pull.
	Accounts []Account
	// Life of a token; 5 minutes when 0. It is told as ExpiresIn, when that is
	// not 0.
	Life, ExpiresIn time.Duration
	// Delay of each token.
	Delay time.Duration
	// Status to answer with instead of a token, and Body.
	Status int
	Body   string
	// Realm other than the registry's own /token.
	Realm string
	// Now is the clock of the service; time.Now when nil.
	Now func() time.Time
}

// Bearer makes the registry demand tokens of its own token service. Tokens are
// good for one repository, until they end.
func (r *Registry) Bearer(t Tokens) {
	if t.Life == 0 {
		t.Life = 5 * time.Minute
	}
	if t.ExpiresIn == 0 {
		t.ExpiresIn = t.Life
	}
	if t.Now == nil {
		t.Now = time.Now
	}
	if t.Realm == "" {
		t.Realm = r.URL() + "/token"
	}
	var serial atomic.Int64
	r.mu.Lock()
	defer r.mu.Unlock()
	r.auth = func(w http.ResponseWriter, q *http.Request) bool {
		repository := repositoryOf(q.URL.Path)
		if text, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer "); ok {
			scope, end, ok := readToken(text)
			if ok && t.Now().Before(end) && scope == "repository:"+repository+":pull" {
				return true
			}
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s",service="registrytest",scope="repository:%s:pull"`, t.Realm, repository))
		Error(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return false
	}
	r.token = func(w http.ResponseWriter, q *http.Request) {
		if t.Delay > 0 {
			r.wait(q, t.Delay)
		}
		if t.Status != 0 {
			w.WriteHeader(t.Status)
			_, _ = w.Write([]byte(t.Body))
			return
		}
		if !t.lets(q) {
			Error(w, http.StatusUnauthorized, "UNAUTHORIZED")
			return
		}
		scope := q.FormValue("scope")
		text := makeToken(scope, t.Now().Add(t.Life), serial.Add(1))
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"token": text, "expires_in": int(t.ExpiresIn.Seconds())})
	}
}

func (t *Tokens) lets(q *http.Request) bool {
	if q.Method == http.MethodPost {
		for _, a := range t.Accounts {
			if a.IdentityToken != "" && q.FormValue("refresh_token") == a.IdentityToken && q.FormValue("grant_type") == "refresh_token" {
				return true
			}
		}
		return false
	}
	user, password, shown := q.BasicAuth()
	if !shown {
		return t.Anonymous
	}
	for _, a := range t.Accounts {
		if user == a.User && password == a.Password {
			return true
		}
	}
	return false
}

func repositoryOf(path string) string {
	path = strings.TrimPrefix(path, "/v2/")
	for _, infix := range []string{"/manifests/", "/blobs/"} {
		if repository, _, ok := cut(path, infix); ok {
			return repository
		}
	}
	return ""
}

func makeToken(scope string, end time.Time, serial int64) string {
	return base64.RawURLEncoding.EncodeToString(JSON(Object{"scope": scope, "end": end.UnixNano(), "serial": serial}))
}

func readToken(text string) (scope string, end time.Time, ok bool) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", time.Time{}, false
	}
	var token struct {
		Scope string `json:"scope"`
		End   int64  `json:"end"`
	}
	if json.Unmarshal(raw, &token) != nil {
		return "", time.Time{}, false
	}
	return token.Scope, time.Unix(0, token.End), true
}
