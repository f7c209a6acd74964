package registry_test

import (
	"path/filepath"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/cache"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

func TestARestartedInspectorAsksNobody(t *testing.T) {
	r := newRegistry(t)
	digest := r.PutIndex("public/app", "v1", "linux/amd64")
	path := filepath.Join(t.TempDir(), "cache.db")
	for round := range 2 {
		store, err := cache.OpenStore(cache.StoreOptions{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		i := newInspector(t, registry.Options{Cache: cache.New(cache.Options{Store: store})}, r)
		wantPlatforms(t, inspect(t, i, r.Host()+"/public/app:v1"), "linux/amd64")
		wantPlatforms(t, inspect(t, i, r.Host()+"/public/app@"+digest), "linux/amd64")
		if round == 0 {
			wantRequests(t, r, "GET /v2/public/app/manifests/v1 200")
		} else {
			wantRequests(t, r)
		}
		i.Close()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhatARegistryTookBackStaysSo: through the end of the failure that was
// remembered, and a restart.
func TestWhatARegistryTookBackStaysSo(t *testing.T) {
	for name, takeBack := range map[string]func(r *registrytest.Registry){
		"the tag was deleted":        func(r *registrytest.Registry) { r.Delete("app", "v1") },
		"the repository was closed":  func(r *registrytest.Registry) { r.Basic(accountsOf("owner")...) },
		"the content is no manifest": func(r *registrytest.Registry) { r.Behave("", "/", registrytest.Body(registrytest.Index, "[]")) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			r.PutIndex("app", "v1", "linux/amd64")
			path := filepath.Join(t.TempDir(), "cache.db")
			image := r.Host() + "/app:v1"
			for round := range 2 {
				store, err := cache.OpenStore(cache.StoreOptions{Path: path})
				if err != nil {
					t.Fatal(err)
				}
				i := newInspector(t, registry.Options{Cache: cache.New(cache.Options{Store: store})}, r)
				if round == 0 {
					wantPlatforms(t, inspect(t, i, image), "linux/amd64")
					store.Flush()
					takeBack(r)
					_ = i.Inspect(t.Context(), []provider.Query{{Image: image, Revalidate: true}})
				}
				if a := inspect(t, i, image); a.Err == nil {
					t.Errorf("round %d: %v", round, a.Platforms)
				}
				i.Close()
				if err := store.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestAReplicaLearnsFromTheOther(t *testing.T) {
	r := newRegistry(t)
	r.PutIndex("public/app", "v1", "linux/amd64")
	r.PutIndex("private/app", "v1", "linux/s390x")
	redis := miniredis.RunT(t)
	address := "redis://" + redis.Addr()
	replica := func(o registry.Options) (*registry.Inspector, *cache.Shared) {
		shared, err := cache.OpenShared(cache.SharedOptions{URL: address})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = shared.Close() })
		o.Cache = cache.New(cache.Options{Shared: shared})
		return newInspector(t, o, r), shared
	}
	one, shared := replica(registry.Options{Keychain: tenants{}})
	wantPlatforms(t, ask(one, "", r.Host()+"/public/app:v1"), "linux/amd64")
	r.Basic(accountsOf("owner")...)
	wantPlatforms(t, ask(one, "owner", r.Host()+"/private/app:v1"), "linux/s390x")
	if err := shared.Close(); err != nil { // writes what waits
		t.Fatal(err)
	}
	r.Forget()
	two, _ := replica(registry.Options{Keychain: tenants{}})
	wantPlatforms(t, ask(two, "", r.Host()+"/public/app:v1"), "linux/amd64")
	wantRequests(t, r)
	wantClass(t, ask(two, "", r.Host()+"/private/app:v1"), provider.ClassUnauthorized)
	wantClass(t, ask(two, "wrong-one", r.Host()+"/private/app:v1"), provider.ClassUnauthorized)

	t.Run("who wants an answer confirmed has the registry asked", func(t *testing.T) {
		r.Basic(accountsOf("owner")...)
		three, _ := replica(registry.Options{})
		a := three.Inspect(t.Context(), []provider.Query{{Image: r.Host() + "/public/app:v1", Revalidate: true}})[0]
		wantClass(t, a, provider.ClassUnauthorized)
	})
	t.Run("an outage costs nothing but hits", func(t *testing.T) {
		redis.Close()
		r.Misbehave()
		open := registrytest.New()
		t.Cleanup(open.Close)
		open.PutIndex("public/app", "v1", "linux/arm64")
		shared, err := cache.OpenShared(cache.SharedOptions{URL: address})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = shared.Close() })
		i := newInspector(t, registry.Options{Cache: cache.New(cache.Options{Shared: shared})}, open)
		wantPlatforms(t, inspect(t, i, open.Host()+"/public/app:v1"), "linux/arm64")
	})
}
