package policy_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/frameworks/constraint/pkg/client/drivers/rego"
	"github.com/open-policy-agent/frameworks/constraint/pkg/client/reviews"
	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"
	"github.com/open-policy-agent/gatekeeper/v3/apis"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/gator"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/gator/reader"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/types"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/target"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/util"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/archkeeper/archkeeper/policies"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/wire"
)

// TestOneCall counts what a provider is asked for.
func TestOneCall(t *testing.T) {
	w := newWorld(t)
	w.learn(t, fixtureOf(t, 30))
	large := podOf(30)

	t.Run("30 containers make one call of 30 keys, the same pod again none", func(t *testing.T) {
		w.forget()
		client := w.client(t, true, "image-architectures/samples/constraint.yaml")
		for range 2 {
			if got := review(t, client, large); len(got) != 0 {
				t.Errorf("violations %q", got)
			}
		}
		if got := sizes(w.asked()); !cmp.Equal(got, []int{30}) {
			t.Errorf("calls of %v keys, want one of 30", got)
		}
	})
	t.Run("30 containers of one image make one call of one key", func(t *testing.T) {
		w.forget()
		pod := podOf(30)
		containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
		for _, container := range containers {
			container.(map[string]any)["image"] = "registry.example/app-0:1"
		}
		if err := unstructured.SetNestedSlice(pod.Object, containers, "spec", "containers"); err != nil {
			t.Fatal(err)
		}
		review(t, w.client(t, false, "image-architectures/samples/constraint.yaml"), pod)
		if got := sizes(w.asked()); !cmp.Equal(got, []int{1}) {
			t.Errorf("calls of %v keys, want one of 1", got)
		}
	})
	t.Run("a constraint that denies and one that warns share a call", func(t *testing.T) {
		w.forget()
		review(t, w.client(t, false, "image-architectures/samples/constraint-allow.yaml", "image-architectures/samples/constraint-warn.yaml"), large)
		if got := sizes(w.asked()); !cmp.Equal(got, []int{30}) {
			t.Errorf("calls of %v keys, want one of 30", got)
		}
	})
	t.Run("scope namespaced sends the pod's own secrets and service account", func(t *testing.T) {
		w.forget()
		pod := podOf(1)
		for field, value := range map[string]any{"serviceAccountName": "till", "imagePullSecrets": []any{map[string]any{"name": "a"}, map[string]any{"name": "b"}}} {
			if err := unstructured.SetNestedField(pod.Object, value, "spec", field); err != nil {
				t.Fatal(err)
			}
		}
		if got := review(t, w.client(t, false, "image-architectures/samples/constraint-required.yaml"), pod); len(got) != 0 {
			t.Errorf("violations %q", got)
		}
		want := [][]provider.Query{{{
			Image: "registry.example/app-0:1",
			Scope: provider.Scope{Namespace: "shop", ServiceAccount: "till", ImagePullSecrets: []string{"a", "b"}},
		}}}
		if diff := cmp.Diff(want, w.asked()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
	t.Run("an image that is undetermined is asked for again, the others come from the cache", func(t *testing.T) {
		w.forget()
		client := w.client(t, true, "image-architectures/samples/constraint.yaml")
		pod := podOf(31) // the last is in no fixture
		for range 2 {
			got := review(t, client, pod)
			if len(got) != 1 || !strings.HasPrefix(got[0], `undetermined: container "app-30" image "registry.example/app-30:1": not-found: `) {
				t.Errorf("violations %q", got)
			}
		}
		if got := sizes(w.asked()); !cmp.Equal(got, []int{31, 1}) {
			t.Errorf("calls of %v keys, want 31 and then 1", got)
		}
	})
}

// TestUndetermined: whatever happens on the way to the provider, every image has
// an answer, and the answer says what a person has to mend.
func TestUndetermined(t *testing.T) {
	tests := map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"an answer without items": {
			handler: answer(http.StatusOK, `{"apiVersion":"externaldata.gatekeeper.sh/v1beta1","kind":"ProviderResponse","response":{"items":[]}}`),
			want:    `internal: Provider "archkeeper" left the image out of its answer`,
		},
		"an empty object": {
			handler: answer(http.StatusOK, `{}`),
			want:    `internal: Provider "archkeeper" left the image out of its answer`,
		},
		"no JSON": {
			handler: answer(http.StatusBadGateway, `<html>502</html>`),
			want:    `unreachable: Provider "archkeeper" did not answer: failed to unmarshal external data response`,
		},
		"a system error of its own": {
			handler: answer(http.StatusOK, `{"response":{"systemError":"out of order"}}`),
			want:    `unreachable: Provider "archkeeper" did not answer: out of order`,
		},
		"a system error that names the class": {
			handler: answer(http.StatusOK, fmt.Sprintf(`{"response":{"systemError":%q}}`,
				wire.EncodeSystemError([]wire.Undetermined{{Key: "registry.example/app-0:1", Class: provider.ClassRateLimited, Message: "429 from registry.example"}}))),
			want: `rate-limited: 429 from registry.example`,
		},
		"status 500 with items counts": {
			handler: answer(http.StatusInternalServerError, `{"response":{"items":[{"key":"registry.example/app-0:1","value":{"architectures":["amd64"],"platforms":["linux/amd64"]}}]}}`),
		},
		"a value in another shape": {
			handler: answer(http.StatusOK, `{"response":{"items":[{"key":"registry.example/app-0:1","value":"linux/amd64"}]}}`),
			want:    `internal: the provider's answer names no platform`,
		},
		"another key": {
			handler: answer(http.StatusOK, `{"response":{"items":[{"key":"registry.example/other:1","value":{"architectures":["amd64"],"platforms":["linux/amd64"]}}]}}`),
			want:    `internal: Provider "archkeeper" left the image out of its answer`,
		},
		"two answers": {
			handler: answer(http.StatusOK, `{"response":{"items":[
				{"key":"registry.example/app-0:1","value":{"architectures":["amd64"],"platforms":["linux/amd64"]}},
				{"key":"registry.example/app-0:1","value":{"architectures":["arm64"],"platforms":["linux/arm64"]}}]}}`),
			want: `internal: the provider gave two different answers`,
		},
		"no answer in time": {
			handler: func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // so that the server sees the client go
				<-r.Context().Done()
			},
			want: `timeout: Provider "archkeeper" did not answer in time`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(test.handler)
			server.StartTLS()
			defer server.Close()
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			w := &world{Cache: externaldata.NewCache()}
			w.register(t, "archkeeper", server.URL, ca)
			check(t, review(t, w.client(t, true, "image-architectures/samples/constraint.yaml"), podOf(1)), test.want)
		})
	}
	t.Run("no connection", func(t *testing.T) {
		w := newWorld(t)
		_, _, ca := certificate(t)
		w.register(t, "archkeeper", "https://127.0.0.1:1", ca)
		check(t, review(t, w.client(t, true, "image-architectures/samples/constraint.yaml"), podOf(1)), `unreachable: Provider "archkeeper" did not answer: `)
	})
	t.Run("no Provider object", func(t *testing.T) {
		w := &world{Cache: externaldata.NewCache()}
		check(t, review(t, w.client(t, true, "image-architectures/samples/constraint.yaml"), podOf(1)), `unreachable: there is no Provider object "archkeeper"`)
	})
}

// TestNoSilentAllow puts every Rego constraint before a provider that is not
// there: each reports the sample that it should deny.
func TestNoSilentAllow(t *testing.T) {
	files := policies.FS()
	w := &world{Cache: externaldata.NewCache()}
	for _, file := range glob(t, files, "constraints/*/policy.rego") {
		room := path.Base(path.Dir(file))
		t.Run(room, func(t *testing.T) {
			pod := readObject(t, files, "constraints/"+room+"/samples/disallowed.yaml")
			got := review(t, w.client(t, false, room+"/samples/constraint.yaml"), pod)
			want := "undetermined: "
			if room == "architecture-selector-conflict" { // its sample constraint allows what is not known
				if len(got) != 0 {
					t.Errorf("violations %q", got)
				}
				return
			}
			for _, message := range got {
				if !strings.HasPrefix(message, want) {
					t.Errorf("violation %q", message)
				}
			}
			if len(got) == 0 {
				t.Error("allowed in silence")
			}
		})
	}
}

// BenchmarkReview measures one review through Gatekeeper's client with all
// answers in its cache: go test -run '^$' -bench Review -count 6 . | benchstat -col /containers -
// cpu-µs/op is what the process has used, garbage collection included: on a busy
// machine it tells more than the time that passed.
func BenchmarkReview(b *testing.B) {
	w := newWorld(b)
	w.learn(b, fixtureOf(b, 30))
	for _, file := range glob(b, policies.FS(), "constraints/*/samples/constraint.yaml") {
		room := path.Base(path.Dir(path.Dir(file)))
		if room == "mirror-sets" {
			continue // not about pods
		}
		for _, n := range []int{1, 10, 30} {
			b.Run(fmt.Sprintf("room=%s/containers=%d", room, n), func(b *testing.B) {
				client := w.client(b, true, room+"/samples/constraint.yaml")
				pod := podOf(n)
				review(b, client, pod) // fills the cache
				b.ReportAllocs()
				before := processorTime(b)
				for b.Loop() {
					review(b, client, pod)
				}
				b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// client gives Gatekeeper's client with constraints (paths below constraints/)
// and their templates; cached as Gatekeeper caches by default.
func (w *world) client(t testing.TB, cached bool, constraints ...string) gator.Client {
	t.Helper()
	var args []rego.Arg
	if cached {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		args = append(args, rego.AddExternalDataProviderResponseCache(externaldata.NewProviderResponseCache(ctx, 3*time.Minute)))
	}
	client, err := w.newClient(args...)()
	if err != nil {
		t.Fatal(err)
	}
	files := policies.FS()
	scheme := runtime.NewScheme()
	if err := apis.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, file := range constraints {
		file = path.Join("constraints", file)
		template, err := reader.ReadTemplate(scheme, files, path.Join(path.Dir(path.Dir(file)), "template.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.AddTemplate(t.Context(), template); err != nil {
			t.Fatal(err)
		}
		if _, err := client.AddConstraint(t.Context(), readObject(t, files, file)); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

// review gives the messages of a review, as the webhook would make it.
func review(t testing.TB, client gator.Client, object *unstructured.Unstructured) []string {
	t.Helper()
	responses, err := client.Review(t.Context(), target.AugmentedUnstructured{Object: *object, Source: types.SourceTypeOriginal},
		reviews.EnforcementPoint(util.GatorEnforcementPoint))
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for _, result := range responses.Results() {
		messages = append(messages, result.Msg)
	}
	return messages
}

func check(t *testing.T, got []string, want string) {
	t.Helper()
	if want == "" {
		if len(got) != 0 {
			t.Errorf("violations %q, want none", got)
		}
		return
	}
	want = `undetermined: container "app-0" image "registry.example/app-0:1": ` + want
	if len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("violations %q, want one that begins with %q", got, want)
	}
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batches = nil
}

func sizes(batches [][]provider.Query) []int {
	var out []int
	for _, batch := range batches {
		out = append(out, len(batch))
	}
	return out
}

// podOf gives a pod with n containers, each with an image of its own.
func podOf(n int) *unstructured.Unstructured {
	var containers []any
	for i := range n {
		containers = append(containers, map[string]any{"name": fmt.Sprintf("app-%d", i), "image": fmt.Sprintf("registry.example/app-%d:1", i)})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "app", "namespace": "shop"},
		"spec":     map[string]any{"containers": containers},
	}}
}

// fixtureOf gives what is known of the images of podOf(n).
func fixtureOf(t testing.TB, n int) []byte {
	t.Helper()
	var known []wire.Image
	for i := range n {
		known = append(known, wire.Image{
			Image: fmt.Sprintf("registry.example/app-%d:1", i), Digest: fmt.Sprintf("sha256:%064d", i), Kind: provider.KindIndex,
			Platforms: []string{"linux/amd64", "linux/arm64"}, Architectures: []string{"amd64", "arm64"},
		})
	}
	fixture, err := json.Marshal(known)
	if err != nil {
		t.Fatal(err)
	}
	return fixture
}
