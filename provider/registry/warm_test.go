package registry_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// warmed gives queries for n images whose answers are known.
func warmed(t *testing.T, r *registrytest.Registry, i *registry.Inspector, n int) []provider.Query {
	t.Helper()
	var queries []provider.Query
	for k := range n {
		r.PutIndex("team/app", fmt.Sprintf("w%d", k), "linux/amd64", "linux/arm64")
		queries = append(queries, provider.Query{Image: fmt.Sprintf("%s/team/app:w%d", r.Host(), k)})
	}
	for _, a := range i.Inspect(t.Context(), queries) {
		wantPlatforms(t, a, "linux/amd64", "linux/arm64")
	}
	r.Forget()
	return queries
}

func TestWhatIsKnownCostsFewAllocations(t *testing.T) {
	for name, test := range map[string]struct {
		keychain credentials.Keychain
		images   int
		most     float64
	}{
		"one image":        {nil, 1, 2},
		"a hundred images": {nil, 100, 4},
		"a hundred images, and nobody's keychains": {credentials.Chain{tenants{}, tenants{}}, 100, 104},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			i := newInspector(t, registry.Options{Keychain: test.keychain, Timeout: time.Minute}, r)
			queries := warmed(t, r, i, test.images)
			if got := testing.AllocsPerRun(100, func() { i.Inspect(t.Context(), queries) }); got > test.most {
				t.Errorf("%.0f allocations, want at most %.0f", got, test.most)
			}
			wantRequests(t, r)
		})
	}
}

// changing is a Keychain whose content somebody exchanges.
type changing struct {
	held atomic.Pointer[[]credentials.Credential]
}

func (c *changing) Lookup(context.Context, provider.Scope, string) ([]credentials.Credential, error) {
	if held := c.held.Load(); held != nil {
		return *held, nil
	}
	return nil, nil
}

func TestWhatIsKnownFollowsCredentialsAtOnce(t *testing.T) {
	r := newRegistry(t)
	keychain := &changing{}
	i := newInspector(t, registry.Options{Keychain: keychain}, r)
	queries := warmed(t, r, i, 2)
	source := func(want string) {
		t.Helper()
		for _, a := range i.Inspect(t.Context(), queries) {
			if a.Err != nil || a.CredentialSource != want {
				t.Errorf("%s: %q, %v; want %q", a.Image, a.CredentialSource, a.Err, want)
			}
		}
	}
	source("anonymous")
	wantRequests(t, r)
	keychain.held.Store(&[]credentials.Credential{credentials.New("secret a/b", authn.AuthConfig{Username: "u", Password: "p"})})
	source("secret a/b")
	if n := len(r.Requests()); n != 2 {
		t.Errorf("the new credential was shown %d times, want once for each image: %v", n, r.Lines())
	}
	r.Forget()
	keychain.held.Store(nil)
	source("anonymous")
	wantRequests(t, r)
}

func TestWhatIsKnownFollowsTheMirrorConfigurationAtOnce(t *testing.T) {
	r, mirror := newRegistry(t), newRegistry(t)
	var config atomic.Pointer[mirrors.Config]
	i := newInspector(t, registry.Options{Mirrors: config.Load}, r, mirror)
	queries := warmed(t, r, i, 2)
	mirror.PutIndex("copy/app", "w0", "linux/s390x")
	mirror.PutIndex("copy/app", "w1", "linux/s390x")
	set := func(text string) {
		t.Helper()
		parsed, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "registries.conf", Data: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		config.Store(parsed)
	}
	set(fmt.Sprintf("[[registry]]\nprefix = %q\nlocation = %q\n[[registry.mirror]]\nlocation = %q\n",
		r.Host()+"/team", r.Host()+"/team", mirror.Host()+"/copy"))
	for _, a := range i.Inspect(t.Context(), queries) {
		wantPlatforms(t, a, "linux/s390x")
	}
	set(fmt.Sprintf("[[registry]]\nprefix = %q\nlocation = %q\nblocked = true\n", r.Host()+"/team", r.Host()+"/team"))
	for _, a := range i.Inspect(t.Context(), queries) {
		wantClass(t, a, provider.ClassBlocked)
	}
	config.Store(nil)
	r.Forget()
	for _, a := range i.Inspect(t.Context(), queries) {
		wantPlatforms(t, a, "linux/amd64", "linux/arm64")
	}
	wantRequests(t, r)
}

// asking is a Keychain that has to wait for somebody, unless its caller will not.
type asking struct{ let chan struct{} }

func (k asking) Lookup(ctx context.Context, _ provider.Scope, _ string) ([]credentials.Credential, error) {
	select {
	case <-k.let:
		return nil, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("not in time: %w", ctx.Err())
	}
}

func TestAKeychainThatWaitsHoldsUpNoOtherImage(t *testing.T) {
	r := newRegistry(t)
	let := make(chan struct{})
	i := newInspector(t, registry.Options{Keychain: asking{let}}, r)
	r.PutIndex("team/app", "v1", "linux/amd64")
	r.PutIndex("team/app", "v2", "linux/amd64")
	time.AfterFunc(20*time.Millisecond, func() { close(let) })
	queries := []provider.Query{{Image: r.Host() + "/team/app:v1"}, {Image: "Not An Image"}, {Image: r.Host() + "/team/app:v2"}}
	answers := i.Inspect(t.Context(), queries)
	wantPlatforms(t, answers[0], "linux/amd64")
	wantClass(t, answers[1], provider.ClassMalformed)
	wantPlatforms(t, answers[2], "linux/amd64")
}

func TestAnImageThatHangsHoldsUpItsNewHostForOneWait(t *testing.T) {
	const others = 20
	r := newRegistry(t)
	r.Bearer(registrytest.Tokens{Anonymous: true})
	r.PutIndex("slow", "v1", "linux/amd64")
	var queries []provider.Query
	for n := range others {
		r.PutIndex("team/app", fmt.Sprintf("v%d", n), "linux/amd64")
		queries = append(queries, provider.Query{Image: fmt.Sprintf("%s/team/app:v%d", r.Host(), n)})
	}
	reached := make(chan struct{}, 1)
	stall := r.Stall()
	r.Behave("", "/v2/slow/", func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		reached <- struct{}{}
		stall(w, q, next)
	})
	clock := clocktesting.NewFakeClock(time.Now())
	i := newInspector(t, registry.Options{Clock: clock}, r)
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	asking.Go(func() { i.Inspect(ctx, []provider.Query{{Image: r.Host() + "/slow:v1"}}) })
	<-reached
	var answers []provider.Answer
	asking.Go(func() { answers = i.Inspect(t.Context(), queries) })
	eventually(t, "all the others wait", func() bool { return clock.Waiters() >= others })
	clock.Step(100 * time.Millisecond)
	cancel()
	asking.Wait()
	for _, a := range answers {
		wantPlatforms(t, a, "linux/amd64")
	}
	challenges := 0
	for _, q := range r.Requests() {
		if q.Status == http.StatusUnauthorized {
			challenges++
		}
	}
	if challenges != 1 {
		t.Errorf("%d challenges, want one: %v", challenges, r.Lines())
	}
}
