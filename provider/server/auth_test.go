package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/throwaway"
)

func TestClientCertificates(t *testing.T) {
	const controllers = "archkeeper-controllers.archkeeper.svc"
	var ours *throwaway.Authority
	w := start(t, func(w *world, o *server.Options) {
		ours = must(throwaway.New("controllers", w.now))
		w.write("ours.crt", ours.PEM())
		o.ClientCAFiles = append(o.ClientCAFiles, w.path("ours.crt"))
		o.ClientNames = append(o.ClientNames, controllers, "10.0.0.7")
	})
	stranger := must(throwaway.New("gatekeeper", w.now)) // the same name, another key
	for name, tc := range map[string]struct {
		by     *throwaway.Authority
		r      throwaway.Request
		status int
		says   string
	}{
		"Gatekeeper's":                         {w.gatekeeper, throwaway.Request{Names: []string{gatekeeperName}, Client: true, Server: true}, 200, ""},
		"our controllers', by another CA":      {ours, throwaway.Request{Names: []string{"x", controllers}, Client: true}, 200, ""},
		"a name in upper case":                 {ours, throwaway.Request{Names: []string{strings.ToUpper(controllers)}, Client: true}, 200, ""},
		"an IP address":                        {ours, throwaway.Request{IPs: []net.IP{net.ParseIP("10.0.0.7")}, Client: true}, 200, ""},
		"none":                                 {nil, throwaway.Request{}, 401, "present a client certificate"},
		"the right name by a stranger":         {stranger, throwaway.Request{Names: []string{gatekeeperName}, Client: true}, 401, "does not prove"},
		"the right CA with another name":       {w.gatekeeper, throwaway.Request{Names: []string{"else.svc"}, Client: true}, 401, `"else.svc"`},
		"the right CA with a part of the name": {w.gatekeeper, throwaway.Request{Names: []string{"x" + gatekeeperName, gatekeeperName + ".x"}, Client: true}, 401, "alternative names"},
		"the right CA with a wildcard":         {w.gatekeeper, throwaway.Request{Names: []string{"*.gatekeeper-system.svc"}, Client: true}, 401, "alternative names"},
		"the right name as common name only":   {w.gatekeeper, throwaway.Request{CommonName: gatekeeperName, Client: true}, 401, "alternative names"},
		"one that has ended":                   {w.gatekeeper, throwaway.Request{Names: []string{gatekeeperName}, Client: true, NotAfter: w.now.Add(-time.Minute)}, 401, "expired"},
		"one that has not begun":               {w.gatekeeper, throwaway.Request{Names: []string{gatekeeperName}, Client: true, Now: w.now.Add(2 * time.Hour)}, 401, "not yet valid"},
		"one for servers only":                 {w.gatekeeper, throwaway.Request{Names: []string{gatekeeperName}, Server: true}, 401, "key usage"},
		"one by the serving certificate's CA":  {w.authority, throwaway.Request{Names: []string{gatekeeperName}, Client: true}, 401, "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			client := w.caller(tc.by, tc.r)
			for _, path := range []string{server.PathPublic, server.PathNamespaced, server.PathPin} {
				got := w.do(client, http.MethodPost, w.data+path, request("r/a:1"))
				if got.StatusCode != tc.status || !strings.Contains(got.Response.SystemError, tc.says) {
					t.Errorf("%s: status %d: %s", path, got.StatusCode, got.text)
				}
				if tc.status == 401 && (got.Header.Get("WWW-Authenticate") == "" || len(got.Response.Items) != 0) {
					t.Errorf("%s: header %v: %s", path, got.Header, got.text)
				}
			}
			if got := w.do(client, http.MethodGet, w.data+server.PathImages+"?image=r/a:1", ""); got.StatusCode != tc.status {
				t.Errorf("images: status %d: %s", got.StatusCode, got.text)
			}
		})
	}
	if got := w.metric(`archkeeper_provider_refused_callers_total{reason="no-proof"}`); got != "4" {
		t.Errorf("%s callers without proof counted, want 4", got)
	}
}

func TestAnyNameOfTheCAWillDoWhenNoneIsAskedFor(t *testing.T) {
	w := start(t, func(_ *world, o *server.Options) { o.ClientNames = nil })
	if got := w.do(w.caller(w.gatekeeper, throwaway.Request{Names: []string{"x"}, Client: true}), "POST", w.data+server.PathPublic, request("a")); got.StatusCode != 200 {
		t.Errorf("status %d: %s", got.StatusCode, got.text)
	}
}

func TestAnOpenServerAnswersEverybody(t *testing.T) {
	w := start(t, func(_ *world, o *server.Options) { o.ClientCAFiles, o.Open = nil, true })
	if got := w.do(w.caller(nil, throwaway.Request{}), "POST", w.data+server.PathPublic, request("a")); got.StatusCode != 200 {
		t.Errorf("status %d: %s", got.StatusCode, got.text)
	}
}

// Gatekeeper rotates its CA: the next handshake is judged by the new one, and
// a connection that was proven by the old one loses no answer.
func TestARotatedClientCA(t *testing.T) {
	w := start(t, nil)
	old := w.gatekeeperClient()
	ask := func(client *http.Client) int {
		return w.do(client, http.MethodPost, w.data+server.PathPublic, request("r/a:1")).StatusCode
	}
	if got := ask(old); got != 200 {
		t.Fatal(got)
	}
	w.gatekeeper = must(throwaway.New("gatekeeper, rotated", w.now))
	rotated := w.gatekeeperClient()
	if got := ask(rotated); got != 401 {
		t.Fatalf("status %d before the rotation", got)
	}
	w.write("ca.crt", w.gatekeeper.PEM())
	w.reload()
	w.eventually("the new CA is trusted", func() bool { return ask(rotated) == 200 })
	before := w.connections.Load()
	if got := ask(old); got != 200 || w.connections.Load() != before {
		t.Errorf("an open connection of the old CA: status %d, %d new connections", got, w.connections.Load()-before)
	}
	if got := ask(old); got != 401 || w.connections.Load() != before+1 {
		t.Errorf("a new connection of the old CA: status %d, %d new connections", got, w.connections.Load()-before)
	}
	// A connection of the new CA stays.
	before = w.connections.Load()
	for range 3 {
		if got := ask(rotated); got != 200 {
			t.Errorf("status %d", got)
		}
	}
	if n := w.connections.Load() - before; n != 0 {
		t.Errorf("%d new connections", n)
	}
}

// A certificate that ends while its connection is open proves one more answer.
func TestACertificateThatEnds(t *testing.T) {
	w := start(t, nil)
	client := w.caller(w.gatekeeper, throwaway.Request{Names: []string{gatekeeperName}, Client: true, NotAfter: w.now.Add(time.Hour)})
	for i, step := range []struct {
		later       time.Duration
		status      int
		connections int64
	}{{0, 200, 1}, {59 * time.Minute, 200, 1}, {2 * time.Minute, 200, 1}, {0, 401, 2}} {
		w.clock.Step(step.later)
		got := w.do(client, http.MethodPost, w.data+server.PathPublic, request("r/a:1"))
		if n := w.connections.Load(); got.StatusCode != step.status || n != step.connections {
			t.Errorf("step %d: status %d, %d connections; want %d, %d", i, got.StatusCode, n, step.status, step.connections)
		}
	}
}

// One broken CA file of two neither unseats its own last good content nor
// holds up the other's.
func TestABrokenCAFile(t *testing.T) {
	w := start(t, func(w *world, o *server.Options) {
		w.write("other.crt", w.authority.PEM())
		o.ClientCAFiles = append(o.ClientCAFiles, w.path("other.crt"))
	})
	first := w.gatekeeper
	w.write("ca.crt", []byte("-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n"))
	second := must(throwaway.New("second", w.now))
	w.write("other.crt", second.PEM())
	w.reload()
	request := func(by *throwaway.Authority) int {
		client := w.caller(by, throwaway.Request{Names: []string{gatekeeperName}, Client: true})
		return w.do(client, http.MethodPost, w.data+server.PathPublic, request("r/a:1")).StatusCode
	}
	w.eventually("the good file's new content", func() bool { return request(second) == 200 })
	w.eventually("the bad file is counted", func() bool {
		return w.metric(`archkeeper_provider_reload_failures_total{file="client-ca"}`) == "1"
	})
	if got := request(first); got != 200 {
		t.Errorf("the broken file's last good CA: status %d", got)
	}
	if got := request(w.authority); got != 401 {
		t.Errorf("the replaced CA: status %d", got)
	}
	if !strings.Contains(w.log.String(), "ca.crt") {
		t.Error("the log does not name the file")
	}
}

// A mounted Secret changes by a swapped link; a certificate that does not fit
// its key changes nothing.
func TestARotatedServingCertificate(t *testing.T) {
	w := start(t, func(w *world, o *server.Options) {
		for _, name := range []string{"tls.crt", "tls.key"} {
			if err := os.MkdirAll(w.path("..1"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(w.path(name), filepath.Join(w.path("..1"), name)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join("..data", name), w.path(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("..1", w.path("..data")); err != nil {
			t.Fatal(err)
		}
	})
	ask := func() error {
		client := w.gatekeeperClient()
		client.Transport.(*http.Transport).TLSClientConfig.ServerName = "archkeeper.svc"
		resp, err := client.Post(w.data+server.PathPublic, "application/json", strings.NewReader(request("a")))
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	if err := ask(); err == nil {
		t.Fatal("the first certificate has the second one's name")
	}
	w.write("..1/tls.key", []byte("no key"))
	w.reload()
	w.eventually("the broken key is counted", func() bool {
		return w.metric(`archkeeper_provider_reload_failures_total{file="certificate"}`) == "1"
	})
	if got := w.ask(server.PathPublic, "r/a:1"); got.StatusCode != 200 {
		t.Errorf("with a broken key: status %d", got.StatusCode)
	}
	cert, key, err := w.authority.Issue(throwaway.Request{Names: []string{"archkeeper.svc"}, Server: true, Now: w.now, NotAfter: time.Unix(w.now.Unix()+7200, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.path("..2"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.write("..2/tls.crt", cert)
	w.write("..2/tls.key", key)
	if err := os.Symlink("..2", w.path("..tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.path("..tmp"), w.path("..data")); err != nil {
		t.Fatal(err)
	}
	w.reload()
	w.eventually("the new certificate", func() bool { return ask() == nil })
}

func TestMissingFilesAreNamedAtTheStart(t *testing.T) {
	for name, change := range map[string]func(o *server.Options){
		"missing.key":    func(o *server.Options) { o.KeyFile = "missing.key" },
		"missing.crt":    func(o *server.Options) { o.ClientCAFiles = append(o.ClientCAFiles, "missing.crt") },
		"ever be proven": func(o *server.Options) { o.ClientCAFiles = nil },
	} {
		t.Run(name, func(t *testing.T) {
			start(t, func(_ *world, o *server.Options) {
				bad := *o
				change(&bad)
				bad.Registerer = prometheusRegistry()
				if _, err := server.New(bad); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("error %v, want one with %s", err, name)
				}
			})
		})
	}
}

// A caller who is refused does not keep a connection.
func TestARefusedCallerIsHungUpOn(t *testing.T) {
	w := start(t, nil)
	client := w.caller(nil, throwaway.Request{})
	for range 2 {
		reused := false
		ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		req := must(http.NewRequestWithContext(ctx, http.MethodPost, w.data+server.PathPublic, strings.NewReader(request("a"))))
		resp := must(client.Do(req))
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if reused || resp.StatusCode != 401 {
			t.Errorf("reused %v, status %d", reused, resp.StatusCode)
		}
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	w := start(t, func(_ *world, o *server.Options) { o.MaxConnections = 2 })
	first, second, third := w.gatekeeperClient(), w.gatekeeperClient(), w.gatekeeperClient()
	for _, client := range []*http.Client{first, second} {
		if got := w.do(client, "POST", w.data+server.PathPublic, request("a")); got.StatusCode != 200 {
			t.Fatal(got.text)
		}
	}
	done := make(chan int)
	go func() { done <- w.do(third, "POST", w.data+server.PathPublic, request("a")).StatusCode }()
	select {
	case <-done:
		t.Fatal("a third connection was served")
	case <-time.After(100 * time.Millisecond):
	}
	first.CloseIdleConnections()
	if got := <-done; got != 200 {
		t.Errorf("status %d", got)
	}
}

// Gatekeeper shows its new certificate before any file here could change: its
// authority is learnt from the API server, and the old one stays trusted for
// Gatekeeper's other replicas.
func TestAuthoritiesThatAreLearntWhileServing(t *testing.T) {
	live := &server.LiveCAs{}
	w := start(t, func(_ *world, o *server.Options) { o.LiveCAs = live })
	ask := func(c *http.Client) int {
		return w.do(c, http.MethodPost, w.data+server.PathPublic, request("r/a:1")).StatusCode
	}
	before := w.gatekeeperClient()
	w.gatekeeper = must(throwaway.New("gatekeeper, rotated", w.now))
	rotated := w.gatekeeperClient()
	if got := ask(rotated); got != 401 {
		t.Fatalf("status %d before the authority was learnt", got)
	}
	if err := live.Set([]byte("nothing")); err == nil {
		t.Error("a bundle without a certificate was taken")
	}
	if err := live.Set(w.gatekeeper.PEM()); err != nil {
		t.Fatal(err)
	}
	if got := ask(rotated); got != 200 {
		t.Errorf("status %d with the new authority", got)
	}
	w.gatekeeper = must(throwaway.New("gatekeeper, rotated twice", w.now))
	if err := live.Set(w.gatekeeper.PEM()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*http.Client{"of a file": before, "learnt first": rotated, "learnt last": w.gatekeeperClient()} {
		if got := ask(c); got != 200 {
			t.Errorf("status %d for the authority %s", got, name)
		}
	}
}
