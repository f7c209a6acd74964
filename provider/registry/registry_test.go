package registry_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// newInspector makes an Inspector that may speak plain HTTP to the hosts.
func newInspector(t *testing.T, o registry.Options, hosts ...*registrytest.Registry) *registry.Inspector {
	t.Helper()
	if o.Reach == nil {
		config := reach.Config{}
		for _, h := range hosts {
			config.PlainHTTPHosts = append(config.PlainHTTPHosts, h.Host())
		}
		var err error
		if o.Reach, err = reach.New(config); err != nil {
			t.Fatal(err)
		}
	}
	i, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		i.Close()
		o.Reach.CloseIdleConnections()
	})
	return i
}

func newRegistry(t *testing.T) *registrytest.Registry {
	t.Helper()
	r := registrytest.New()
	t.Cleanup(r.Close)
	return r
}

func inspect(t *testing.T, i *registry.Inspector, image string) provider.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return i.Inspect(ctx, []provider.Query{{Image: image}})[0]
}

func wantPlatforms(t *testing.T, a provider.Answer, platforms ...string) {
	t.Helper()
	if a.Err != nil {
		t.Fatalf("%s: %v", a.Image, a.Err)
	}
	if diff := cmp.Diff(platforms, a.Platforms); diff != "" {
		t.Fatalf("platforms of %s (-want +got):\n%s", a.Image, diff)
	}
}

func wantClass(t *testing.T, a provider.Answer, class provider.Class) {
	t.Helper()
	if a.Err == nil {
		t.Fatalf("%s: got %v, want %s", a.Image, a.Platforms, class)
	}
	if a.Err.Class != class {
		t.Fatalf("%s: got %v, want %s", a.Image, a.Err, class)
	}
}

func wantRequests(t *testing.T, r *registrytest.Registry, lines ...string) {
	t.Helper()
	if diff := cmp.Diff(lines, r.Lines()); diff != "" {
		t.Fatalf("requests (-want +got):\n%s", diff)
	}
	r.Forget()
}

func TestRequestsAreAsFewAsItTakes(t *testing.T) {
	r := newRegistry(t)
	digest := r.PutIndex("team/app", "v1", "linux/amd64", "linux/arm64")
	r.PutImage("team/single", "v1", "linux/arm64")
	i := newInspector(t, registry.Options{}, r)

	wantPlatforms(t, inspect(t, i, r.Host()+"/team/app:v1"), "linux/amd64", "linux/arm64")
	wantRequests(t, r, "GET /v2/team/app/manifests/v1 200")

	wantPlatforms(t, inspect(t, i, r.Host()+"/team/app:v1"), "linux/amd64", "linux/arm64")
	wantPlatforms(t, inspect(t, i, r.Host()+"/team/app@"+digest), "linux/amd64", "linux/arm64")
	wantPlatforms(t, inspect(t, i, r.Host()+"/team/app:other@"+digest), "linux/amd64", "linux/arm64")
	wantRequests(t, r)

	wantPlatforms(t, inspect(t, i, r.Host()+"/team/single:v1"), "linux/arm64")
	if got := len(r.Requests()); got != 2 {
		t.Fatalf("a single image took %d requests, want 2: %v", got, r.Lines())
	}
}

func TestConcurrentAsksForOneColdKeyShareOneFetch(t *testing.T) {
	r := newRegistry(t)
	r.PutIndex("team/app", "v1", "linux/amd64")
	r.Delay(50 * time.Millisecond)
	i := newInspector(t, registry.Options{}, r)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			a := i.Inspect(t.Context(), []provider.Query{{Image: r.Host() + "/team/app:v1"}})[0]
			if a.Err != nil {
				t.Error(a.Err)
			}
		})
	}
	wg.Wait()
	wantRequests(t, r, "GET /v2/team/app/manifests/v1 200")
}

func TestOneTokenServesARepository(t *testing.T) {
	r := newRegistry(t)
	r.Bearer(registrytest.Tokens{Anonymous: true})
	var queries []provider.Query
	for n := range 50 {
		r.PutIndex("team/app", fmt.Sprintf("v%d", n), "linux/amd64")
		queries = append(queries, provider.Query{Image: fmt.Sprintf("%s/team/app:v%d", r.Host(), n)})
	}
	// On a clock that stands still nobody goes before the first is answered,
	// however slow this machine is.
	i := newInspector(t, registry.Options{Clock: clocktesting.NewFakeClock(time.Now())}, r)
	count := func() map[string]int {
		n := map[string]int{}
		for _, q := range r.Requests() {
			switch {
			case q.Token():
				n["token"]++
			case q.Status == 401:
				n["challenge"]++
			default:
				n[q.Method]++
			}
		}
		r.Forget()
		return n
	}
	for _, a := range i.Inspect(t.Context(), queries) {
		wantPlatforms(t, a, "linux/amd64")
	}
	if diff := cmp.Diff(map[string]int{"challenge": 1, "token": 1, "GET": 50}, count()); diff != "" {
		t.Fatalf("cold (-want +got):\n%s", diff)
	}
	for n := range queries {
		queries[n].Revalidate = true
	}
	for _, a := range i.Inspect(t.Context(), queries) {
		wantPlatforms(t, a, "linux/amd64")
	}
	if diff := cmp.Diff(map[string]int{"HEAD": 50}, count()); diff != "" {
		t.Fatalf("revalidated (-want +got):\n%s", diff)
	}
}
