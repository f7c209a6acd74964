package server_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/frameworks/constraint/pkg/apis/externaldata/unversioned"
	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/wire"
)

const (
	beta  = "externaldata.gatekeeper.sh/v1beta1"
	alpha = "externaldata.gatekeeper.sh/v1alpha1"
)

// Each request that cannot be answered gets its status and, whatever is wrong,
// a ProviderResponse that says so and holds no items.
func TestRequestsThatCannotBeAnswered(t *testing.T) {
	w := start(t, nil)
	client := w.gatekeeperClient()
	manyKeys := func(n int) string { return request(slices.Repeat([]string{"k"}, n)...) }
	for name, tc := range map[string]struct {
		method, path, body string
		header             []string
		status             int
		says, allow        string
	}{
		"an unknown path":                         {"POST", "/v1/other", request("a"), nil, 404, "no such path", ""},
		"the root":                                {"GET", "/", "", nil, 404, "no such path", ""},
		"a path with a slash at its end":          {"POST", "/v1/public/", request("a"), nil, 404, "no such path", ""},
		"a path with two slashes":                 {"POST", "//v1/public", request("a"), nil, 404, "no such path", ""},
		"a path that climbs":                      {"POST", "/v1/x/../public", request("a"), nil, 404, "no such path", ""},
		"GET where keys are posted":               {"GET", "/v1/public", "", nil, 405, "takes POST", "POST"},
		"PUT where keys are posted":               {"PUT", "/v1/namespaced", request("a"), nil, 405, "takes POST", "POST"},
		"OPTIONS":                                 {"OPTIONS", "/v1/pin", "", nil, 405, "takes POST", "POST"},
		"HEAD where keys are posted":              {"HEAD", "/v1/public", "", nil, 405, "", "POST"},
		"POST where an image is asked":            {"POST", "/v1/images?image=a", "{}", nil, 405, "takes GET", "GET, HEAD"},
		"no image":                                {"GET", "/v1/images", "", nil, 400, "?image=", ""},
		"an empty image":                          {"GET", "/v1/images?image=", "", nil, 400, "?image=", ""},
		"two images":                              {"GET", "/v1/images?image=a&image=b", "", nil, 400, "?image=", ""},
		"no body":                                 {"POST", "/v1/public", "", nil, 400, "not a ProviderRequest", ""},
		"an empty object":                         {"POST", "/v1/public", "{}", nil, 400, "apiVersion", ""},
		"broken JSON":                             {"POST", "/v1/public", `{"apiVersion":`, nil, 400, "byte", ""},
		"something behind the JSON":               {"POST", "/v1/public", request("a") + "x", nil, 400, "byte", ""},
		"an array":                                {"POST", "/v1/public", `["a"]`, nil, 400, "array", ""},
		"another kind":                            {"POST", "/v1/public", strings.Replace(request("a"), "ProviderRequest", "ProviderResponse", 1), nil, 400, "kind", ""},
		"another version":                         {"POST", "/v1/public", strings.Replace(request("a"), "v1beta1", "v9", 1), nil, 400, "apiVersion", ""},
		"keys that are no strings":                {"POST", "/v1/public", strings.Replace(request("a"), `"a"`, `7`, 1), nil, 400, "request.keys", ""},
		"keys that are no list":                   {"POST", "/v1/public", strings.Replace(request("a"), `["a"]`, `"a"`, 1), nil, 400, "request.keys", ""},
		"a body that is not UTF-8":                {"POST", "/v1/public", request("a") + "\xff", nil, 400, "UTF-8", ""},
		"another content type":                    {"POST", "/v1/public", request("a"), []string{"Content-Type", "text/plain"}, 415, "application/json", ""},
		"a content type that is none":             {"POST", "/v1/public", request("a"), []string{"Content-Type", ";;"}, 415, "application/json", ""},
		"another charset":                         {"POST", "/v1/public", request("a"), []string{"Content-Type", "application/json; charset=latin1"}, 415, "charset", ""},
		"a compressed body":                       {"POST", "/v1/public", request("a"), []string{"Content-Encoding", "gzip"}, 415, "Content-Encoding", ""},
		"one key too many":                        {"POST", "/v1/public", manyKeys(513), nil, 413, "513 keys", ""},
		"one byte too many":                       {"POST", "/v1/public", request("a") + strings.Repeat(" ", server.MaxBodySize), nil, 413, "larger than", ""},
		"five times too many bytes":               {"POST", "/v1/public", strings.Repeat(" ", 5*server.MaxBodySize), nil, 413, "larger than", ""},
		"a structured key's path with bad JSON":   {"POST", "/v1/namespaced", "[", nil, 400, "byte", ""},
		"pinning with bad JSON":                   {"POST", "/v1/pin", "[", nil, 400, "byte", ""},
		"an Accept header that names no JSON":     {"POST", "/v1/other", "{}", []string{"Accept", "text/html"}, 404, "no such path", ""},
		"an Accept-Encoding header that is odd":   {"POST", "/v1/other", "{}", []string{"Accept-Encoding", "br;q=x"}, 404, "no such path", ""},
		"a method that nobody knows":              {"BREW", "/v1/public", "", nil, 405, "takes POST", "POST"},
		"an escaped slash in a path":              {"POST", "/v1%2Fpublic/x", request("a"), nil, 404, "no such path", ""},
		"an admission path on the data port":      {"POST", "/v1/admit/0123456789abcdef", "{}", nil, 404, "no such path", ""},
		"the metrics' path on the data port":      {"GET", "/metrics", "", nil, 404, "no such path", ""},
		"a content type in upper case is alright": {"POST", "/v1/other", "{}", []string{"Content-Type", "Application/JSON; Charset=UTF-8"}, 404, "no such path", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.do(client, tc.method, w.data+tc.path, tc.body, tc.header...)
			if got.StatusCode != tc.status {
				t.Errorf("status %d, want %d: %s", got.StatusCode, tc.status, got.text)
			}
			if allow := got.Header.Get("Allow"); allow != tc.allow {
				t.Errorf("Allow %q, want %q", allow, tc.allow)
			}
			if contentType := got.Header.Get("Content-Type"); contentType != "application/json" {
				t.Errorf("Content-Type %q", contentType)
			}
			if tc.method == http.MethodHead {
				return
			}
			if got.Kind != externaldata.ProviderResponseKind || got.APIVersion != beta || len(got.Response.Items) != 0 {
				t.Errorf("not an empty ProviderResponse: %s", got.text)
			}
			if !strings.Contains(got.Response.SystemError, tc.says) || tc.says == "" {
				t.Errorf("systemError %q, want one with %q", got.Response.SystemError, tc.says)
			}
		})
	}
}

func TestRequestsThatAreAnswered(t *testing.T) {
	w := start(t, nil)
	client := w.gatekeeperClient()
	for name, tc := range map[string]struct {
		body   string
		header []string
		items  int
		api    string
	}{
		"as Gatekeeper sends it":          {request("r/a:1"), nil, 1, beta},
		"in the older version":            {strings.Replace(request("r/a:1"), "v1beta1", "v1alpha1", 1), nil, 1, alpha},
		"no keys, as Gatekeeper sends it": {request(), nil, 0, beta},
		"fields that are not known":       {`{"new":1,` + request("r/a:1")[1:], nil, 1, beta},
		"no content type":                 {request("r/a:1"), []string{"Content-Type", ""}, 1, beta},
		"a content type with a charset":   {request("r/a:1"), []string{"Content-Type", "application/json; charset=utf-8"}, 1, beta},
		"an Accept header without JSON":   {request("r/a:1"), []string{"Accept", "image/png"}, 1, beta},
		"the same key four times":         {request("r/a:1", "r/b:1", "r/a:1", "r/a:1"), nil, 2, beta},
		"as many keys as are allowed":     {request(slices.Repeat([]string{"r/a:1"}, server.MaxKeys)...), nil, 1, beta},
		"as many bytes as are allowed":    {request("r/a:1") + strings.Repeat(" ", server.MaxBodySize-len(request("r/a:1"))), nil, 1, beta},
		"a caller who takes gzip":         {request("r/a:1"), []string{"Accept-Encoding", "gzip"}, 1, beta},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.do(client, http.MethodPost, w.data+server.PathPublic, tc.body, tc.header...)
			if got.StatusCode != 200 || got.APIVersion != tc.api || got.Kind != externaldata.ProviderResponseKind ||
				len(got.Response.Items) != tc.items || got.Response.SystemError != "" || !got.Response.Idempotent {
				t.Errorf("status %d: %s", got.StatusCode, got.text)
			}
		})
	}
}

func key(image string) string {
	return wire.Key{Image: image, Namespace: "ns", ServiceAccount: "default", ImagePullSecrets: []string{"s"}}.String()
}

// What may pass is never an item where Gatekeeper would cache it, and always
// one where a systemError would void the other images' answers.
func TestEachClassTakesItsForm(t *testing.T) {
	w := start(t, nil)
	for _, class := range provider.Classes() {
		image := "r/" + string(class) + ":1"
		for path, tc := range map[string]struct {
			key  string
			item bool
		}{
			server.PathPublic:     {image, !class.Retryable()},
			server.PathNamespaced: {key(image), !class.Retryable()},
			server.PathPin:        {image, true},
		} {
			t.Run(string(class)+" on "+path, func(t *testing.T) {
				good := strings.Replace(tc.key, image, "r/good:1", 1)
				got := w.ask(path, tc.key, good)
				if got.StatusCode != 200 || !got.Response.Idempotent {
					t.Fatalf("status %d: %s", got.StatusCode, got.text)
				}
				item := externaldata.Item{Key: tc.key, Error: string(class) + ": as its name says"}
				items := got.Response.Items
				if tc.item {
					if len(items) != 2 || items[0] != item || items[1].Key != good || got.Response.SystemError != "" {
						t.Fatalf("want an item error: %s", got.text)
					}
					return
				}
				want := wire.SystemError{V: 1, Undetermined: []wire.Undetermined{{Key: tc.key, Class: class, Message: "as its name says"}}}
				said, err := wire.ParseSystemError(got.Response.SystemError)
				if err != nil || !reflect.DeepEqual(said, want) {
					t.Errorf("systemError %q, %v", got.Response.SystemError, err)
				}
				if len(items) != 1 || items[0].Key != good || items[0].Error != "" {
					t.Errorf("the good image's answer is missing: %s", got.text)
				}
			})
		}
	}
	if got := w.metric(`archkeeper_provider_key_errors_total{class="not-found",form="undetermined",path="/v1/public"}`); got != "1" {
		t.Errorf("not-found on /v1/public counted %s times", got)
	}
	if got := w.metric(`archkeeper_provider_key_errors_total{class="not-found",form="item",path="/v1/pin"}`); got != "1" {
		t.Errorf("not-found on /v1/pin counted %s times", got)
	}
	if got := w.metric(`archkeeper_provider_keys_total{path="/v1/public"}`); got != "20" {
		t.Errorf("%s keys counted, want 20", got)
	}
}

func TestValues(t *testing.T) {
	w := start(t, func(_ *world, o *server.Options) {
		o.HasTagMirrors = func(ref imageref.Reference) bool { return ref.Registry() == "mirrored.io" }
		shelf := o.Inspector
		o.Inspector = inspectorFunc(func(ctx context.Context, q provider.Query) provider.Answer {
			a := shelf.Inspect(ctx, []provider.Query{q})[0]
			if ref, err := imageref.Parse(q.Image); err == nil {
				a.Reference = ref.String()
			}
			return a
		})
	})
	platforms := `{"architectures":["amd64","arm64"],"platforms":["linux/amd64","linux/arm64"],"digest":"` + digest + `","kind":"index"}`
	for name, tc := range map[string]struct {
		path, key, value, err string
	}{
		"an image":                               {server.PathPublic, "r.io/a:1", platforms, ""},
		"an image of a namespace":                {server.PathNamespaced, key("r.io/a:1"), platforms, ""},
		"content only":                           {server.PathPublic, "r.io/bundle:1", `{"architectures":[],"platforms":[],"digest":"` + digest + `","kind":"index","contentOnly":true}`, ""},
		"a structured key where none belongs":    {server.PathPublic, key("r.io/a:1"), "", "malformed: "},
		"a list where none belongs":              {server.PathPublic, `["r.io/a:1"]`, "", "malformed: "},
		"a structured key that is to be pinned":  {server.PathPin, key("r.io/a:1"), "", "malformed: "},
		"a plain key where a structured belongs": {server.PathNamespaced, "r.io/a:1", "", "malformed: "},
		"a structured key with a field too many": {server.PathNamespaced, `{"image":"r.io/a:1","imagePullSecrets":[],"namespace":"ns","serviceAccount":"d","v":1,"x":1}`, "", "malformed: "},
		"a structured key of another version":    {server.PathNamespaced, strings.Replace(key("r.io/a:1"), `"v":1`, `"v":2`, 1), "", "malformed: "},
		"a structured key with a bad namespace":  {server.PathNamespaced, strings.Replace(key("r.io/a:1"), `"ns"`, `"../kube-system"`, 1), "", "malformed: "},
		"an image that is to be pinned":          {server.PathPin, "r.io/a:1", `"r.io/a:1@` + digest + `"`, ""},
		"an image without a tag":                 {server.PathPin, "r.io/a", `"r.io/a:latest@` + digest + `"`, ""},
		"an image of the hub":                    {server.PathPin, "busybox:1", `"docker.io/library/busybox:1@` + digest + `"`, ""},
		"an image that is pinned":                {server.PathPin, "busybox@" + digest, `"busybox@` + digest + `"`, ""},
		"an image with tag and digest":           {server.PathPin, "r.io/a:1@" + digest, `"r.io/a:1@` + digest + `"`, ""},
		"an image whose tags are mirrored":       {server.PathPin, "mirrored.io/a:1", `"mirrored.io/a:1"`, ""},
		"a bad image that is to be pinned":       {server.PathPin, "r.io/A:1", "", "malformed: "},
		"white space that is to be pinned":       {server.PathPin, " r.io/a:1", "", "malformed: "},
		"nothing that is to be pinned":           {server.PathPin, "", "", "malformed: "},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.ask(tc.path, tc.key)
			if got.StatusCode != 200 || len(got.Response.Items) != 1 || got.Response.SystemError != "" {
				t.Fatalf("status %d: %s", got.StatusCode, got.text)
			}
			item := got.Response.Items[0]
			if item.Key != tc.key {
				t.Errorf("key %q, want %q", item.Key, tc.key)
			}
			if tc.err != "" {
				if !strings.HasPrefix(item.Error, tc.err) || item.Value != nil {
					t.Errorf("item %s, want an error with %q", got.text, tc.err)
				}
				return
			}
			if !strings.Contains(got.text, `"value":`+tc.value) {
				t.Errorf("value %s, want %s", got.text, tc.value)
			}
		})
	}
}

// The scope of a structured key reaches the inspector, that of a plain one is
// anonymous, and Cache-Control: no-cache asks for a fresh answer.
func TestWhatTheInspectorIsAsked(t *testing.T) {
	var mu sync.Mutex
	var asked []provider.Query
	w := start(t, func(_ *world, o *server.Options) {
		o.Inspector = inspectorFunc(func(ctx context.Context, q provider.Query) provider.Answer {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, q)
			return shelf(ctx, q)
		})
	})
	client := w.gatekeeperClient()
	w.do(client, "POST", w.data+server.PathPublic, request("r/a:1", "r/a:1"))
	w.do(client, "POST", w.data+server.PathNamespaced, request(key("r/a:1")))
	w.do(client, "POST", w.data+server.PathPin, request("r/a:1"), "Cache-Control", "max-age=0, No-Cache")
	w.do(client, "GET", w.data+server.PathImages+"?image=r/a:1", "", "Cache-Control", "no-cache")
	want := []provider.Query{
		{Image: "r/a:1"},
		{Image: "r/a:1", Scope: provider.Scope{Namespace: "ns", ServiceAccount: "default", ImagePullSecrets: []string{"s"}}},
		{Image: "r/a:1", Revalidate: true},
		{Image: "r/a:1", Revalidate: true},
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}

func TestKeysComeBackByteForByte(t *testing.T) {
	w := start(t, nil)
	keys := []string{
		"", " ", "\t r/a:1\n", "<script>&amp;", "Ünïcödé", "日本語/画像:1", "\u2028\u2029", "\x00\x01\x1f", `"\"`, "r/a:1\ufeff", "\ufffd",
		strings.Repeat("long", 50_000), "r/\U0001F433:1", "%2e%2e", "r/a:1", "R/A:1",
	}
	got := w.ask(server.PathPublic, keys...)
	var back []string
	for _, item := range got.Response.Items {
		back = append(back, item.Key)
	}
	if diff := cmp.Diff(keys, back); diff != "" {
		t.Error(diff)
	}
}

func TestOneImageOnTheImagesPath(t *testing.T) {
	w := start(t, nil)
	client := w.gatekeeperClient()
	for name, tc := range map[string]struct{ query, want string }{
		"a good image": {"?image=r/a:1", `{"image":"r/a:1","reference":"r/a:1","digest":"` + digest + `","kind":"index","platforms":["linux/amd64","linux/arm64"],"architectures":["amd64","arm64"]}`},
		"an error": {"?image=r/not-found:1", `{"image":"r/not-found:1","reference":"r/not-found:1","digest":"` + digest +
			`","kind":"index","error":{"class":"not-found","message":"as its name says","retryable":true}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.do(client, http.MethodGet, w.data+server.PathImages+tc.query, "")
			if got.StatusCode != 200 || strings.TrimSpace(got.text) != tc.want {
				t.Errorf("status %d, body %s, want %s", got.StatusCode, got.text, tc.want)
			}
			head := w.do(client, http.MethodHead, w.data+server.PathImages+tc.query, "")
			if head.StatusCode != 200 || head.ContentLength != int64(len(got.text)) {
				t.Errorf("HEAD: status %d, length %d, want %d", head.StatusCode, head.ContentLength, len(got.text))
			}
		})
	}
}

func TestTheDeadlineReturnsWhatIsKnown(t *testing.T) {
	for name, tc := range map[string]struct {
		inspector provider.Inspector
		good      int
	}{
		"of an inspector that keeps its word":   {inspectorFunc(shelf), 1},
		"of one that hands over nothing at all": {hung{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(_ *world, o *server.Options) {
				o.Inspector = tc.inspector
				o.Deadline = 50 * time.Millisecond
			})
			begin := time.Now()
			public := w.ask(server.PathPublic, "r/stalled:1", "r/good:1")
			pin := w.ask(server.PathPin, "r/stalled:1", "r/good:1")
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			said, err := wire.ParseSystemError(public.Response.SystemError)
			if err != nil || public.StatusCode != 200 || len(public.Response.Items) != tc.good || len(said.Undetermined) != 2-tc.good ||
				said.Undetermined[0].Key != "r/stalled:1" || said.Undetermined[0].Class != provider.ClassTimeout {
				t.Errorf("public: %s", public.text)
			}
			if pin.StatusCode != 200 || pin.Response.SystemError != "" || len(pin.Response.Items) != 2 || !strings.HasPrefix(pin.Response.Items[0].Error, "timeout: ") {
				t.Errorf("pin: %s", pin.text)
			}
			for _, path := range []string{server.PathPublic, server.PathPin} {
				if got := w.metric(`archkeeper_provider_deadline_hits_total{path="` + path + `"}`); got != "1" {
					t.Errorf("%s deadline hits on %s, want 1", got, path)
				}
			}
		})
	}
}

// hung never answers; the contract of Inspector forbids that.
type hung struct{}

func (hung) Inspect(context.Context, []provider.Query) []provider.Answer { select {} }

type panics struct{}

func (panics) Inspect(context.Context, []provider.Query) []provider.Answer { panic("boom") }

type short struct{}

func (short) Inspect(context.Context, []provider.Query) []provider.Answer { return nil }

func TestAFaultOfOursNamesEveryKeyAndIsNoVerdict(t *testing.T) {
	for name, inspector := range map[string]provider.Inspector{"a panic": panics{}, "a missing answer": short{}} {
		t.Run(name, func(t *testing.T) {
			w := start(t, func(_ *world, o *server.Options) { o.Inspector = inspector })
			for _, path := range []string{server.PathPublic, server.PathPin} {
				got := w.ask(path, "r/a:1", "r/b:1")
				said, err := wire.ParseSystemError(got.Response.SystemError)
				if err != nil || got.StatusCode != 500 || len(got.Response.Items) != 0 || len(said.Undetermined) != 2 || said.Undetermined[1].Class != provider.ClassInternal {
					t.Errorf("%s: status %d: %s", path, got.StatusCode, got.text)
				}
				if strings.Contains(got.text, "boom") {
					t.Errorf("the panic's text left the house: %s", got.text)
				}
			}
			image := w.do(w.gatekeeperClient(), "GET", w.data+server.PathImages+"?image=a", "")
			if image.StatusCode != 500 || !strings.Contains(image.text, `"class":"internal"`) {
				t.Errorf("status %d: %s", image.StatusCode, image.text)
			}
			if name == "a panic" {
				if got := w.metric("archkeeper_provider_panics_total"); got != "3" {
					t.Errorf("%s panics counted", got)
				}
				if !strings.Contains(w.log.String(), "boom") {
					t.Error("the panic is not in the log")
				}
			}
		})
	}
}

func TestASystemErrorStaysShort(t *testing.T) {
	w := start(t, nil)
	var keys []string
	for i := range server.MaxKeys {
		keys = append(keys, "r/"+strings.Repeat("x", i)+"/timeout:1")
	}
	got := w.ask(server.PathPublic, keys...)
	if n := len(got.Response.SystemError); n == 0 || n > wire.MaxSystemError {
		t.Errorf("systemError of %d bytes", n)
	}
	if said, err := wire.ParseSystemError(got.Response.SystemError); err != nil || len(said.Undetermined) == 0 {
		t.Errorf("systemError cannot be read: %v", err)
	}
	if len(got.Response.Items) != 0 {
		t.Errorf("%d items", len(got.Response.Items))
	}
}

// Gatekeeper's own client takes our answers.
func TestGatekeepersOwnClient(t *testing.T) {
	w := start(t, nil)
	transport := w.gatekeeperClient().Transport.(*http.Transport)
	pair := must(transport.TLSClientConfig.GetClientCertificate(nil))
	gatekeeper := &unversioned.Provider{
		ObjectMeta: metav1.ObjectMeta{Name: t.Name()},
		Spec:       unversioned.ProviderSpec{URL: w.data + server.PathPublic, Timeout: 1, CABundle: base64.StdEncoding.EncodeToString(w.authority.PEM())},
	}
	defer externaldata.DefaultClientCache().Invalidate(t.Name())
	response, status, err := externaldata.DefaultSendRequestToProvider(context.Background(), gatekeeper, []string{"r/a:1", "r/timeout:1", "r/not-runnable:1"}, pair)
	if err != nil || status != 200 {
		t.Fatal(status, err)
	}
	rego := externaldata.NewRegoResponse(status, response)
	if len(rego.Responses) != 1 || len(rego.Errors) != 1 || !strings.Contains(rego.SystemError, "r/timeout:1") {
		t.Errorf("%+v", rego)
	}
	if _, err := externaldata.PrepareRegoResponse(rego); err != nil {
		t.Error(err)
	}
	if _, _, err := externaldata.DefaultSendRequestToProvider(context.Background(), gatekeeper, []string{"r/a:1"}, nil); err != nil {
		t.Errorf("a refusal is not JSON: %v", err)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	w := start(t, nil)
	client := w.gatekeeperClient()
	config := client.Transport.(*http.Transport).TLSClientConfig
	config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, err := client.Post(w.data+server.PathPublic, "application/json", strings.NewReader(request("a")))
	if err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
}

func TestProbes(t *testing.T) {
	level := new(slog.LevelVar)
	w := start(t, func(_ *world, o *server.Options) { o.LogLevel = level })
	get := func(method, path, body string) (int, string) {
		req := must(http.NewRequestWithContext(context.Background(), method, w.probe+path, strings.NewReader(body)))
		resp := must(http.DefaultClient.Do(req))
		defer resp.Body.Close()
		return resp.StatusCode, readAll(resp)
	}
	w.eventually("ready", func() bool { status, _ := get("GET", server.PathReady, ""); return status == 200 })
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		says               string
	}{
		"health":                    {"GET", "/healthz", "", 200, "ok"},
		"readiness":                 {"GET", "/readyz", "", 200, "ok"},
		"metrics":                   {"GET", "/metrics", "", 200, "archkeeper_provider_requests_in_flight 0"},
		"no profiles unless asked":  {"GET", "/debug/pprof/", "", 404, ""},
		"no data without a proof":   {"POST", "/v1/public", request("a"), 404, ""},
		"the log level":             {"GET", "/loglevel", "", 200, `{"level":"info"}`},
		"a log level that is none":  {"PUT", "/loglevel", "loud", 400, "one of"},
		"a log level with a method": {"POST", "/loglevel", "debug", 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, text := get(tc.method, tc.path, tc.body)
			if status != tc.status || !strings.Contains(text, tc.says) {
				t.Errorf("status %d: %s", status, text)
			}
		})
	}
	if status, text := get("PUT", "/loglevel", "debug"); status != 200 || !strings.Contains(text, "debug") || level.Level().String() != "DEBUG" {
		t.Errorf("status %d: %s", status, text)
	}
	if got := w.metric("archkeeper_provider_certificate_expiry_timestamp_seconds"); got == "0" {
		t.Error("the certificate's end is not measured")
	}
	if got := w.metric("archkeeper_provider_client_ca_expiry_timestamp_seconds"); got == "0" {
		t.Error("the client CA's end is not measured")
	}
}

func TestReadinessHasReasons(t *testing.T) {
	w := start(t, func(_ *world, o *server.Options) {
		o.Ready = map[string]func() error{"secrets": func() error { return context.DeadlineExceeded }}
	})
	w.eventually("the reason", func() bool {
		resp := must(http.Get(w.probe + server.PathReady))
		defer resp.Body.Close()
		return resp.StatusCode == 503 && readAll(resp) == "secrets: context deadline exceeded\n"
	})
}

func readAll(resp *http.Response) string { return string(must(io.ReadAll(resp.Body))) }

// FuzzProviderRequest: whatever the body, the answer is a ProviderResponse of a
// status of ours, and a 200 answers each distinct key once or names it.
func FuzzProviderRequest(f *testing.F) {
	for _, seed := range []string{
		request("r/a:1", "r/a:1", ""), request(), "{}", "[", `{"apiVersion":"` + alpha + `","kind":"ProviderRequest","request":{"keys":["\ud800","r/timeout:1"]}}`,
		`{"apiVersion":"` + beta + `","kind":"ProviderRequest","request":{"keys":null}}`, "\xff", request(key("r/a:1"), "[", "{"),
		`{"APIVERSION":"` + beta + `","KIND":"ProviderRequest","Request":{"KEYS":["a"]}}`, `{"kind":"ProviderRequest","kind":1}`,
	} {
		f.Add([]byte(seed), uint8(0))
		f.Add([]byte(seed), uint8(1))
		f.Add([]byte(seed), uint8(2))
	}
	handler := server.DataHandlerForTest(f, inspectorFunc(func(ctx context.Context, q provider.Query) provider.Answer {
		if strings.Contains(q.Image, "panic:1") || strings.Contains(q.Image, "stalled:1") {
			q.Image = "r/a:1"
		}
		return shelf(ctx, q)
	}))
	paths := []string{server.PathPublic, server.PathNamespaced, server.PathPin}
	f.Fuzz(func(t *testing.T, body []byte, which uint8) {
		status, text := server.ServeForTest(handler, paths[int(which)%len(paths)], body)
		var got externaldata.ProviderResponse
		if err := json.Unmarshal(text, &got); err != nil || got.Kind != externaldata.ProviderResponseKind {
			t.Fatalf("status %d: no ProviderResponse: %q", status, text)
		}
		if status != 200 {
			if (status != 400 && status != 413) || got.Response.SystemError == "" || len(got.Response.Items) != 0 {
				t.Fatalf("status %d: %s", status, text)
			}
			return
		}
		var sent externaldata.ProviderRequest
		if err := json.Unmarshal(body, &sent); err != nil {
			t.Fatalf("status 200 for a body that is not JSON: %q", body)
		}
		want := map[string]bool{}
		for _, k := range sent.Request.Keys {
			want[k] = true
		}
		for _, item := range got.Response.Items {
			if !want[item.Key] {
				t.Fatalf("key %q was not asked, or is answered twice", item.Key)
			}
			if (item.Error == "") == (item.Value == nil) {
				t.Fatalf("item %+v has both or neither", item)
			}
			delete(want, item.Key)
		}
		if len(want) > 0 && got.Response.SystemError == "" {
			t.Fatalf("keys %v have no answer and nothing says so", want)
		}
	})
}
