package policy_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/frameworks/constraint/pkg/apis/externaldata/unversioned"
	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/server"
	"github.com/archkeeper/archkeeper/provider/wire"
)

// world is the part of a cluster that policies ask: the real provider server
// over TLS, with what it knows of images given by fixtures.
type world struct {
	// Cache holds the Provider objects archkeeper, archkeeper-namespaced and
	// archkeeper-pin, as Gatekeeper's controller would.
	Cache *externaldata.ProviderCache
	// clientCert is Gatekeeper's own certificate, without which it does not
	// ask in mutation.
	clientCert *certwatcher.CertWatcher

	mu      sync.Mutex
	known   map[string]provider.Answer
	batches [][]provider.Query
}

// newWorld starts a provider, which ends with the test.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{Cache: externaldata.NewCache()}
	certFile, keyFile, ca := certificate(t)
	var err error
	if w.clientCert, err = certwatcher.New(certFile, keyFile); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{
		Inspector: w, Data: listener, CertFile: certFile, KeyFile: keyFile,
		Open: true, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for name, path := range map[string]string{
		"archkeeper": "/v1/public", "archkeeper-namespaced": "/v1/namespaced", "archkeeper-pin": "/v1/pin",
	} {
		w.register(t, name, "https://"+listener.Addr().String()+path, ca)
	}
	return w
}

func (w *world) register(t testing.TB, name, url string, ca []byte) {
	t.Helper()
	if err := w.Cache.Upsert(&unversioned.Provider{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       unversioned.ProviderSpec{URL: url, Timeout: 1, CABundle: base64.StdEncoding.EncodeToString(ca)},
	}); err != nil {
		t.Fatal(err)
	}
}

// learn replaces what is known by a fixture, a list of the objects of
// archkeeper inspect, and forgets what was asked.
func (w *world) learn(t testing.TB, fixture []byte) {
	t.Helper()
	var images []wire.Image
	if err := yaml.UnmarshalStrict(fixture, &images); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]provider.Answer, len(images))
	for _, image := range images {
		known[image.Image] = image.Answer()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known, w.batches = known, nil
}

// asked gives the batches of queries since learn.
func (w *world) asked() [][]provider.Query {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.batches
}

// Inspect implements provider.Inspector.
func (w *world) Inspect(_ context.Context, queries []provider.Query) []provider.Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batches = append(w.batches, queries)
	answers := make([]provider.Answer, len(queries))
	for i, query := range queries {
		answer, known := w.known[query.Image]
		if !known {
			answer = provider.Answer{Err: provider.Errorf(provider.ClassNotFound, "no such image")}
		}
		answer.Image = query.Image
		answers[i] = answer
	}
	return answers
}

// certificate makes a throw-away certificate for 127.0.0.1, its own CA.
func certificate(t testing.TB) (certFile, keyFile string, ca []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "provider"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for file, content := range map[string][]byte{certFile: ca, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, ca
}
