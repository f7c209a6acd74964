package reach

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// authority signs certificates for the servers and clients of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: t.Name() + time.Now().String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key, a.pem, _ = a.sign(template)
	return a
}

func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, []byte, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// issue gives certificate and key, PEM, for 127.0.0.1, localhost and names.
func (a *authority) issue(commonName string, names ...string) (certPEM, keyPEM []byte) {
	a.t.Helper()
	_, _, certPEM, keyPEM = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: commonName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: append(names, "localhost"), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return certPEM, keyPEM
}

// serve starts a TLS server with a certificate of the authority and gives its
// host:port.
func (a *authority) serve(handler http.Handler, adjust func(*httptest.Server), names ...string) string {
	a.t.Helper()
	certPEM, keyPEM := a.issue("server", names...)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		a.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.EnableHTTP2 = true
	server.Config.ErrorLog = quiet()
	if adjust != nil {
		adjust(server)
	}
	server.StartTLS()
	a.t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// file writes a file and gives its path.
func file(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// get sends a GET through the round tripper for a registry.
func get(t *testing.T, r *Reach, registry string, insecure bool, url string) (status int, body string, err error) {
	t.Helper()
	client := &http.Client{Transport: r.RoundTripper(registry, insecure)}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, string(data), err
}

func mustNew(t *testing.T, config Config) *Reach {
	t.Helper()
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.CloseIdleConnections)
	return r
}

// resolver answers DNS questions for A and AAAA from a table that may change.
type resolver struct {
	addresses atomic.Pointer[map[string][]string]
	questions atomic.Int32
}

func (d *resolver) set(addresses map[string][]string) { d.addresses.Store(&addresses) }

// start serves DNS on a local UDP socket and gives a net.Resolver that asks it.
func (d *resolver) start(t *testing.T) *net.Resolver {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, peer, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply := d.reply(buffer[:n]); reply != nil {
				_, _ = socket.WriteTo(reply, peer)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", socket.LocalAddr().String())
	}}
}

func (d *resolver) reply(packet []byte) []byte {
	var message dnsmessage.Message
	if message.Unpack(packet) != nil || len(message.Questions) != 1 {
		return nil
	}
	d.questions.Add(1)
	question := message.Questions[0]
	message.Response, message.Additionals = true, nil
	addresses, known := (*d.addresses.Load())[strings.TrimSuffix(question.Name.String(), ".")]
	if !known {
		message.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addresses {
		header := dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: dnsmessage.ClassINET}
		ip := net.ParseIP(text)
		if v6 := strings.Contains(text, ":"); v6 && question.Type == dnsmessage.TypeAAAA {
			message.Answers = append(message.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: [16]byte(ip.To16())}})
		} else if !v6 && question.Type == dnsmessage.TypeA {
			message.Answers = append(message.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: [4]byte(ip.To4())}})
		}
	}
	reply, err := message.Pack()
	if err != nil {
		return nil
	}
	return reply
}

// proxy is an HTTP proxy that connects every target to one address and counts.
type proxy struct {
	target   string
	connects atomic.Int32
	forwards atomic.Int32
	address  string
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := &proxy{target: target}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			p.forwards.Add(1)
			_, _ = io.WriteString(w, "by proxy: "+r.URL.String())
			return
		}
		p.connects.Add(1)
		upstream, err := net.Dial("tcp", p.target)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			upstream.Close()
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		go pipe(upstream, buffered.Reader)
		go func() { pipe(conn, bufio.NewReader(upstream)); upstream.Close() }()
	}))
	t.Cleanup(server.Close)
	p.address = server.Listener.Addr().String()
	return p
}

func pipe(to net.Conn, from *bufio.Reader) {
	_, _ = io.Copy(to, from)
	to.Close()
}
