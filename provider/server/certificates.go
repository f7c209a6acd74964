package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/archkeeper/archkeeper/provider/reload"
)

// servingCertificate is the certificate that both HTTPS listeners present. It
// follows its files: cert-manager, Gatekeeper's rotator and mounted Secrets
// replace them while we run.
type servingCertificate struct {
	pair *reload.Value[*tls.Certificate]
}

// newServingCertificate reads a PEM certificate chain and its private key.
func newServingCertificate(certFile, keyFile string, o reload.Options) (*servingCertificate, error) {
	pair, err := reload.New([]string{certFile, keyFile}, func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, err
		}
		return &pair, nil
	}, o)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return &servingCertificate{pair: pair}, nil
}

// notAfter is when the certificate in use ends.
func (c *servingCertificate) notAfter() time.Time {
	if leaf := c.pair.Get().Leaf; leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

func (c *servingCertificate) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.pair.Get(), nil
		},
		// Asked for, proven to be held (TLS does that), and judged by
		// clientCertificates: so that a new CA holds for the next handshake,
		// a bearer token can take the certificate's place, and a refusal is
		// JSON with a reason rather than a TLS alert.
		ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"http/1.1"},
	}
}

// caSet is one generation of trusted CAs. Two generations differ by address.
type caSet struct {
	pool *x509.CertPool
	// notAfter is when the first of them ends.
	notAfter time.Time
}

// clientCAs are the CAs that sign our callers' certificates, from several
// files, each of which is followed on its own: one that breaks keeps its last
// good content and does not hold up the others.
type clientCAs struct {
	files []*reload.Value[[]*x509.Certificate]
	live  *LiveCAs // nil for none
	set   atomic.Pointer[caSet]

	combining sync.Mutex
}

// newClientCAs reads PEM bundles. Each file holds at least one certificate.
func newClientCAs(files []string, live *LiveCAs, o reload.Options) (*clientCAs, error) {
	c := &clientCAs{live: live}
	onChange := o.OnChange
	o.OnChange = func() {
		c.combine()
		if onChange != nil {
			onChange()
		}
	}
	for _, file := range files {
		value, err := reload.New([]string{file}, func(contents [][]byte) ([]*x509.Certificate, error) {
			return parseCertificates(contents[0])
		}, o)
		if err != nil {
			return nil, fmt.Errorf("client CA: %w", err)
		}
		c.files = append(c.files, value)
	}
	c.combine()
	live.follow(c.combine)
	return c, nil
}

// notAfter is when the first of the CAs ends; zero when there are none.
func (c *clientCAs) notAfter() time.Time { return c.set.Load().notAfter }

func (c *clientCAs) combine() {
	c.combining.Lock()
	defer c.combining.Unlock()
	set := &caSet{pool: x509.NewCertPool()}
	all := c.live.get()
	for _, file := range c.files {
		all = append(all, file.Get()...)
	}
	for _, ca := range all {
		set.pool.AddCert(ca)
		if set.notAfter.IsZero() || ca.NotAfter.Before(set.notAfter) {
			set.notAfter = ca.NotAfter
		}
	}
	c.set.Store(set)
}

// liveKept bounds the authorities that LiveCAs remembers.
const liveKept = 8

// LiveCAs are authorities of callers that are learnt while the server runs,
// such as Gatekeeper's from its own webhook configuration: a mounted file comes
// a minute after a caller has begun to show its new certificate. Those that were
// set before stay trusted, the latest eight in all, because a caller's replicas
// do not change at the same time. The zero value has none.
type LiveCAs struct {
	mu      sync.Mutex
	all     []*x509.Certificate
	changed func()
}

// Set adds a PEM bundle. One that cannot be read changes nothing.
func (l *LiveCAs) Set(bundle []byte) error {
	certificates, err := parseCertificates(bundle)
	if err != nil {
		return err
	}
	l.mu.Lock()
	before := l.all
	for _, had := range before {
		if !slices.ContainsFunc(certificates, had.Equal) {
			certificates = append(certificates, had)
		}
	}
	l.all = certificates[:min(len(certificates), liveKept)]
	same := slices.EqualFunc(before, l.all, (*x509.Certificate).Equal)
	changed := l.changed
	l.mu.Unlock()
	if !same && changed != nil {
		changed()
	}
	return nil
}

func (l *LiveCAs) get() []*x509.Certificate {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// follow calls changed from now on, and once if something is set already.
func (l *LiveCAs) follow(changed func()) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.changed = changed
	l.mu.Unlock()
	changed()
}

// parseCertificates reads every CERTIFICATE block of a PEM bundle and passes
// over blocks of other types. A block that cannot be read, or none at all, is
// an error: half of a file that is being written is not taken for a shorter one.
func parseCertificates(content []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(all)+1, err)
		}
		all = append(all, ca)
	}
	if len(all) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return all, nil
}
