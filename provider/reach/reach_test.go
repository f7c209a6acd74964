package reach

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// says answers every request with a text.
func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

func TestTrust(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	host := ours.serve(says("hello"), nil)

	for name, test := range map[string]struct {
		config   func(dir string) Config
		insecure bool
		want     bool
	}{
		"the system's authorities do not know the server": {
			config: func(string) Config { return Config{} },
		},
		"a bundle that holds its authority makes it trusted": {
			config: func(dir string) Config { return Config{CAFiles: []string{file(t, dir+"/ca.pem", ours.pem)}} }, want: true,
		},
		"one of several authorities in a bundle is enough": {
			config: func(dir string) Config {
				return Config{CAFiles: []string{file(t, dir+"/ca.pem", append(bytes.Clone(theirs.pem), ours.pem...))}}
			}, want: true,
		},
		"another authority does not": {
			config: func(dir string) Config { return Config{CAFiles: []string{file(t, dir+"/ca.pem", theirs.pem)}} },
		},
		"certs.d of the host and port makes it trusted": {
			config: func(dir string) Config {
				file(t, filepath.Join(dir, host, "ca.crt"), ours.pem)
				return Config{CertsDirs: []string{dir}}
			}, want: true,
		},
		"certs.d of another host does not": {
			config: func(dir string) Config {
				file(t, filepath.Join(dir, "127.0.0.1:1", "ca.crt"), ours.pem)
				return Config{CertsDirs: []string{dir}}
			},
		},
		"the first certs.d that has the host is used": {
			config: func(dir string) Config {
				file(t, filepath.Join(dir, "a", host, "ca.crt"), theirs.pem)
				file(t, filepath.Join(dir, "b", host, "ca.crt"), ours.pem)
				return Config{CertsDirs: []string{dir + "/a", dir + "/b"}}
			},
		},
		"a certs.d that is not there is passed over": {
			config: func(dir string) Config {
				file(t, filepath.Join(dir, "b", host, "ca.crt"), ours.pem)
				return Config{CertsDirs: []string{dir + "/missing", dir + "/b"}}
			}, want: true,
		},
		"a location called insecure is not verified": {
			config: func(string) Config { return Config{} }, insecure: true, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := mustNew(t, test.config(t.TempDir()))
			_, body, err := get(t, r, host, test.insecure, "https://"+host+"/v2/")
			if (err == nil && body == "hello") != test.want {
				t.Errorf("got %q, %v; want trusted: %v", body, err, test.want)
			}
			if unknown := (x509.UnknownAuthorityError{}); !test.want && !errors.As(err, &unknown) {
				t.Errorf("error is %v, want that the authority is unknown", err)
			}
		})
	}
}

func TestClientCertificate(t *testing.T) {
	ours := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	who := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	mutual := func(s *httptest.Server) {
		s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, pool
	}
	host, other := ours.serve(who, mutual), ours.serve(who, mutual)
	dir := t.TempDir()
	certPEM, keyPEM := ours.issue("archkeeper")
	file(t, filepath.Join(dir, host, "client.cert"), certPEM)
	file(t, filepath.Join(dir, host, "client.key"), keyPEM)
	r := mustNew(t, Config{CertsDirs: []string{dir}, CAFiles: []string{file(t, dir+"/ca.pem", ours.pem)}})

	if _, body, err := get(t, r, host, false, "https://"+host+"/"); err != nil || body != "archkeeper" {
		t.Errorf("the host of the certificate: got %q, %v", body, err)
	}
	if _, body, err := get(t, r, host, false, "https://"+other+"/"); err == nil {
		t.Errorf("another host was shown the certificate and said %q", body)
	}
}

func TestBrokenCertificateFilesAreNamed(t *testing.T) {
	ours := newAuthority(t)
	certPEM, keyPEM := ours.issue("archkeeper")
	for name, test := range map[string]struct {
		files map[string][]byte // below certs.d/<host>, or ca.pem for the bundle
		names string
	}{
		"a bundle that is not there":          {map[string][]byte{}, "ca.pem"},
		"a bundle without a certificate":      {map[string][]byte{"ca.pem": []byte("nothing")}, "ca.pem"},
		"a bundle that is too large":          {map[string][]byte{"ca.pem": make([]byte, maxPEMBytes+1)}, "ca.pem"},
		"an authority that is no certificate": {map[string][]byte{"ca.pem": ours.pem, "h/ca.crt": []byte("x")}, "ca.crt"},
		"a certificate without a key":         {map[string][]byte{"ca.pem": ours.pem, "h/client.cert": certPEM}, "client.key"},
		"a key without a certificate":         {map[string][]byte{"ca.pem": ours.pem, "h/client.key": keyPEM}, "client.key"},
		"a key of another certificate":        {map[string][]byte{"ca.pem": ours.pem, "h/client.cert": ours.pem, "h/client.key": keyPEM}, "client.cert"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, data := range test.files {
				file(t, filepath.Join(dir, path), data)
			}
			r, err := New(Config{CAFiles: []string{dir + "/ca.pem"}, CertsDirs: []string{dir}})
			if err == nil {
				_, _, err = get(t, r, "h", false, "https://h/")
			}
			if err == nil || !strings.Contains(err.Error(), test.names) {
				t.Fatalf("error is %v, want one that names %s", err, test.names)
			}
			if strings.Contains(err.Error(), "PRIVATE") || strings.Contains(err.Error(), strings.Split(string(keyPEM), "\n")[1]) {
				t.Errorf("error holds key material: %v", err)
			}
		})
	}
}

func TestReload(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	release := make(chan struct{})
	started := make(chan struct{}, 1)
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		started <- struct{}{}
		<-release
		_, _ = io.WriteString(w, "the whole body")
	})
	old, fresh := before.serve(slow, nil), after.serve(says("fresh"), nil)
	path := file(t, t.TempDir()+"/ca.pem", before.pem)
	var logged bytes.Buffer
	r := mustNew(t, Config{CAFiles: []string{path}, Logger: slog.New(slog.NewTextHandler(&logged, nil))})

	var body string
	var slowErr error
	var waiting sync.WaitGroup
	waiting.Go(func() { _, body, slowErr = get(t, r, old, false, "https://"+old+"/") })
	<-started

	if _, _, err := get(t, r, fresh, false, "https://"+fresh+"/"); err == nil {
		t.Fatal("a server of the new authority was trusted before the bundle changed")
	}
	file(t, path, []byte("half writ"))
	if _, _, err := get(t, r, fresh, false, "https://"+fresh+"/"); err == nil {
		t.Fatal("a broken bundle made a server trusted")
	}
	if _, _, err := get(t, r, fresh, false, "https://"+fresh+"/"); err == nil {
		t.Fatal("a broken bundle made a server trusted")
	}
	if got := strings.Count(logged.String(), "ca.pem holds no PEM certificate"); got != 1 {
		t.Errorf("the broken bundle was told %d times, want once:\n%s", got, logged.String())
	}
	file(t, path, after.pem)
	if _, text, err := get(t, r, fresh, false, "https://"+fresh+"/"); err != nil || text != "fresh" {
		t.Errorf("after the change: %q, %v", text, err)
	}
	if _, _, err := get(t, r, old, false, "https://"+old+"/"); err == nil {
		t.Error("a server of the removed authority is still trusted")
	}
	close(release)
	waiting.Wait()
	if slowErr != nil || body != "the whole body" {
		t.Errorf("the request in flight got %q, %v", body, slowErr)
	}
}

// connections counts the connections that a server accepts.
func connections(count *atomic.Int32) func(*httptest.Server) {
	return func(s *httptest.Server) {
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				count.Add(1)
			}
		}
	}
}

func TestConnectionsAreShared(t *testing.T) {
	ours := newAuthority(t)
	var count atomic.Int32
	host := ours.serve(says("hello"), connections(&count))
	path := file(t, t.TempDir()+"/ca.pem", ours.pem)
	r := mustNew(t, Config{CAFiles: []string{path}})
	for i := range 5 {
		if i == 3 {
			file(t, path, ours.pem) // written again, the same content
		}
		if _, _, err := get(t, r, host, false, "https://"+host+"/"); err != nil {
			t.Fatal(err)
		}
	}
	if got := count.Load(); got != 1 {
		t.Errorf("%d connections for 5 requests by 5 round trippers, want 1", got)
	}
}

func TestHTTP2CarriesABurstOnOneConnection(t *testing.T) {
	ours := newAuthority(t)
	var count atomic.Int32
	var versions sync.Map
	host := ours.serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { versions.Store(r.Proto, true) }), connections(&count))
	r := mustNew(t, Config{CAFiles: []string{file(t, t.TempDir()+"/ca.pem", ours.pem)}})
	if _, _, err := get(t, r, host, false, "https://"+host+"/"); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			if _, _, err := get(t, r, host, false, "https://"+host+"/"); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if _, old := versions.Load("HTTP/1.1"); old || count.Load() != 1 {
		t.Errorf("%d connections, HTTP/1.1 %v; want one, of HTTP/2", count.Load(), old)
	}
}

func TestPlainHTTP(t *testing.T) {
	server := httptest.NewServer(says("plain"))
	t.Cleanup(server.Close)
	host := server.Listener.Addr().String()
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		config   Config
		registry string
		insecure bool
		want     string // reason, or "" when it passes
	}{
		"HTTP is refused by default":                        {Config{}, host, false, "plain HTTP to a host that is not listed for it"},
		"a listed host passes":                              {Config{PlainHTTPHosts: []string{host}}, host, false, ""},
		"a listed host passes the guard too":                {Config{PlainHTTPHosts: []string{host}, DenyPrivate: true}, host, false, ""},
		"another port of a listed host does not":            {Config{PlainHTTPHosts: []string{"127.0.0.1:1"}}, host, false, "plain HTTP to a host that is not listed for it"},
		"a location called insecure passes":                 {Config{}, host, true, ""},
		"insecure counts for every port of the host":        {Config{}, "127.0.0.1:1", true, ""},
		"insecure means nothing for other hosts":            {Config{}, "registry.example", true, "plain HTTP to a host that is not listed for it"},
		"insecure does not open the guard":                  {Config{DenyPrivate: true}, host, true, "loopback address"},
		"an address inside an allowed range passes":         {Config{DenyPrivate: true, AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, host, true, ""},
		"the name of a listed host is compared in any case": {Config{PlainHTTPHosts: []string{"LOCALHOST:" + port}}, host, false, "plain HTTP to a host that is not listed for it"},
	} {
		t.Run(name, func(t *testing.T) {
			_, body, err := get(t, mustNew(t, test.config), test.registry, test.insecure, "http://"+host+"/")
			if test.want == "" {
				if err != nil || body != "plain" {
					t.Errorf("got %q, %v", body, err)
				}
				return
			}
			var blocked *BlockedAddressError
			if !errors.As(err, &blocked) || blocked.Reason != test.want {
				t.Errorf("error is %v, want %s", err, test.want)
			}
		})
	}
	if r := mustNew(t, Config{PlainHTTPHosts: []string{"Registry.Example:5000"}}); !r.PlainHTTP("registry.example:5000") || r.PlainHTTP("registry.example") {
		t.Error("PlainHTTP does not tell hosts and ports apart, or minds the case")
	}
	if _, err := New(Config{PlainHTTPHosts: []string{"http://host"}}); err == nil {
		t.Error("a URL was taken for a host")
	}
}

func TestAddressesAreJudgedAfterResolution(t *testing.T) {
	ours := newAuthority(t)
	host := ours.serve(says("hello"), nil, "registry.example", "two.example")
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		t.Fatal(err)
	}
	dns := &resolver{}
	config := Config{
		Resolver: dns.start(t), DenyPrivate: true, DialTimeout: 2 * time.Second,
		CAFiles:   []string{file(t, t.TempDir()+"/ca.pem", ours.pem)},
		DenyCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
	strict := mustNew(t, config)
	for name, test := range map[string]struct{ address, want string }{
		"a name of a loopback address":           {"127.0.0.1", "loopback address"},
		"a name of the metadata service":         {"169.254.169.254", "link-local address"},
		"a name of an IPv6 loopback address":     {"::1", "loopback address"},
		"a name of a mapped address":             {"::ffff:169.254.169.254", "link-local address"},
		"a name of a translated address":         {"64:ff9b::a9fe:a9fe", "link-local address"},
		"a name of a service inside the cluster": {"10.96.0.1", "address inside a refused range"},
	} {
		t.Run(name, func(t *testing.T) {
			dns.set(map[string][]string{"registry.example": {test.address}})
			_, _, err := get(t, strict, "registry.example:"+port, false, "https://registry.example:"+port+"/")
			var blocked *BlockedAddressError
			if !errors.As(err, &blocked) || blocked.Reason != test.want {
				t.Fatalf("error is %v, want %s", err, test.want)
			}
			if strings.Contains(err.Error(), test.address) {
				t.Errorf("the error tells what the name resolves to: %v", err)
			}
			if !blocked.Address.IsValid() {
				t.Error("the operator is not told the address")
			}
		})
	}
	t.Run("a literal address", func(t *testing.T) {
		var blocked *BlockedAddressError
		if _, _, err := get(t, strict, host, false, "https://"+host+"/"); !errors.As(err, &blocked) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("of two addresses the one that may be dialled is", func(t *testing.T) {
		dns.set(map[string][]string{"two.example": {"169.254.169.254", "127.0.0.1"}})
		opened := config
		opened.AllowCIDRs = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
		if _, body, err := get(t, mustNew(t, opened), "two.example:"+port, false, "https://two.example:"+port+"/"); err != nil || body != "hello" {
			t.Errorf("got %q, %v", body, err)
		}
	})
	t.Run("each connection is judged by the address of its own resolution", func(t *testing.T) {
		opened := config
		opened.AllowCIDRs = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
		r := mustNew(t, opened)
		dns.set(map[string][]string{"registry.example": {"127.0.0.1"}})
		if _, _, err := get(t, r, "registry.example:"+port, false, "https://registry.example:"+port+"/"); err != nil {
			t.Fatal(err)
		}
		r.CloseIdleConnections()
		dns.set(map[string][]string{"registry.example": {"127.0.0.2"}})
		var blocked *BlockedAddressError
		if _, _, err := get(t, r, "registry.example:"+port, false, "https://registry.example:"+port+"/"); !errors.As(err, &blocked) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestRedirectsAreJudgedByTheirOwnHost(t *testing.T) {
	ours := newAuthority(t)
	secret := ours.serve(says("internal"), nil)
	plain := httptest.NewServer(says("internal"))
	t.Cleanup(plain.Close)
	for name, test := range map[string]struct {
		to   string
		deny []string
		want string
	}{
		"to a loopback address":         {"https://" + secret + "/", nil, "loopback address"},
		"to the metadata service":       {"https://169.254.169.254/latest/", nil, "link-local address"},
		"to HTTP":                       {plain.URL, nil, "plain HTTP to a host that is not listed for it"},
		"to a denied registry":          {"https://evil.example/", []string{"*.example"}, "denied registry"},
		"to another port of a denied":   {"https://evil.example:8443/", []string{"evil.example"}, "denied registry"},
		"to a hostname inside brackets": {"https://[::ffff:7f00:1]:" + portOf(t, secret) + "/", nil, "loopback address"},
	} {
		t.Run(name, func(t *testing.T) {
			front := httptest.NewServer(http.RedirectHandler(test.to, http.StatusTemporaryRedirect))
			t.Cleanup(front.Close)
			host := front.Listener.Addr().String()
			r := mustNew(t, Config{
				PlainHTTPHosts: []string{host}, DenyPrivate: true, DenyRegistries: test.deny,
				CAFiles: []string{file(t, t.TempDir()+"/ca.pem", ours.pem)},
			})
			_, body, err := get(t, r, host, true, front.URL)
			var blocked *BlockedAddressError
			if test.want == "plain HTTP to a host that is not listed for it" {
				test.want = "loopback address" // insecure covers the hostname; the guard does not
			}
			if !errors.As(err, &blocked) || blocked.Reason != test.want {
				t.Errorf("got %q, %v; want %s", body, err, test.want)
			}
		})
	}
}

func portOf(t *testing.T, host string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestRegistryLists(t *testing.T) {
	for name, test := range map[string]struct {
		allow, deny []string
		registry    string
		want        bool
	}{
		"no list permits everything":                     {nil, nil, "quay.io", true},
		"a listed registry is permitted":                 {[]string{"quay.io"}, nil, "quay.io", true},
		"another is not":                                 {[]string{"quay.io"}, nil, "docker.io", false},
		"a port must be allowed by name":                 {[]string{"quay.io"}, nil, "quay.io:8443", false},
		"an allowed port":                                {[]string{"quay.io:8443"}, nil, "quay.io:8443", true},
		"the default port is the same as none":           {[]string{"quay.io"}, nil, "quay.io:443", true},
		"a wildcard covers every depth":                  {[]string{"*.example.com"}, nil, "a.b.example.com", true},
		"a wildcard does not cover the domain":           {[]string{"*.example.com"}, nil, "example.com", false},
		"a wildcard does not cover a name that ends so":  {[]string{"*.example.com"}, nil, "badexample.com", false},
		"denied wins":                                    {[]string{"quay.io"}, []string{"quay.io"}, "quay.io", false},
		"denied on every port":                           {nil, []string{"quay.io"}, "quay.io:8443", false},
		"denied on one port":                             {nil, []string{"quay.io:8443"}, "quay.io", true},
		"denied in another case":                         {nil, []string{"quay.io"}, "QUAY.io", false},
		"denied with a final dot":                        {nil, []string{"quay.io"}, "quay.io.", false},
		"the hub's registry is the hub":                  {nil, []string{"docker.io"}, "registry-1.docker.io", false},
		"the hub's index is the hub":                     {[]string{"docker.io"}, nil, "index.docker.io", true},
		"an IPv6 address is denied on every port":        {nil, []string{"[2001:db8::1]"}, "[2001:db8::1]:5000", false},
		"a wildcard denies every port of names below it": {nil, []string{"*.evil.example"}, "a.evil.example:1", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := mustNew(t, Config{AllowRegistries: test.allow, DenyRegistries: test.deny})
			err := r.Permits(test.registry)
			if (err == nil) != test.want {
				t.Errorf("Permits: %v", err)
			}
			if err == nil {
				return
			}
			var blocked *BlockedAddressError
			if _, _, err := get(t, r, test.registry, false, "https://"+test.registry+"/"); !errors.As(err, &blocked) {
				t.Errorf("a request gives %v", err)
			}
		})
	}
	for _, entry := range []string{"", "*.", "https://quay.io", "quay.io/team", "a.*.io"} {
		if _, err := New(Config{DenyRegistries: []string{entry}}); err == nil {
			t.Errorf("entry %q was taken", entry)
		}
	}
}

func TestProxy(t *testing.T) {
	ours := newAuthority(t)
	host := ours.serve(says("by tunnel"), nil, "registry.example")
	ca := file(t, t.TempDir()+"/ca.pem", ours.pem)
	environment := func(vars map[string]string) func(string) string {
		return func(name string) string { return vars[name] }
	}
	for name, test := range map[string]struct {
		registry string
		scheme   string
		extra    map[string]string
		body     string // "" when it is refused
		blocked  string
		connects int32
	}{
		"HTTPS goes through a tunnel, and the proxy's own address is not judged": {
			registry: "registry.example", scheme: "https", body: "by tunnel", connects: 1,
		},
		"a literal loopback address is refused before the proxy": {
			registry: "127.0.0.2:5000", scheme: "https", extra: map[string]string{"NO_PROXY": "none.example"}, blocked: "loopback address",
		},
		"a literal address of the metadata service is refused before the proxy": {
			registry: "169.254.169.254", scheme: "https", blocked: "link-local address",
		},
		"an address in another notation is refused before the proxy": {
			registry: "0xa9fea9fe", scheme: "https", blocked: "address that cannot be read",
		},
		"a short address is refused before the proxy": {
			registry: "169.254.43518", scheme: "https", blocked: "address that cannot be read",
		},
		"a plain host goes to the proxy for HTTP": {
			registry: "plain.example", scheme: "http", body: "by proxy: http://plain.example/",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, host)
			vars := map[string]string{"HTTPS_PROXY": "http://" + p.address, "HTTP_PROXY": "http://" + p.address}
			for name, value := range test.extra {
				vars[name] = value
			}
			r := mustNew(t, Config{
				CAFiles: []string{ca}, DenyPrivate: true, PlainHTTPHosts: []string{"plain.example"},
				Proxy: ProxyFromEnvironment(environment(vars)),
			})
			_, body, err := get(t, r, test.registry, false, test.scheme+"://"+test.registry+"/")
			var blocked *BlockedAddressError
			switch {
			case test.blocked == "" && (err != nil || body != test.body):
				t.Errorf("got %q, %v; want %q", body, err, test.body)
			case test.blocked != "" && (!errors.As(err, &blocked) || blocked.Reason != test.blocked):
				// localhost and 127.0.0.0/8 never go to a proxy: refused when dialled
				t.Errorf("error is %v, want %s", err, test.blocked)
			}
			if got := p.connects.Load(); got != test.connects {
				t.Errorf("the proxy saw %d tunnels, want %d", got, test.connects)
			}
		})
	}
	t.Run("NO_PROXY connects directly, and is judged", func(t *testing.T) {
		p := startProxy(t, host)
		dns := &resolver{}
		dns.set(map[string][]string{"registry.example": {"127.0.0.1"}})
		r := mustNew(t, Config{
			DenyPrivate: true, Resolver: dns.start(t),
			Proxy: ProxyFromEnvironment(environment(map[string]string{"https_proxy": "http://" + p.address, "no_proxy": ".example"})),
		})
		var blocked *BlockedAddressError
		if _, _, err := get(t, r, "registry.example", false, "https://registry.example/"); !errors.As(err, &blocked) {
			t.Errorf("error is %v", err)
		}
		if got := p.connects.Load(); got != 0 {
			t.Errorf("the proxy saw %d tunnels", got)
		}
	})
	t.Run("the proxy's password is in no error", func(t *testing.T) {
		proxies := ProxyFromEnvironment(environment(map[string]string{"HTTPS_PROXY": "http://me:hunter2@bad host:1"}))
		_, _, err := get(t, mustNew(t, Config{Proxy: proxies}), "registry.example", false, "https://registry.example/")
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error is %v", err)
		}
	})
}

func TestHostileServers(t *testing.T) {
	ours := newAuthority(t)
	ca := file(t, t.TempDir()+"/ca.pem", ours.pem)
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })

	for name, test := range map[string]struct {
		host string
		want string // part of the error
	}{
		"one that never answers the handshake": {silent.Addr().String(), "TLS handshake timeout"},
		"one that never sends headers": {ours.serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-released:
			case <-r.Context().Done():
			}
		}), nil), "timeout awaiting response headers"},
		"one that sends endless headers over HTTP/1.1": {ours.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("a", 1<<20))
		}), func(s *httptest.Server) { s.EnableHTTP2 = false }), "server response headers exceeded"},
		"one that sends endless headers over HTTP/2": {ours.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("a", 1<<20))
		}), nil), "COMPRESSION_ERROR"}, // how the HTTP/2 client ends a header list above its limit
		"one that speaks TLS 1.1": {ours.serve(says(""), func(s *httptest.Server) {
			s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		}), "protocol version"},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{CAFiles: []string{ca}}
			switch test.want { // the others get the time that a busy machine needs
			case "TLS handshake timeout":
				config.TLSHandshakeTimeout = 200 * time.Millisecond
			case "timeout awaiting response headers":
				config.ResponseHeaderTimeout = 200 * time.Millisecond
			}
			r := mustNew(t, config)
			_, _, err := get(t, r, test.host, false, "https://"+test.host+"/")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
	t.Run("bodies come as sent, not decompressed", func(t *testing.T) {
		var accepted atomic.Value
		host := ours.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			accepted.Store(r.Header.Get("Accept-Encoding"))
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "not gzip at all")
		}), nil)
		_, body, err := get(t, mustNew(t, Config{CAFiles: []string{ca}}), host, false, "https://"+host+"/")
		if err != nil || body != "not gzip at all" || accepted.Load() != "" {
			t.Errorf("got %q, %v; Accept-Encoding %q", body, err, accepted.Load())
		}
	})
	t.Run("a scheme that is neither https nor http", func(t *testing.T) {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "ftp://registry.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mustNew(t, Config{}).RoundTripper("registry.example", false).RoundTrip(request); err == nil {
			t.Error("it was taken")
		}
	})
}

func TestDialErrorsTellNoAddress(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(t, gone.Addr().String())
	gone.Close()
	dns := &resolver{}
	dns.set(map[string][]string{"registry.example": {"127.0.0.1"}})
	r := mustNew(t, Config{Resolver: dns.start(t)})
	for name, test := range map[string]struct{ host, want string }{
		"a closed port":              {"registry.example:" + port, "connection to registry.example:" + port + ": connection refused"},
		"a name that does not exist": {"missing.example", "connection to missing.example:443: no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := get(t, r, test.host, false, "https://"+test.host+"/")
			var dial *DialError
			if !errors.As(err, &dial) || dial.Error() != test.want || strings.Contains(err.Error(), "127.0.0.1") {
				t.Errorf("error is %v, want %s", err, test.want)
			}
		})
	}
	t.Run("a timeout is one for package net too", func(t *testing.T) {
		var timeout net.Error
		err := error(&DialError{Host: "h:443", Cause: &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded, Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3)}}})
		if !errors.Is(err, os.ErrDeadlineExceeded) || err.Error() != "connection to h:443: time ran out" {
			t.Errorf("error is %v", err)
		}
		if errors.As(err, &timeout) && !timeout.Timeout() {
			t.Error("it is no timeout")
		}
	})
	t.Run("a connection that was reset", func(t *testing.T) {
		err := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3)}, Addr: &net.TCPAddr{IP: net.IPv4(10, 4, 5, 6)}, Err: os.NewSyscallError("read", syscall.ECONNRESET)}
		if got := Describe(err); got != "connection reset by peer" {
			t.Errorf("Describe = %q", got)
		}
	})
}

func TestCanonicalHost(t *testing.T) {
	for host, want := range map[string]string{
		"Quay.IO":                   "quay.io",
		"quay.io.":                  "quay.io",
		"quay.io.:443":              "quay.io",
		"quay.io:443":               "quay.io",
		"quay.io:5000":              "quay.io:5000",
		"[2001:DB8::1]:443":         "[2001:db8::1]",
		"[2001:db8::1]:5000":        "[2001:db8::1]:5000",
		"[2001:db8::1]":             "[2001:db8::1]",
		"registry-1.docker.io":      "docker.io",
		"index.docker.io:443":       "docker.io",
		"registry-1.docker.io:8443": "docker.io:8443",
	} {
		if got := canonicalHost(host); got != want {
			t.Errorf("canonicalHost(%q) = %q, want %q", host, got, want)
		}
	}
}

// A directory name never leaves certs.d.
func FuzzDirectory(f *testing.F) {
	for _, host := range []string{"quay.io", "../x", "..", "a/../../b", "", ".", "[::1]:5000", "host:1/.."} {
		f.Add(host)
	}
	root := f.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "certs.d", "quay.io"), 0o700); err != nil {
		f.Fatal(err)
	}
	files := trustFiles{certsDirs: []string{filepath.Join(root, "certs.d")}}
	f.Fuzz(func(t *testing.T, host string) {
		if got := files.directory(canonicalHost(host)); got != "" && filepath.Dir(got) != filepath.Join(root, "certs.d") {
			t.Errorf("directory(%q) = %q", host, got)
		}
	})
}

func TestAPlainHTTPRegistryMayLeadToPlainHTTP(t *testing.T) {
	blobs := httptest.NewServer(says("blob"))
	t.Cleanup(blobs.Close)
	front := httptest.NewServer(http.RedirectHandler(blobs.URL, http.StatusTemporaryRedirect))
	t.Cleanup(front.Close)
	host := front.Listener.Addr().String()
	if _, body, err := get(t, mustNew(t, Config{PlainHTTPHosts: []string{host}}), host, false, front.URL); err != nil || body != "blob" {
		t.Errorf("got %q, %v", body, err)
	}
	var blocked *BlockedAddressError
	if _, _, err := get(t, mustNew(t, Config{PlainHTTPHosts: []string{host}, DenyPrivate: true}), host, false, front.URL); !errors.As(err, &blocked) || blocked.Reason != "loopback address" {
		t.Errorf("the address that it leads to is not judged: %v", err)
	}
}
