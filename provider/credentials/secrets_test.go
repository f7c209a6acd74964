package credentials

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
)

const app = "quay.io/team/app"

func newSecrets(t *testing.T, options SecretsOptions) *Secrets {
	t.Helper()
	s, err := NewSecrets(options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs the watches for the test's time.
func start(t *testing.T, s *Secrets) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-tick.C:
		}
	}
}

func scope(namespace, account string, secrets ...string) provider.Scope {
	return provider.Scope{Namespace: namespace, ServiceAccount: account, ImagePullSecrets: secrets}
}

func TestSecrets(t *testing.T) {
	for _, mode := range []struct {
		name     string
		onDemand bool
	}{{"watched", false}, {"on demand", true}} {
		t.Run(mode.name, func(t *testing.T) {
			api := startAPIServer(t)
			api.pullSecret("ns", "one", "one")
			api.pullSecret("ns", "two", "two")
			api.pullSecret("ns", "same", "one")
			api.pullSecret("other", "foreign", "foreign")
			api.secret("ns", "older", corev1.SecretTypeDockercfg, corev1.DockerConfigKey, `{"quay.io/team":{"username":"older"}}`)
			api.secret("ns", "opaque", corev1.SecretTypeOpaque, corev1.DockerConfigJsonKey, config("opaque"))
			api.secret("ns", "empty", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, "")
			api.secret("ns", "broken", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, "hunter2")
			api.secret("ns", "partly", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, `{"auths":{"bad":{"auth":"hunter2!"},"quay.io":{"username":"partly"}}}`)
			api.account("ns", "default", "two")
			api.account("ns", "builder", "one", "older")
			api.account("ns", "bare")
			s := newSecrets(t, SecretsOptions{Client: api.client(), OnDemand: mode.onDemand})
			start(t, s)
			eventually(t, "in step", s.Synced)

			for name, test := range map[string]struct {
				scope provider.Scope
				want  string
				err   string // part of it
			}{
				"a pod's secret":                                 {scope("ns", "builder", "two"), "two", ""},
				"several, in order":                              {scope("ns", "", "two", "one"), "two one", ""},
				"a longer path first, whatever the order":        {scope("ns", "", "one", "older"), "older one", ""},
				"equal secrets once":                             {scope("ns", "", "one", "same"), "one", ""},
				"the account's only when the pod lists none":     {scope("ns", "builder"), "older one", ""},
				"the default account":                            {scope("ns", "default"), "two", ""},
				"no account means the default one":               {scope("ns", ""), "two", ""},
				"an account without secrets":                     {scope("ns", "bare"), "", ""},
				"an account that is not there":                   {scope("ns", "nobody"), "", "service account ns/nobody is not there"},
				"the anonymous scope":                            {provider.Scope{ServiceAccount: "default", ImagePullSecrets: []string{"one"}}, "", ""},
				"a secret that is not there hides no other":      {scope("ns", "", "missing", "one"), "one", "secret ns/missing is not there"},
				"a secret of another namespace is not reachable": {scope("ns", "", "foreign"), "", "secret ns/foreign is not there"},
				"nor by a path":                                  {scope("ns", "", "../../other/secrets/foreign"), "", "secret ns/"},
				"a secret of another type":                       {scope("ns", "", "opaque", "one"), "one", "secret ns/opaque is not of a pull secret's type"},
				"an empty secret":                                {scope("ns", "", "empty"), "", "secret ns/empty holds no Docker configuration"},
				"a broken secret hides no other":                 {scope("ns", "", "broken", "one"), "one", "secret ns/broken is not the JSON"},
				"a broken entry hides no other":                  {scope("ns", "", "partly"), "partly", `secret ns/partly entry "bad" has an "auth"`},
				"an empty name is passed over":                   {scope("ns", "", "", "one"), "one", ""},
				"an empty name is no reason for the account's":   {scope("ns", "default", ""), "", ""},
				"two faults are both told":                       {scope("ns", "", "missing", "broken"), "", "secret ns/broken"},
				"too many secrets":                               {scope("ns", "", append([]string{"one"}, make([]string, maxSecrets)...)...), "one", "of 65 pull secrets in namespace ns the first 64 are read"},
			} {
				t.Run(name, func(t *testing.T) {
					found, err := s.Lookup(t.Context(), test.scope, app)
					if got := names(found); got != test.want {
						t.Errorf("found %q, want %q", got, test.want)
					}
					if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
						t.Errorf("error is %v, want %q", err, test.err)
					}
					if err != nil && strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), "hunter2") {
						t.Errorf("error holds content: %+v", err)
					}
				})
			}
			found, err := s.Lookup(t.Context(), scope("ns", "", "one"), app)
			if err != nil || len(found) != 1 || found[0].Source() != "secret ns/one" {
				t.Errorf("found %v, %v", found, err)
			}
		})
	}
}

func TestChangesTakeEffect(t *testing.T) {
	for _, mode := range []struct {
		name     string
		onDemand bool
	}{{"watched", false}, {"on demand", true}} {
		t.Run(mode.name, func(t *testing.T) {
			api := startAPIServer(t)
			api.pullSecret("ns", "s", "before")
			api.account("ns", "default", "s")
			s := newSecrets(t, SecretsOptions{Client: api.client(), OnDemand: mode.onDemand})
			start(t, s)
			eventually(t, "in step", s.Synced)
			look := func() (Credential, string) {
				found, _ := s.Lookup(t.Context(), scope("ns", "default"), app)
				if len(found) == 0 {
					return Credential{}, ""
				}
				return found[0], names(found)
			}
			before, user := look()
			if user != "before" {
				t.Fatalf("found %q", user)
			}
			is := func(want string) func() bool {
				return func() bool { _, user := look(); return user == want }
			}
			at := func(want string) {
				t.Helper()
				if mode.onDemand {
					if !is(want)() {
						t.Errorf("not at once: %q", want)
					}
					return
				}
				eventually(t, want, is(want))
			}
			api.pullSecret("ns", "s", "after")
			at("after")
			if after, _ := look(); after.Fingerprint() == before.Fingerprint() {
				t.Error("the fingerprint of another password is the same")
			}
			api.remove("secrets", "ns", "s")
			at("")
			api.pullSecret("ns", "s", "again")
			at("again")
			api.account("ns", "default", "other")
			at("")
			api.pullSecret("ns", "other", "other")
			at("other")
			api.remove("serviceaccounts", "ns", "default")
			at("")
		})
	}
}

func TestWatchingHoldsOnlyWhatIsNeeded(t *testing.T) {
	api := startAPIServer(t)
	api.pullSecret("ns", "pull", "u")
	for i := range 20 {
		api.secret("ns", fmt.Sprintf("tls-%d", i), corev1.SecretTypeTLS, corev1.TLSPrivateKeyKey, "hunter2")
	}
	api.account("ns", "default", "pull")
	s := newSecrets(t, SecretsOptions{Client: api.client()})
	start(t, s)
	eventually(t, "in step", s.Synced)
	kept := 0
	for _, w := range s.watches {
		for _, object := range w.informer.GetIndexer().List() {
			kept++
			h, ok := object.(*held)
			if !ok {
				t.Fatalf("kept a %T", object)
			}
			if want := (metav1.ObjectMeta{Namespace: h.Namespace, Name: h.Name, ResourceVersion: h.ResourceVersion}); fmt.Sprint(h.ObjectMeta) != fmt.Sprint(want) {
				t.Errorf("kept metadata %v", h.ObjectMeta)
			}
		}
	}
	if kept != 2 {
		t.Errorf("%d objects kept, want the pull secret and the service account", kept)
	}
	for _, request := range api.requests {
		if strings.Contains(request, " secrets ") && !strings.Contains(request, "type=kubernetes.io/dockerc") {
			t.Errorf("request without a type: %s", request)
		}
	}
	if _, err := s.Lookup(t.Context(), scope("ns", "default"), app); err != nil {
		t.Fatal(err)
	}
	if n := api.asked("get"); n != 0 {
		t.Errorf("%d GETs although everything is watched", n)
	}
}

func TestWhenWatchingIsNotAllowed(t *testing.T) {
	api := startAPIServer(t)
	api.deny("list", "watch")
	api.pullSecret("ns", "s", "u")
	api.account("ns", "default", "s")
	var mu sync.Mutex
	var logged bytes.Buffer
	s := newSecrets(t, SecretsOptions{Client: api.client(), Logger: slog.New(slog.NewTextHandler(lockedWriter{&mu, &logged}, nil))})
	start(t, s)
	said := func() string { mu.Lock(); defer mu.Unlock(); return logged.String() }
	eventually(t, "it is told", func() bool { return strings.Count(said(), "not allowed to list and watch") == 1 })
	found, err := s.Lookup(t.Context(), scope("ns", "default"), app)
	if got := names(found); got != "u" || err != nil {
		t.Errorf("found %q, %v; want the secret by GET", got, err)
	}
	if strings.Contains(said(), "hunter2") {
		t.Errorf("the log repeats the API server: %s", said())
	}
	api.deny("list", "watch", "get secrets")
	found, err = s.Lookup(t.Context(), scope("ns", "default"), app)
	var fault *SecretError
	if len(found) != 0 || !errors.As(err, &fault) || err.Error() != "secret ns/s may not be read" {
		t.Errorf("found %v, %v", found, err)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

func TestNamespacesThatMayBeRead(t *testing.T) {
	api := startAPIServer(t)
	for _, namespace := range []string{"a", "b", "c"} {
		api.pullSecret(namespace, "s", namespace)
		api.account(namespace, "default", "s")
	}
	for _, onDemand := range []bool{true, false} {
		s := newSecrets(t, SecretsOptions{Client: api.client(), Namespaces: []string{"a", "b"}, OnDemand: onDemand})
		start(t, s)
		eventually(t, "in step", s.Synced)
		for _, namespace := range []string{"a", "b"} {
			if found, err := s.Lookup(t.Context(), scope(namespace, ""), app); names(found) != namespace || err != nil {
				t.Errorf("%s: found %v, %v", namespace, found, err)
			}
		}
		if found, err := s.Lookup(t.Context(), scope("c", ""), app); found != nil || err == nil || !strings.Contains(err.Error(), "namespace c") {
			t.Errorf("c: found %v, %v", found, err)
		}
	}
	if n := api.asked("get secrets c/") + api.asked("list secrets /") + api.asked("watch secrets /") + api.asked("watch secrets c/"); n != 0 {
		t.Errorf("%d requests reached beyond the namespaces", n)
	}
}

func TestGetsAreSharedAndBounded(t *testing.T) {
	api := startAPIServer(t)
	api.pullSecret("ns", "s", "u")
	release := api.stall()
	s := newSecrets(t, SecretsOptions{Client: api.client(), OnDemand: true})

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if found, err := s.Lookup(short, scope("ns", "", "s"), app); found != nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "secret ns/s was not read in time") {
		t.Errorf("found %v, %v", found, err)
	}
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() {
			if _, err := s.Lookup(short, scope("ns", "", "s"), app); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error is %v", err)
			}
		})
	}
	running.Wait()
	if n := api.asked("get"); n != 1 {
		t.Errorf("%d GETs for 21 callers while the first has no answer, want 1", n)
	}
	release()
	if found, err := s.Lookup(t.Context(), scope("ns", "", "s"), app); names(found) != "u" || err != nil {
		t.Errorf("found %v, %v", found, err)
	}

	release = api.stall()
	defer release()
	hasty := newSecrets(t, SecretsOptions{Client: api.client(), OnDemand: true, GetTimeout: 50 * time.Millisecond})
	if _, err := hasty.Lookup(t.Context(), scope("ns", "", "s"), app); err == nil || !strings.Contains(err.Error(), "was not read in time") {
		t.Errorf("a GET without an answer: %v", err)
	}
}

func TestMissingIsNotAskedForAgainAndAgain(t *testing.T) {
	api := startAPIServer(t)
	clock := testclock.NewFakePassiveClock(time.Now())
	s := newSecrets(t, SecretsOptions{Client: api.client(), Clock: clock})
	start(t, s)
	eventually(t, "in step", s.Synced)
	look := func() string {
		found, _ := s.Lookup(t.Context(), scope("ns", "", "late"), app)
		return names(found)
	}
	for range 5 {
		if got := look(); got != "" {
			t.Fatalf("found %q", got)
		}
	}
	if n := api.asked("get"); n != 1 {
		t.Errorf("%d GETs for 5 look-ups of a missing secret, want 1", n)
	}
	clock.SetTime(clock.Now().Add(missingFor))
	look()
	if n := api.asked("get"); n != 2 {
		t.Errorf("%d GETs after a while, want 2", n)
	}
	api.pullSecret("ns", "late", "late")
	eventually(t, "the watch tells of it at once", func() bool { return look() == "late" })
	if n := api.asked("get"); n != 2 {
		t.Errorf("%d GETs, want 2", n)
	}
}

func TestShared(t *testing.T) {
	for _, onDemand := range []bool{false, true} {
		api := startAPIServer(t)
		api.pullSecret("openshift-config", "pull-secret", "global")
		api.deny("list serviceaccounts")
		s := newSecrets(t, SecretsOptions{Client: api.client(), OnDemand: onDemand, Namespaces: []string{"ns"}})
		shared, err := s.Shared(types.NamespacedName{Namespace: "openshift-config", Name: "pull-secret"})
		if err != nil {
			t.Fatal(err)
		}
		start(t, s)
		user := func() string {
			found, _ := shared.Lookup(t.Context(), provider.Scope{}, app)
			return names(found)
		}
		eventually(t, "the shared secret", func() bool { return user() == "global" })
		api.remove("secrets", "openshift-config", "pull-secret")
		eventually(t, "its removal", func() bool { return user() == "" })
		// A look-up that went to the API server may know before the watch does.
		eventually(t, "the removal's error", func() bool {
			_, err := shared.Lookup(t.Context(), provider.Scope{}, app)
			return err != nil && err.Error() == "secret openshift-config/pull-secret is not there"
		})
	}
}
