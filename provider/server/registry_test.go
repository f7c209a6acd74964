package server_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/wire"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// withRegistries makes the server's inspector the real one.
func withRegistries(t testing.TB, o *server.Options, keychain credentials.Keychain, registries ...*registrytest.Registry) {
	t.Helper()
	var hosts []string
	for _, r := range registries {
		hosts = append(hosts, r.Host())
	}
	t.Cleanup(func() {
		for _, r := range registries {
			r.Close()
		}
	})
	inspector := must(registry.New(registry.Options{
		Keychain: keychain, Reach: must(reach.New(reach.Config{PlainHTTPHosts: hosts, DenyPrivate: true})),
	}))
	t.Cleanup(inspector.Close)
	o.Inspector = inspector
}

// Many who ask for one cold image at once cost the registry one request, and
// a slow registry costs the images of another nothing.
func TestAgainstRealRegistries(t *testing.T) {
	good, slow := registrytest.New(), registrytest.New()
	digest := good.PutIndex("app", "1", "linux/amd64", "linux/arm64")
	slow.PutIndex("app", "1", "linux/amd64")
	w := start(t, func(_ *world, o *server.Options) {
		withRegistries(t, o, nil, good, slow)
		o.Deadline = 20 * time.Second
	})
	replies := make(chan reply, 50)
	for range cap(replies) {
		go func() { replies <- w.ask(server.PathPublic, good.Host()+"/app:1") }()
	}
	value := `"value":{"architectures":["amd64","arm64"],"platforms":["linux/amd64","linux/arm64"],"digest":"` + digest + `","kind":"index"}`
	for range cap(replies) {
		if got := <-replies; got.StatusCode != 200 || !strings.Contains(got.text, value) {
			t.Errorf("status %d: %s", got.StatusCode, got.text)
		}
	}
	if n := len(good.Requests()); n != 1 {
		t.Errorf("%d requests for one image, want 1", n)
	}
	pinned := w.ask(server.PathPin, good.Host()+"/app:1", good.Host()+"/missing:1")
	if len(pinned.Response.Items) != 2 || pinned.Response.Items[0].Value != good.Host()+"/app:1@"+digest ||
		!strings.HasPrefix(pinned.Response.Items[1].Error, "not-found: ") || pinned.Response.SystemError != "" {
		t.Errorf("pin: %s", pinned.text)
	}
}

// Keys are looked up side by side: the registry lets nobody go before four
// have come.
func TestKeysAreLookedUpTogether(t *testing.T) {
	const together = 4
	images := registrytest.New()
	var n atomic.Int64
	all := make(chan struct{})
	images.Behave(http.MethodGet, "/v2/", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if n.Add(1) == together {
			close(all)
		}
		<-all
		next.ServeHTTP(w, r)
	})
	var keys []string
	for i := range together {
		repository := string(rune('a' + i))
		images.PutIndex(repository, "1", "linux/amd64")
		keys = append(keys, images.Host()+"/"+repository+":1")
	}
	w := start(t, func(_ *world, o *server.Options) { withRegistries(t, o, nil, images) })
	if got := w.ask(server.PathPublic, keys...); len(got.Response.Items) != together || got.Response.SystemError != "" {
		t.Errorf("status %d: %s", got.StatusCode, got.text)
	}
}

func TestAStalledRegistryCostsItsOwnImagesOnly(t *testing.T) {
	good, slow := registrytest.New(), registrytest.New()
	good.PutIndex("app", "1", "linux/amd64")
	slow.Behave(http.MethodGet, "/v2/app/manifests/1", slow.Stall())
	w := start(t, func(_ *world, o *server.Options) {
		withRegistries(t, o, nil, good, slow)
		o.Deadline = 2 * time.Second
	})
	got := w.ask(server.PathPublic, slow.Host()+"/app:1", good.Host()+"/app:1", "not a reference", "169.254.169.254/app:1")
	said, err := wire.ParseSystemError(got.Response.SystemError)
	if err != nil || len(said.Undetermined) != 1 || said.Undetermined[0].Class != provider.ClassTimeout || said.Undetermined[0].Key != slow.Host()+"/app:1" {
		t.Errorf("systemError %q, %v", got.Response.SystemError, err)
	}
	items := got.Response.Items
	if len(items) != 3 || items[0].Error != "" || !strings.HasPrefix(items[1].Error, "malformed: ") || !strings.HasPrefix(items[2].Error, "blocked: ") {
		t.Errorf("items: %s", got.text)
	}
}

// secretsOf serves one pull secret, pull of the namespace alice.
func secretsOf(t *testing.T, host string) credentials.Keychain {
	t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte("alice:hunter2"))
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/namespaces/alice/secrets/pull" {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
			return
		}
		_ = json.NewEncoder(w).Encode(corev1.Secret{
			TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "alice", Name: "pull"},
			Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"` + host + `":{"auth":"` + auth + `"}}}`)},
		})
	}))
	t.Cleanup(api.Close)
	client := must(corev1client.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}))
	return must(credentials.NewSecrets(credentials.SecretsOptions{Client: client, OnDemand: true}))
}

// Nobody but alice, whose secret the registry takes, learns what her image
// runs on, in whatever way they ask, and also not that it is there.
func TestAPrivateImageStaysPrivate(t *testing.T) {
	private := registrytest.New()
	digest := private.PutIndex("alice/app", "1", "linux/s390x")
	private.Basic(registrytest.Account{User: "alice", Password: "hunter2"})
	w := start(t, func(_ *world, o *server.Options) {
		withRegistries(t, o, secretsOf(t, private.Host()), private)
		o.Deadline = 20 * time.Second
	})
	structured := func(image, namespace string, secrets ...string) string {
		return wire.Key{Image: image, Namespace: namespace, ServiceAccount: "default", ImagePullSecrets: secrets}.String()
	}
	image := private.Host() + "/alice/app:1"
	missing := private.Host() + "/alice/abs:1"
	hers := structured(image, "alice", "pull")
	if got := w.ask(server.PathNamespaced, hers); !strings.Contains(got.text, "linux/s390x") {
		t.Fatalf("alice herself: %s", got.text)
	}
	client := w.gatekeeperClient()
	for name, ask := range map[string]func(image string) string{
		"another namespace":                    func(image string) string { return w.ask(server.PathNamespaced, structured(image, "bob")).text },
		"another namespace, the secret's name": func(image string) string { return w.ask(server.PathNamespaced, structured(image, "bob", "pull")).text },
		"her namespace, another secret": func(image string) string {
			return w.ask(server.PathNamespaced, structured(image, "alice", "other")).text
		},
		"a plain key":  func(image string) string { return w.ask(server.PathPublic, image).text },
		"to be pinned": func(image string) string { return w.ask(server.PathPin, image).text },
		"the page for people": func(image string) string {
			return w.do(client, http.MethodGet, w.data+server.PathImages+"?image="+image, "").text
		},
		"her structured key as a plain one": func(image string) string { return w.ask(server.PathPublic, structured(image, "alice", "pull")).text },
		"her structured key as an image": func(image string) string {
			return w.ask(server.PathNamespaced, structured(structured(image, "alice", "pull"), "bob")).text
		},
		"her structured key to be pinned": func(image string) string { return w.ask(server.PathPin, structured(image, "alice", "pull")).text },
	} {
		t.Run(name, func(t *testing.T) {
			got, none := ask(image), ask(missing)
			for _, secret := range []string{"s390x", digest, "hunter2"} {
				if strings.Contains(got, secret) {
					t.Errorf("%s leaked: %s", secret, got)
				}
			}
			if strings.ReplaceAll(got, "alice/app", "alice/abs") != none {
				t.Errorf("there and not there can be told apart:\n%s%s", got, none)
			}
		})
	}
	t.Run("by digest, from another namespace", func(t *testing.T) {
		got := w.ask(server.PathNamespaced, structured(private.Host()+"/alice/app@"+digest, "bob", "pull"))
		if strings.Contains(got.text, "s390x") || got.Response.SystemError == "" {
			t.Errorf("%s", got.text)
		}
	})
	t.Run("metrics and log", func(t *testing.T) {
		metrics := must(http.Get(w.probe + server.PathMetrics))
		defer metrics.Body.Close()
		for where, text := range map[string]string{"metrics": readAll(metrics), "log": w.log.String()} {
			for _, secret := range []string{"s390x", "alice", digest, "hunter2"} {
				if strings.Contains(text, secret) {
					t.Errorf("%s in the %s", secret, where)
				}
			}
		}
	})
}
