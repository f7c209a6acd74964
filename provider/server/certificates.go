package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
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
	set   atomic.Pointer[caSet]
}

// newClientCAs reads PEM bundles. Each file holds at least one certificate.
func newClientCAs(files []string, o reload.Options) (*clientCAs, error) {
	c := &clientCAs{}
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
	return c, nil
}

// notAfter is when the first of the CAs ends; zero when there are none.
func (c *clientCAs) notAfter() time.Time { return c.set.Load().notAfter }

func (c *clientCAs) combine() {
	set := &caSet{pool: x509.NewCertPool()}
	for _, file := range c.files {
		for _, ca := range file.Get() {
			set.pool.AddCert(ca)
			if set.notAfter.IsZero() || ca.NotAfter.Before(set.notAfter) {
				set.notAfter = ca.NotAfter
			}
		}
	}
	c.set.Store(set)
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
