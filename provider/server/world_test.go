package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"
	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/throwaway"
)

const gatekeeperName = "gatekeeper-webhook-service.gatekeeper-system.svc"

// inspectorFunc answers one query at a time; it may wait for ctx.
type inspectorFunc func(ctx context.Context, query provider.Query) provider.Answer

// Inspect answers the queries side by side, as the real inspector does.
func (f inspectorFunc) Inspect(ctx context.Context, queries []provider.Query) []provider.Answer {
	answers := make([]provider.Answer, len(queries))
	var all sync.WaitGroup
	for i, query := range queries {
		all.Go(func() { answers[i] = f(ctx, query) })
	}
	all.Wait()
	return answers
}

const digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// shelf has an image for every class and every kind of answer, named so.
func shelf(ctx context.Context, query provider.Query) provider.Answer {
	name := query.Image[strings.LastIndex(query.Image, "/")+1:]
	answer := provider.Answer{Image: query.Image, Reference: query.Image, Digest: digest, Kind: provider.KindIndex}
	for _, class := range provider.Classes() {
		if name == string(class)+":1" {
			answer.Err = provider.Errorf(class, "as its name says")
			return answer
		}
	}
	switch name {
	case "stalled:1":
		<-ctx.Done()
		answer.Err = provider.Errorf(provider.ClassTimeout, "the registry said nothing")
	case "bundle:1":
		answer.ContentOnly = true
	case "panic:1":
		panic("as its name says")
	default:
		answer.Platforms = []string{"linux/amd64", "linux/arm64"}
		answer.Architectures = []string{"amd64", "arm64"}
	}
	return answer
}

// world is a running server and what its callers need.
type world struct {
	t                     testing.TB
	dir                   string
	authority, gatekeeper *throwaway.Authority
	now                   time.Time
	clock                 *clocktesting.FakeClock
	data, admission       string // URLs
	probe                 string
	stop                  context.CancelFunc
	ended                 chan error
	registry              *prometheus.Registry
	log                   *lockedBuffer
	connections           atomic.Int64 // accepted at the data port
	tokens                *server.Tokens
	stepping              bool // the clock goes on while the test waits
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// countingListener counts the connections that it accepts.
type countingListener struct {
	net.Listener
	n *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// start runs a server whose callers are proven by Gatekeeper's certificate.
func start(t testing.TB, change func(w *world, o *server.Options)) *world {
	t.Helper()
	now := time.Now()
	w := &world{
		t: t, dir: t.TempDir(), now: now, clock: clocktesting.NewFakeClock(now),
		authority: must(throwaway.New("ours", now)), gatekeeper: must(throwaway.New("gatekeeper", now)),
		registry: prometheus.NewRegistry(), log: &lockedBuffer{}, ended: make(chan error, 1),
	}
	w.serve("127.0.0.1")
	w.write("ca.crt", w.gatekeeper.PEM())
	listen := func() net.Listener { return must(net.Listen("tcp", "127.0.0.1:0")) }
	o := server.Options{
		Inspector: inspectorFunc(shelf),
		Data:      countingListener{listen(), &w.connections}, Probe: listen(),
		CertFile: w.path("tls.crt"), KeyFile: w.path("tls.key"),
		ClientCAFiles: []string{w.path("ca.crt")}, ClientNames: []string{gatekeeperName},
		Deadline:   20 * time.Second,
		Registerer: w.registry, Gatherer: w.registry,
		Log:   slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Clock: w.clock,
	}
	if change != nil {
		change(w, &o)
	}
	w.data, w.probe = "https://"+o.Data.Addr().String(), "http://"+o.Probe.Addr().String()
	if o.Admission != nil {
		w.admission = "https://" + o.Admission.Addr().String()
	}
	w.tokens = o.Tokens
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	go func() { w.ended <- s.Run(ctx); close(w.ended) }()
	t.Cleanup(func() {
		cancel()
		<-w.ended
	})
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name string, content []byte) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), content, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// serve writes a new serving certificate for a host.
func (w *world) serve(host string) {
	w.t.Helper()
	r := throwaway.Request{CommonName: host, Server: true, Now: w.now}
	if ip := net.ParseIP(host); ip != nil {
		r.IPs = []net.IP{ip}
	} else {
		r.Names = []string{host}
	}
	cert, key, err := w.authority.Issue(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("tls.crt", cert)
	w.write("tls.key", key)
}

// caller makes a client that trusts our authority and shows a certificate, if
// any.
func (w *world) caller(by *throwaway.Authority, r throwaway.Request) *http.Client {
	w.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.authority.PEM())
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	if by != nil {
		if r.Now.IsZero() {
			r.Now = w.now
		}
		cert, key, err := by.Issue(r)
		if err != nil {
			w.t.Fatal(err)
		}
		pair := must(tls.X509KeyPair(cert, key))
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	transport := &http.Transport{TLSClientConfig: config}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// gatekeeperClient is the caller that Gatekeeper would be.
func (w *world) gatekeeperClient() *http.Client {
	return w.caller(w.gatekeeper, throwaway.Request{CommonName: gatekeeperName, Names: []string{gatekeeperName}, Client: true, Server: true})
}

func request(keys ...string) string {
	return string(must(json.Marshal(externaldata.NewProviderRequest(keys))))
}

// reply is a response with its body read.
type reply struct {
	StatusCode    int
	Header        http.Header
	ContentLength int64
	closes        bool // the connection ends with it
	text          string
	externaldata.ProviderResponse
}

// do sends a request and reads a ProviderResponse.
func (w *world) do(client *http.Client, method, url, body string, header ...string) reply {
	w.t.Helper()
	req := must(http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body)))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text := must(io.ReadAll(resp.Body))
	r := reply{StatusCode: resp.StatusCode, Header: resp.Header, ContentLength: resp.ContentLength, closes: resp.Close, text: string(text)}
	if method != http.MethodHead {
		if err := json.Unmarshal(text, &r.ProviderResponse); err != nil {
			w.t.Fatalf("%s %s: status %d, no JSON: %q", method, url, resp.StatusCode, text)
		}
	}
	return r
}

func (w *world) ask(path string, keys ...string) reply {
	w.t.Helper()
	return w.do(w.gatekeeperClient(), http.MethodPost, w.data+path, request(keys...))
}

// metric gives the value of a sample such as name{path="/v1/pin"}; 0 when it
// is not there.
func (w *world) metric(sample string) string {
	w.t.Helper()
	resp := must(http.Get(w.probe + server.PathMetrics))
	defer resp.Body.Close()
	for line := range strings.SplitSeq(string(must(io.ReadAll(resp.Body))), "\n") {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			return value
		}
	}
	return "0"
}

// eventually waits until a condition holds.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("never: %s\n%s", what, w.log)
		}
		if w.stepping {
			w.clock.Step(time.Second)
		}
	}
}

// reload lets the server look at its files again, now and for as long as the
// test waits for something: a step of the clock before the server has begun to
// follow a file is lost.
func (w *world) reload() {
	w.stepping = true
	w.clock.Step(time.Second)
}

func prometheusRegistry() *prometheus.Registry { return prometheus.NewRegistry() }
