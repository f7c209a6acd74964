package client_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/client"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/throwaway"
)

const (
	digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	name   = "archkeeper-controllers.archkeeper-system.svc"
)

// shelf answers by name and remembers what it was asked.
type shelf struct {
	mu      sync.Mutex
	batches [][]provider.Query
}

func (s *shelf) Inspect(_ context.Context, queries []provider.Query) []provider.Answer {
	s.mu.Lock()
	s.batches = append(s.batches, queries)
	s.mu.Unlock()
	answers := make([]provider.Answer, len(queries))
	for i, query := range queries {
		answers[i] = answer(query.Image)
	}
	return answers
}

func answer(image string) provider.Answer {
	a := provider.Answer{Image: image, Reference: image}
	for _, class := range provider.Classes() {
		if image == "r.io/"+string(class)+":1" {
			a.Err = provider.Errorf(class, "as its name says")
			return a
		}
	}
	a.Digest, a.Kind = digest, provider.KindIndex
	switch image {
	case "r.io/bundle:1":
		a.ContentOnly = true
	case "r.io/windows:1":
		a.Platforms = []string{"windows(10.0.17763.1)/amd64"}
	default:
		a.Platforms, a.Architectures = []string{"linux/amd64", "linux/arm64"}, []string{"amd64", "arm64"}
	}
	return a
}

type world struct {
	t         *testing.T
	dir       string
	shelf     *shelf
	url       string
	clock     *clocktesting.FakeClock
	authority *throwaway.Authority

	generation *server.Generation
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name string, content []byte) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), content, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) issue(file string, r throwaway.Request) {
	w.t.Helper()
	r.Now = w.clock.Now()
	cert, key, err := w.authority.Issue(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(file+".crt", cert)
	w.write(file+".key", key)
}

// start runs a real provider.
func start(t *testing.T) *world {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Now())
	authority, err := throwaway.New("ours", clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: t.TempDir(), shelf: &shelf{}, clock: clock, authority: authority, generation: server.NewGeneration()}
	w.write("ca.crt", authority.PEM())
	w.issue("server", throwaway.Request{IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true})
	w.issue("client", throwaway.Request{Names: []string{name}, Client: true})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "https://" + listener.Addr().String()
	s, err := server.New(server.Options{
		Inspector: w.shelf, Generation: w.generation, Data: listener, CertFile: w.path("server.crt"), KeyFile: w.path("server.key"),
		ClientCAFiles: []string{w.path("ca.crt")}, ClientNames: []string{name}, Deadline: 20 * time.Second, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) options() client.Options {
	return client.Options{URL: w.url, CAFile: w.path("ca.crt"), CertFile: w.path("client.crt"), KeyFile: w.path("client.key"), Clock: w.clock, Timeout: 20 * time.Second}
}

func (w *world) client(o client.Options) *client.Client {
	w.t.Helper()
	c, err := client.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

var compare = cmp.Options{cmpopts.IgnoreUnexported(provider.Error{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(provider.Answer{}, "Checked")}

// What the inspector behind the provider says is what comes out in front, for
// every class and every kind of answer, in the order of the queries.
func TestAnswersTravel(t *testing.T) {
	w := start(t)
	c := w.client(w.options())
	scope := provider.Scope{Namespace: "ns", ServiceAccount: "sa", ImagePullSecrets: []string{"b", "a"}}
	var queries []provider.Query
	var want []provider.Answer
	for _, image := range []string{"r.io/a:1", "r.io/bundle:1", "r.io/windows:1"} {
		queries = append(queries, provider.Query{Image: image}, provider.Query{Image: image, Scope: scope})
		want = append(want, answer(image), answer(image))
	}
	for _, class := range provider.Classes() {
		image := "r.io/" + string(class) + ":1"
		queries = append(queries, provider.Query{Image: image, Scope: scope}, provider.Query{Image: image})
		want = append(want, answer(image), answer(image))
	}
	got := c.Inspect(context.Background(), queries)
	if diff := cmp.Diff(want, got, compare); diff != "" {
		t.Error(diff)
	}
	if !got[0].Checked.Equal(w.clock.Now()) || !got[len(got)-1].Checked.IsZero() {
		t.Errorf("checked at %s and %s", got[0].Checked, got[len(got)-1].Checked)
	}
	if len(w.shelf.batches) != 2 {
		t.Fatalf("%d requests, want one for each path", len(w.shelf.batches))
	}
	for _, batch := range w.shelf.batches {
		if len(batch) != len(queries)/2 {
			t.Errorf("%d queries in a request, want %d", len(batch), len(queries)/2)
		}
	}
	if diff := cmp.Diff(scope, w.shelf.batches[0][0].Scope); diff != "" && cmp.Diff(scope, w.shelf.batches[1][0].Scope) != "" {
		t.Errorf("the scope did not travel: %s", diff)
	}
}

func TestBatches(t *testing.T) {
	many := func(n int, image func(i int) string) (queries []provider.Query) {
		for i := range n {
			queries = append(queries, provider.Query{Image: image(i)})
		}
		return queries
	}
	for sentence, tc := range map[string]struct {
		queries         []provider.Query
		requests, asked int
	}{
		"nothing":                              {nil, 0, 0},
		"one image a hundred times":            {many(100, func(int) string { return "r.io/a:1" }), 1, 1},
		"as many as fit":                       {many(client.MaxBatch, func(i int) string { return fmt.Sprintf("r.io/a:%d", i) }), 1, client.MaxBatch},
		"one more":                             {many(client.MaxBatch+1, func(i int) string { return fmt.Sprintf("r.io/a:%d", i) }), 2, client.MaxBatch + 1},
		"a fresh answer and one that need not": {[]provider.Query{{Image: "r.io/a:1"}, {Image: "r.io/a:1", Revalidate: true}}, 2, 2},
		"malformed images are not sent":        {[]provider.Query{{Image: " "}, {Image: "r.io/\xff"}, {Image: `{"image":"r.io/a:1"}`}}, 0, 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := start(t)
			answers := w.client(w.options()).Inspect(context.Background(), tc.queries)
			asked := 0
			for _, batch := range w.shelf.batches {
				asked += len(batch)
			}
			if len(w.shelf.batches) != tc.requests || asked != tc.asked || len(answers) != len(tc.queries) {
				t.Errorf("%d requests, %d images, %d answers", len(w.shelf.batches), asked, len(answers))
			}
			for i, a := range answers {
				if a.Image != tc.queries[i].Image || (a.Err != nil) != (tc.requests == 0) || (a.Err != nil && a.Err.Class != provider.ClassMalformed) {
					t.Fatalf("answer %d: %+v", i, a)
				}
			}
		})
	}
}

func TestFreshnessTravels(t *testing.T) {
	w := start(t)
	w.client(w.options()).Inspect(context.Background(), []provider.Query{{Image: "r.io/a:1", Revalidate: true}})
	if !w.shelf.batches[0][0].Revalidate {
		t.Error("the provider was not asked for a fresh answer")
	}
}

// A provider that fails is a passing failure of every image that was asked.
func TestAProviderThatFails(t *testing.T) {
	w := start(t)
	stranger, err := throwaway.New("stranger", w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.write("stranger.crt", stranger.PEM())
	for sentence, tc := range map[string]struct {
		change func(o *client.Options)
		class  provider.Class
		says   string
	}{
		"nobody listens":             {func(o *client.Options) { o.URL = "https://127.0.0.1:1" }, provider.ClassUnreachable, "connection refused"},
		"another authority":          {func(o *client.Options) { o.CAFile = w.path("stranger.crt") }, provider.ClassUnreachable, "unknown authority"},
		"another name":               {func(o *client.Options) { o.ServerName = "else" }, provider.ClassUnreachable, "else"},
		"it does not know us":        {func(o *client.Options) { o.CertFile, o.KeyFile = "", "" }, provider.ClassInternal, "status 401"},
		"it does not answer in time": {func(o *client.Options) { o.Timeout = time.Nanosecond }, provider.ClassTimeout, "in time"},
	} {
		t.Run(sentence, func(t *testing.T) {
			o := w.options()
			tc.change(&o)
			got := w.client(o).Inspect(context.Background(), []provider.Query{{Image: "r.io/a:1"}, {Image: "r.io/b@" + digest}})
			for _, a := range got {
				if a.Err == nil || a.Err.Class != tc.class || !strings.Contains(a.Err.Message, tc.says) || !strings.Contains(a.Err.Message, "provider") {
					t.Errorf("%v, want %s with %q", a.Err, tc.class, tc.says)
				}
			}
			if got[1].Digest != digest || got[0].Reference != "r.io/a:1" {
				t.Errorf("what the reference itself says is lost: %+v", got)
			}
		})
	}
}

// Whatever a server sends, each query gets an answer, and none that nobody gave.
func TestAnswersThatAreNone(t *testing.T) {
	const good = `{"architectures":["amd64"],"platforms":["linux/amd64"],"digest":"` + digest + `","kind":"index"}`
	for sentence, tc := range map[string]struct {
		status int
		body   string
		class  provider.Class
	}{
		"no JSON":                      {200, "<html>", provider.ClassInternal},
		"another kind":                 {200, `{"kind":"Status"}`, provider.ClassInternal},
		"an empty answer":              {200, `{"kind":"ProviderResponse"}`, provider.ClassInternal},
		"another key":                  {200, `{"kind":"ProviderResponse","response":{"items":[{"key":"r.io/b:1","value":` + good + `}]}}`, provider.ClassInternal},
		"no value":                     {200, `{"kind":"ProviderResponse","response":{"items":[{"key":"r.io/a:1"}]}}`, provider.ClassInternal},
		"a value that names nothing":   {200, `{"kind":"ProviderResponse","response":{"items":[{"key":"r.io/a:1","value":{}}]}}`, provider.ClassInternal},
		"a value that is none":         {200, `{"kind":"ProviderResponse","response":{"items":[{"key":"r.io/a:1","value":"x"}]}}`, provider.ClassInternal},
		"an error without a class":     {200, `{"kind":"ProviderResponse","response":{"items":[{"key":"r.io/a:1","error":"x"}]}}`, provider.ClassInternal},
		"a class that nobody knows":    {200, `{"kind":"ProviderResponse","response":{"systemError":"{\"v\":1,\"undetermined\":[{\"key\":\"r.io/a:1\",\"class\":\"odd\",\"message\":\"m\"}]}"}}`, provider.ClassInternal},
		"a redirect":                   {302, ``, provider.ClassInternal},
		"an endless body":              {200, strings.Repeat(" ", 17<<20), provider.ClassUnreachable},
		"a system error of plain text": {503, `{"kind":"ProviderResponse","response":{"systemError":"busy"}}`, provider.ClassInternal},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := &world{t: t, dir: t.TempDir(), clock: clocktesting.NewFakeClock(time.Now())}
			s := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Location", "https://127.0.0.1:1/")
				rw.WriteHeader(tc.status)
				_, _ = rw.Write([]byte(tc.body))
			}))
			defer s.Close()
			w.write("ca.crt", pemOf(s.Certificate().Raw))
			c := w.client(client.Options{URL: s.URL, CAFile: w.path("ca.crt"), Clock: w.clock})
			got := c.Inspect(context.Background(), []provider.Query{{Image: "r.io/a:1"}})
			if got[0].Err == nil || got[0].Err.Class != tc.class || len(got[0].Platforms) != 0 {
				t.Errorf("%+v, %v", got[0], got[0].Err)
			}
		})
	}
}

// The provider's authority and our certificate are rotated while we run.
func TestRotation(t *testing.T) {
	w := start(t)
	stranger, err := throwaway.New("stranger", w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.write("roots.crt", stranger.PEM())
	o := w.options()
	o.CAFile = w.path("roots.crt")
	c := w.client(o)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { c.Run(ctx); close(done) }()
	defer func() { stop(); <-done }()
	ask := func() *provider.Error {
		return c.Inspect(context.Background(), []provider.Query{{Image: "r.io/a:1"}})[0].Err
	}
	if err := ask(); err == nil {
		t.Fatal("a stranger's authority was trusted")
	}
	w.write("roots.crt", w.authority.PEM())
	for end := time.Now().Add(10 * time.Second); ask() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the new authority is not trusted: %v", ask())
		}
		w.clock.Step(time.Second)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	w := &world{t: t, dir: t.TempDir(), clock: clocktesting.NewFakeClock(time.Now())}
	authority, err := throwaway.New("ours", w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.write("ca.crt", authority.PEM())
	w.write("empty", []byte(" \n"))
	for sentence, tc := range map[string]struct {
		o    client.Options
		says string
	}{
		"plain HTTP":            {client.Options{URL: "http://p", CAFile: w.path("ca.crt")}, "https://"},
		"a path":                {client.Options{URL: "https://p/v1", CAFile: w.path("ca.crt")}, "https://"},
		"no authority":          {client.Options{URL: "https://p", CAFile: w.path("none")}, "none"},
		"an empty authority":    {client.Options{URL: "https://p", CAFile: w.path("empty")}, "empty"},
		"a missing certificate": {client.Options{URL: "https://p", CAFile: w.path("ca.crt"), CertFile: w.path("c"), KeyFile: w.path("k")}, "certificate"},
		"an empty token":        {client.Options{URL: "https://p", CAFile: w.path("ca.crt"), TokenFile: w.path("empty")}, "token"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if _, err := client.New(tc.o); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one with %q", err, tc.says)
			}
		})
	}
}

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
