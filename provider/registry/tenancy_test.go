package registry_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// tenants gives each namespace the credential of its own name, password "right"
// unless the namespace begins with "wrong". A host may be named after the
// namespace, as in "a@host"; then the credential is for that host alone.
type tenants map[string]bool

func (tenants) Lookup(_ context.Context, scope provider.Scope, _ string) ([]credentials.Credential, error) {
	if scope.Anonymous() {
		return nil, nil
	}
	password := "right"
	if strings.HasPrefix(scope.Namespace, "wrong") {
		password = "wrong"
	}
	return []credentials.Credential{credentials.New("secret "+scope.Namespace+"/pull", authn.AuthConfig{Username: scope.Namespace, Password: password})}, nil
}

func accountsOf(names ...string) []registrytest.Account {
	var all []registrytest.Account
	for _, name := range names {
		all = append(all, registrytest.Account{User: name, Password: "right"})
	}
	return all
}

func ask(i *registry.Inspector, namespace, image string) provider.Answer {
	return i.Inspect(context.Background(), []provider.Query{{Image: image, Scope: provider.Scope{Namespace: namespace}}})[0]
}

func TestTenTenantsAndOneImageCostOneGet(t *testing.T) {
	var names []string
	for n := range 10 {
		names = append(names, fmt.Sprintf("tenant-%d", n))
	}
	for name, ask10 := range map[string]func(func(string)){
		"one after the other": func(each func(string)) {
			for _, n := range names {
				each(n)
			}
		},
		"all at once": func(each func(string)) {
			var wg sync.WaitGroup
			for _, n := range names {
				wg.Go(func() { each(n) })
			}
			wg.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			r.Basic(accountsOf(names...)...)
			r.PutIndex("public/app", "v1", "linux/amd64")
			i := newInspector(t, registry.Options{Keychain: tenants{}}, r)
			ask10(func(namespace string) {
				a := ask(i, namespace, r.Host()+"/public/app:v1")
				if a.Err != nil {
					t.Errorf("%s: %v", namespace, a.Err)
				}
				if want := "secret " + namespace + "/pull"; a.CredentialSource != want {
					t.Errorf("credential source %q, want %q", a.CredentialSource, want)
				}
			})
			gets := r.Count(func(q registrytest.Request) bool { return q.Method == http.MethodGet })
			heads := r.Count(func(q registrytest.Request) bool { return q.Method == http.MethodHead })
			if gets > 1 || heads > 10 {
				t.Fatalf("%d GETs and %d HEADs: %v", gets, heads, r.Lines())
			}
		})
	}
}

func TestWhatOneTenantMayReadIsToldToNoOther(t *testing.T) {
	r := newRegistry(t)
	r.Basic(accountsOf("owner")...)
	digest := r.PutIndex("private/app", "v1", "linux/s390x")
	tag := r.Host() + "/private/app:v1"
	pinned := r.Host() + "/private/app@" + digest
	i := newInspector(t, registry.Options{Keychain: tenants{}}, r)
	wantPlatforms(t, ask(i, "owner", tag), "linux/s390x")
	wantPlatforms(t, ask(i, "owner", pinned), "linux/s390x")
	missing := ask(i, "wrong-stranger", r.Host()+"/private/none:v1")

	for name, a := range map[string]provider.Answer{
		"by tag with a wrong secret":      ask(i, "wrong-stranger", tag),
		"by digest with a wrong secret":   ask(i, "wrong-stranger", pinned),
		"by tag with another's secret":    ask(i, "other", tag),
		"by digest with another's secret": ask(i, "other", pinned),
		"by tag without any":              ask(i, "", tag),
		"by digest without any":           ask(i, "", pinned),
	} {
		t.Run(name, func(t *testing.T) {
			wantClass(t, a, provider.ClassUnauthorized)
			if a.Digest != "" && !strings.Contains(a.Image, a.Digest) || a.Kind != "" || a.Platforms != nil || a.Mirror != "" {
				t.Errorf("more is told than was asked: %+v", a)
			}
			if strings.Contains(a.Err.Message, "owner") {
				t.Errorf("the message names the owner: %s", a.Err.Message)
			}
		})
	}
	hidden := ask(i, "wrong-stranger", tag)
	if got, want := strings.ReplaceAll(hidden.Err.Message, "private/app", "private/none"), missing.Err.Message; got != want {
		t.Errorf("hidden and missing differ:\n%s\n%s", got, want)
	}
}

// An evil registry says that it has the digest of somebody else's image.
func TestAnotherHostsWordGivesNoFacts(t *testing.T) {
	r, evil := newRegistry(t), newRegistry(t)
	r.Basic(accountsOf("owner")...)
	digest := r.PutIndex("private/app", "v1", "linux/s390x")
	child := r.PutImage("private/child", "v1", "linux/ppc64le")
	i := newInspector(t, registry.Options{Keychain: tenants{}}, r, evil)
	wantPlatforms(t, ask(i, "owner", r.Host()+"/private/app:v1"), "linux/s390x")
	wantPlatforms(t, ask(i, "owner", r.Host()+"/private/child:v1"), "linux/ppc64le")

	evil.PutIndex("evil/app", "v1", "linux/amd64")
	wantPlatforms(t, ask(i, "", evil.Host()+"/evil/app:v1"), "linux/amd64")
	evil.Behave("HEAD", "/v2/evil/", registrytest.WithHeader("Docker-Content-Digest", digest))
	for _, image := range []string{"/evil/app:v1", "/evil/app@" + digest} {
		a := i.Inspect(t.Context(), []provider.Query{{Image: evil.Host() + image, Revalidate: true}})[0]
		for _, p := range a.Platforms {
			if p == "linux/s390x" {
				t.Errorf("%s: the private image's platforms came out: %+v", image, a)
			}
		}
	}
	// An index at the evil host, or one that a tenant pushed to the same
	// registry, names the private image as its child.
	evil.Put("evil/index", "v1", registrytest.Index, registrytest.IndexOf(registrytest.Descriptor(registrytest.Image, child, 300, "")))
	wantClass(t, ask(i, "", evil.Host()+"/evil/index:v1"), provider.ClassNotFound)
}

func TestARefusalIsNotSharedAndAnOutageCostsNobody(t *testing.T) {
	r := newRegistry(t)
	r.Basic(accountsOf("good")...)
	r.PutIndex("team/app", "v1", "linux/amd64")
	i := newInspector(t, registry.Options{Keychain: tenants{}}, r)
	image := r.Host() + "/team/app:v1"
	wantClass(t, ask(i, "wrong-one", image), provider.ClassUnauthorized)
	wantPlatforms(t, ask(i, "good", image), "linux/amd64")
	r.Forget()
	wantClass(t, ask(i, "wrong-one", image), provider.ClassUnauthorized)
	wantRequests(t, r)
}
