package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/throwaway"
)

// apiServer answers the two reviews as Kubernetes does: token "T-user" is of
// "user", and only "admin" may post to /v1/public.
type apiServer struct {
	*httptest.Server
	reviews, accesses atomic.Int64
	down              atomic.Bool
	hold              chan struct{} // when not nil, reviews wait for it
	mu                sync.Mutex
	lastAccess        authorizationv1.SubjectAccessReviewSpec
}

func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{}
	write := func(w http.ResponseWriter, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(object)
	}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.down.Load() {
			http.Error(w, "etcd is away", http.StatusInternalServerError)
			return
		}
		switch r.URL.Path {
		case "/apis/authentication.k8s.io/v1/tokenreviews":
			a.reviews.Add(1)
			if a.hold != nil {
				<-a.hold
			}
			var review authenticationv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				http.Error(w, err.Error(), 400)
				return
			}
			review.TypeMeta.Kind, review.TypeMeta.APIVersion = "TokenReview", "authentication.k8s.io/v1"
			user, known := strings.CutPrefix(review.Spec.Token, "T-")
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: known}
			if known {
				review.Status.User = authenticationv1.UserInfo{Username: user, UID: "u", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
			}
			write(w, review)
		case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
			a.accesses.Add(1)
			var review authorizationv1.SubjectAccessReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
				http.Error(w, err.Error(), 400)
				return
			}
			review.TypeMeta.Kind, review.TypeMeta.APIVersion = "SubjectAccessReview", "authorization.k8s.io/v1"
			a.mu.Lock()
			a.lastAccess = review.Spec
			a.mu.Unlock()
			url := review.Spec.NonResourceAttributes
			review.Status.Allowed = strings.HasPrefix(review.Spec.User, "admin") && url != nil && (*url == authorizationv1.NonResourceAttributes{Path: server.PathPublic, Verb: "post"})
			write(w, review)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *apiServer) tokens(w *world) *server.Tokens {
	config := &rest.Config{Host: a.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	return server.NewTokens(server.TokenOptions{
		Reviews: must(authenticationclient.NewForConfig(config)).TokenReviews(),
		Access:  must(authorizationclient.NewForConfig(config)).SubjectAccessReviews(),
		Clock:   w.clock,
	})
}

func TestBearerTokens(t *testing.T) {
	var api *apiServer
	w := start(t, func(w *world, o *server.Options) {
		api = newAPIServer(t)
		o.Tokens = api.tokens(w)
	})
	nobody := w.caller(nil, throwaway.Request{})
	for name, tc := range map[string]struct {
		method, path, authorization string
		status                      int
		says                        string
	}{
		"an admin's":                        {"POST", server.PathPublic, "Bearer T-admin", 200, ""},
		"a scheme in lower case":            {"POST", server.PathPublic, "bearer T-admin", 200, ""},
		"an admin's for another path":       {"POST", server.PathPin, "Bearer T-admin", 403, "may not post the non-resource URL /v1/pin"},
		"an admin's for another verb":       {"GET", server.PathImages + "?image=a", "Bearer T-admin", 403, "may not get the non-resource URL /v1/images"},
		"a user's who may not":              {"POST", server.PathPublic, "Bearer T-eve", 403, "user eve may not"},
		"one that Kubernetes does not know": {"POST", server.PathPublic, "Bearer X-admin", 401, "does not accept"},
		"an empty one":                      {"POST", server.PathPublic, "Bearer ", 401, "no usable bearer token"},
		"another scheme":                    {"POST", server.PathPublic, "Basic VC1hZG1pbg==", 401, "no usable bearer token"},
		"one that is far too long":          {"POST", server.PathPublic, "Bearer T-admin" + strings.Repeat("x", 9000), 401, "no usable bearer token"},
		"none":                              {"POST", server.PathPublic, "", 401, "present a client certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			body := ""
			if tc.method == "POST" {
				body = request("r/a:1")
			}
			var header []string
			if tc.authorization != "" {
				header = []string{"Authorization", tc.authorization}
			}
			got := w.do(nobody, tc.method, w.data+tc.path, body, header...)
			if got.StatusCode != tc.status || !strings.Contains(got.Response.SystemError, tc.says) {
				t.Errorf("status %d: %s", got.StatusCode, got.text)
			}
		})
	}
	api.mu.Lock()
	spec := api.lastAccess
	api.mu.Unlock()
	if spec.UID != "u" || len(spec.Groups) != 1 || len(spec.Extra["k"]) != 1 {
		t.Errorf("the user did not reach the access review whole: %+v", spec)
	}
	t.Run("a good token beside a bad certificate", func(t *testing.T) {
		client := w.caller(w.gatekeeper, throwaway.Request{Names: []string{"x"}, Client: true})
		if got := w.do(client, "POST", w.data+server.PathPublic, request("a"), "Authorization", "Bearer T-admin"); got.StatusCode != 200 {
			t.Errorf("status %d: %s", got.StatusCode, got.text)
		}
	})
	if strings.Contains(w.log.String(), "T-admin") || strings.Contains(w.log.String(), "X-admin") {
		t.Error("a token is in the log")
	}
}

func TestTokensWithoutAnAPIServer(t *testing.T) {
	w := start(t, nil)
	got := w.do(w.caller(nil, throwaway.Request{}), "POST", w.data+server.PathPublic, request("a"), "Authorization", "Bearer T-admin")
	if got.StatusCode != 401 || !strings.Contains(got.Response.SystemError, "without access to a Kubernetes API server") {
		t.Errorf("status %d: %s", got.StatusCode, got.text)
	}
}

// Yes is remembered for a short time, no and "could not be checked" never.
func TestTheMemoryOfTokens(t *testing.T) {
	var api *apiServer
	w := start(t, func(w *world, o *server.Options) {
		api = newAPIServer(t)
		o.Tokens = api.tokens(w)
	})
	nobody := w.caller(nil, throwaway.Request{})
	ask := func(token string) int {
		return w.do(nobody, "POST", w.data+server.PathPublic, request("a"), "Authorization", "Bearer "+token).StatusCode
	}
	steps := []struct {
		does              string
		do                func() int
		status            int
		reviews, accesses int64
	}{
		{"a good token", func() int { return ask("T-admin") }, 200, 1, 1},
		{"the same again", func() int { return ask("T-admin") }, 200, 1, 1},
		{"another good token", func() int { return ask("T-admin2") }, 200, 2, 2},
		{"a bad token", func() int { return ask("bad") }, 401, 3, 2},
		{"the same again", func() int { return ask("bad") }, 401, 4, 2},
		{"a forbidden user", func() int { return ask("T-eve") }, 403, 5, 3},
		{"the same again", func() int { return ask("T-eve") }, 403, 6, 4},
		{"a good token, the API server down", func() int { api.down.Store(true); return ask("T-admin") }, 200, 6, 4},
		{"a new token, the API server down", func() int { return ask("T-admin3") }, 503, 6, 4},
		{"a good token, its time over, the API server down", func() int { w.clock.Step(server.DefaultTokenTTL); return ask("T-admin") }, 503, 6, 4},
		{"a good token, the API server back", func() int { api.down.Store(false); return ask("T-admin") }, 200, 7, 5},
	}
	for _, s := range steps {
		status := s.do()
		if reviews, accesses := api.reviews.Load(), api.accesses.Load(); status != s.status || reviews != s.reviews || accesses != s.accesses {
			t.Fatalf("%s: status %d, %d reviews, %d accesses; want %d, %d, %d", s.does, status, reviews, accesses, s.status, s.reviews, s.accesses)
		}
	}
	for i := range 1500 {
		if got := ask(fmt.Sprintf("T-admin-%d", i)); got != 200 {
			t.Fatalf("token %d: status %d", i, got)
		}
	}
	if n := server.RememberedTokens(w.tokens); n > 1024 {
		t.Errorf("%d tokens are remembered", n)
	}
}

// Many who come at once with one token cost one review, and the first of them
// leaving costs the others nothing.
func TestConcurrentChecksOfOneToken(t *testing.T) {
	var api *apiServer
	w := start(t, func(w *world, o *server.Options) {
		api = newAPIServer(t)
		api.hold = make(chan struct{})
		o.Tokens = api.tokens(w)
	})
	nobody := w.caller(nil, throwaway.Request{})
	post := func(ctx context.Context) (int, error) {
		req := must(http.NewRequestWithContext(ctx, http.MethodPost, w.data+server.PathPublic, strings.NewReader(request("a"))))
		req.Header.Set("Authorization", "Bearer T-admin")
		resp, err := nobody.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() { _, _ = post(ctx); close(left) }()
	w.eventually("the first asks", func() bool { return api.reviews.Load() == 1 })
	statuses := make(chan int, 49)
	for range cap(statuses) {
		go func() {
			status, _ := post(context.Background())
			statuses <- status
		}()
	}
	w.eventually("all have come", func() bool { return w.metric("archkeeper_provider_requests_in_flight") == "50" })
	leave()
	<-left
	close(api.hold)
	for range cap(statuses) {
		if got := <-statuses; got != 200 {
			t.Errorf("status %d", got)
		}
	}
	if reviews, accesses := api.reviews.Load(), api.accesses.Load(); reviews != 1 || accesses != 1 {
		t.Errorf("%d reviews, %d accesses; want 1 and 1", reviews, accesses)
	}
}

func TestASlowAPIServerIsNotWaitedForForEver(t *testing.T) {
	w := start(t, func(w *world, o *server.Options) {
		api := newAPIServer(t)
		api.hold = make(chan struct{})
		t.Cleanup(func() { close(api.hold) })
		config := &rest.Config{Host: api.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
		o.Tokens = server.NewTokens(server.TokenOptions{
			Reviews: must(authenticationclient.NewForConfig(config)).TokenReviews(),
			Access:  must(authorizationclient.NewForConfig(config)).SubjectAccessReviews(),
			Timeout: 50 * time.Millisecond,
		})
	})
	got := w.do(w.caller(nil, throwaway.Request{}), "POST", w.data+server.PathPublic, request("a"), "Authorization", "Bearer T-admin")
	if got.StatusCode != 503 || !strings.Contains(got.Response.SystemError, "could not be checked") {
		t.Errorf("status %d: %s", got.StatusCode, got.text)
	}
}
