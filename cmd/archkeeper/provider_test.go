package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/provider/throwaway"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

// certificates writes ca.crt, tls.crt, tls.key, client.crt and client.key.
func certificates(t *testing.T) (dir string, authority *throwaway.Authority) {
	t.Helper()
	dir, now := t.TempDir(), time.Now()
	authority, err := throwaway.New("test", now)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"ca.crt": authority.PEM()}
	for name, r := range map[string]throwaway.Request{
		"tls":    {IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Now: now},
		"client": {Names: []string{"caller"}, Client: true, Now: now},
	} {
		if files[name+".crt"], files[name+".key"], err = authority.Issue(r); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, authority
}

func TestProviderDoesNotStart(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	dir, _ := certificates(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	served := []string{"--tls-cert", in("tls.crt"), "--tls-key", in("tls.key"), "--listen=127.0.0.1:0", "--probe-listen=127.0.0.1:0"}
	for sentence, tc := range map[string]struct {
		args []string
		says string
	}{
		"without any word on its callers": {served, "--insecure-no-client-auth"},
		"without a certificate":           {[]string{"--client-ca", in("ca.crt")}, "--tls-cert"},
		"with a missing authority":        {append(served, "--client-ca", in("none.crt")), "none.crt"},
		"with a key that does not fit":    {append(served, "--client-ca", in("ca.crt"), "--tls-key", in("client.key")), "tls.crt"},
		"with no time to answer":          {append(served, "--client-ca", in("ca.crt"), "--deadline=0s"), "--deadline"},
		"with secrets of an unknown kind": {append(served, "--client-ca", in("ca.crt"), "--secrets=all"), "on-demand"},
		"with a missing kubeconfig":       {append(served, "--client-ca", in("ca.crt"), "--kubeconfig", in("kc")), "kc"},
		"with a missing mirror file":      {append(served, "--client-ca", in("ca.crt"), "--registries-conf", in("registries.conf")), "registries.conf"},
		"with a missing credentials file": {append(served, "--client-ca", in("ca.crt"), "--authfile", in("auth.json")), "auth.json"},
		"with an address that is no CIDR": {append(served, "--client-ca", in("ca.crt"), "--allow-address=10.0.0.1"), "--allow-address"},
		"with an odd log level":           {append(served, "--client-ca", in("ca.crt"), "--log-level=loud"), "loud"},
		"with half of the plugins' flags": {append(served, "--client-ca", in("ca.crt"), "--image-credential-provider-config=x"), "belong together"},
		"with an argument":                {append(served, "--client-ca", in("ca.crt"), "image"), "image"},
		"with a lease without a name":     {append(served, "--client-ca", in("ca.crt"), "--lease=ns"), "--lease"},
		"with a missing admission token":  {append(served, "--client-ca", in("ca.crt"), "--admission-listen=127.0.0.1:0", "--admission-token-file", in("token")), "token"},
		"with a missing configuration":    {append(served, "--client-ca", in("ca.crt"), "--admission-token-file", in("token"), "--config", in("c.yaml")), "c.yaml"},
		"at an address that is none":      {append(served, "--client-ca", in("ca.crt"), "--listen=256.0.0.1:1"), "256.0.0.1"},
	} {
		t.Run(sentence, func(t *testing.T) {
			stdout, stderr, status := command(t, "", append([]string{"provider"}, tc.args...)...)
			if status != statusFailed || stdout != "" || !strings.Contains(stderr, tc.says) {
				t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
			}
		})
	}
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

// served is a provider that runs in this process.
type served struct {
	t                      *testing.T
	data, admission, probe string // addresses
	log                    *lockedBuffer
	known, stranger        *http.Transport
	stop                   context.CancelFunc
	ended                  chan int
}

// serve runs the command with certificates and free ports, and waits until it
// serves.
func serve(t *testing.T, args ...string) *served {
	t.Helper()
	t.Setenv("KUBECONFIG", "")
	dir, authority := certificates(t)
	ctx, stop := context.WithCancel(t.Context())
	s := &served{t: t, log: &lockedBuffer{}, stop: stop, ended: make(chan int, 1)}
	go func() {
		s.ended <- run(ctx, append([]string{
			"archkeeper", "provider", "--listen=127.0.0.1:0", "--probe-listen=127.0.0.1:0", "--admission-listen=127.0.0.1:0", "--shutdown-delay=0s", "--deadline=20s",
			"--tls-cert", filepath.Join(dir, "tls.crt"), "--tls-key", filepath.Join(dir, "tls.key"),
			"--client-ca", filepath.Join(dir, "ca.crt"), "--client-san=caller",
		}, args...), streams{in: strings.NewReader(""), out: io.Discard, err: s.log})
	}()
	said := regexp.MustCompile(`msg=serving .*data=(\S+) probe=(\S+)(?: admission=(\S+))?`)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if found := said.FindStringSubmatch(s.log.String()); found != nil {
			s.data, s.probe, s.admission = found[1], found[2], found[3]
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it does not serve:\n%s", s.log)
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	s.known = &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	s.stranger = &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}
	return s
}

// post sends a body and gives the answer's.
func (s *served) post(by *http.Transport, url, body string) (int, string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := by.RoundTrip(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// end tells it to end and expects a clean one.
func (s *served) end() {
	s.t.Helper()
	s.known.CloseIdleConnections()
	s.stranger.CloseIdleConnections()
	s.stop()
	if status := <-s.ended; status != statusSatisfied {
		s.t.Errorf("status %d:\n%s", status, s.log)
	}
}

// The command as it is typed answers a caller of its authority about an image
// of a registry on loopback, which it may reach because it is named, pins none
// of a mirrored registry's tags, and ends with 0 when told to.
func TestProviderServes(t *testing.T) {
	images := registrytest.New()
	defer images.Close()
	digest := images.PutIndex("app", "1", "linux/amd64", "linux/arm64")
	conf := filepath.Join(t.TempDir(), "registries.conf")
	mirror := "[[registry]]\nlocation = \"mirrored.example\"\n[[registry.mirror]]\nlocation = \"" + images.Host() + "\"\npull-from-mirror = \"tag-only\"\n"
	if err := os.WriteFile(conf, []byte(mirror), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "--registries-conf", conf, "--plain-http-host", images.Host())
	for sentence, tc := range map[string]struct{ path, key, says string }{
		"platforms":                      {"/v1/public", images.Host() + "/app:1", `"architectures":["amd64","arm64"]`},
		"through a mirror":               {"/v1/public", "mirrored.example/app:1", `"digest":"` + digest + `"`},
		"a digest":                       {"/v1/pin", images.Host() + "/app:1", `"value":"` + images.Host() + "/app:1@" + digest + `"`},
		"no digest of a mirrored tag":    {"/v1/pin", "mirrored.example/app:1", `"value":"mirrored.example/app:1"`},
		"an address that is not for all": {"/v1/public", "127.0.0.1:1/app:1", `"error":"blocked: `},
	} {
		t.Run(sentence, func(t *testing.T) {
			body := `{"apiVersion":"externaldata.gatekeeper.sh/v1beta1","kind":"ProviderRequest","request":{"keys":["` + tc.key + `"]}}`
			if status, got := s.post(s.known, "https://"+s.data+tc.path, body); status != http.StatusOK || !strings.Contains(got, tc.says) {
				t.Errorf("status %d: %s, want %s", status, got, tc.says)
			}
			if status, got := s.post(s.stranger, "https://"+s.data+tc.path, body); status != http.StatusUnauthorized {
				t.Errorf("a stranger: status %d: %s", status, got)
			}
		})
	}
	if s.admission != "" {
		t.Error("the admission port is open without a token")
	}
	s.end()
}

// With a token, the admission port places a pod whose images are known.
func TestProviderAdmits(t *testing.T) {
	images := registrytest.New()
	defer images.Close()
	images.PutIndex("app", "1", "linux/arm64")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-of-twenty-ch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "--plain-http-host", images.Host(), "--admission-token-file", token, "--admission-budget=10s")
	review := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"","version":"v1","kind":"Pod"},
		"resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","namespace":"shop","name":"p",
		"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"shop"},"spec":{"containers":[{"name":"c","image":"` + images.Host() + `/app:1"}]}}}}`
	status, text := s.post(s.stranger, "https://"+s.admission+"/v1/admit/a-token-of-twenty-ch", review)
	var answer struct {
		Response struct {
			UID     string
			Allowed bool
			Patch   []byte
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusOK || !answer.Response.Allowed || answer.Response.UID != "u" {
		t.Fatalf("status %d: %s", status, text)
	}
	if patch := string(answer.Response.Patch); !strings.Contains(patch, "kubernetes.io/arch") || !strings.Contains(patch, `"arm64"`) {
		t.Errorf("patch %s", patch)
	}
	if status, text := s.post(s.known, "https://"+s.admission+"/v1/admit/a-guess-of-twenty-ch", review); status != http.StatusNotFound {
		t.Errorf("a guess: status %d: %s", status, text)
	}
	s.end()
}

func TestDemoOnce(t *testing.T) {
	stdout, stderr, status := command(t, "", "demo", "--once")
	if status != statusSatisfied || !strings.Contains(stdout, "pod mixed") || stderr != "" {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}
