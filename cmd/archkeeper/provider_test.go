package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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

// The command as it is typed answers a caller of its authority about an image
// of a registry on loopback, which it may reach because it is named, pins none
// of a mirrored registry's tags, and ends with 0 when told to.
func TestProviderServes(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	dir, authority := certificates(t)
	images := registrytest.New()
	defer images.Close()
	digest := images.PutIndex("app", "1", "linux/amd64", "linux/arm64")
	conf := filepath.Join(dir, "registries.conf")
	mirror := "[[registry]]\nlocation = \"mirrored.example\"\n[[registry.mirror]]\nlocation = \"" + images.Host() + "\"\npull-from-mirror = \"tag-only\"\n"
	if err := os.WriteFile(conf, []byte(mirror), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &lockedBuffer{}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"archkeeper", "provider", "--listen=127.0.0.1:0", "--probe-listen=127.0.0.1:0", "--shutdown-delay=0s", "--deadline=20s",
			"--tls-cert", filepath.Join(dir, "tls.crt"), "--tls-key", filepath.Join(dir, "tls.key"),
			"--client-ca", filepath.Join(dir, "ca.crt"), "--client-san=caller", "--registries-conf", conf, "--plain-http-host", images.Host(),
		}, streams{in: strings.NewReader(""), out: io.Discard, err: log})
	}()
	said := regexp.MustCompile(`msg=serving .*data=(\S+) probe=(\S+)`)
	var addresses []string
	for end := time.Now().Add(20 * time.Second); addresses == nil; time.Sleep(5 * time.Millisecond) {
		if addresses = said.FindStringSubmatch(log.String()); addresses == nil && time.Now().After(end) {
			t.Fatalf("it does not serve:\n%s", log)
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	post := func(path, key string) string {
		t.Helper()
		body := `{"apiVersion":"externaldata.gatekeeper.sh/v1beta1","kind":"ProviderRequest","request":{"keys":["` + key + `"]}}`
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+addresses[1]+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close() //nolint:errcheck // read to its end
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for sentence, tc := range map[string]struct{ path, key, says string }{
		"platforms":                      {"/v1/public", images.Host() + "/app:1", `"architectures":["amd64","arm64"]`},
		"through a mirror":               {"/v1/public", "mirrored.example/app:1", `"digest":"` + digest + `"`},
		"a digest":                       {"/v1/pin", images.Host() + "/app:1", `"value":"` + images.Host() + "/app:1@" + digest + `"`},
		"no digest of a mirrored tag":    {"/v1/pin", "mirrored.example/app:1", `"value":"mirrored.example/app:1"`},
		"an address that is not for all": {"/v1/public", "127.0.0.1:1/app:1", `"error":"blocked: `},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := post(tc.path, tc.key); !strings.Contains(got, tc.says) {
				t.Errorf("%s, want %s", got, tc.says)
			}
		})
	}
	stop()
	if status := <-ended; status != statusSatisfied {
		t.Errorf("status %d:\n%s", status, log)
	}
}

func TestDemoOnce(t *testing.T) {
	stdout, stderr, status := command(t, "", "demo", "--once")
	if status != statusSatisfied || !strings.Contains(stdout, "pod mixed") || stderr != "" {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}
