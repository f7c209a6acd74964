// Package throwaway makes certificates that live for a demonstration or a
// test: an authority in memory, and certificates that it signs. Nothing here
// is fit for a cluster; there cert-manager or the chart makes certificates.
package throwaway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// DefaultLife is how long a certificate is valid, unless asked otherwise; it
// is valid from an hour earlier.
const DefaultLife = 24 * time.Hour

// Authority signs certificates with an ECDSA P-256 key.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Request says what a certificate shall be.
type Request struct {
	CommonName string
	// Names and IPs are the subject alternative names.
	Names []string
	IPs   []net.IP
	// Client and Server are the extended key usages.
	Client, Server bool
	// Now is when it is made; NotAfter its end, DefaultLife later when zero.
	Now, NotAfter time.Time
}

// New makes an authority that is valid for DefaultLife.
func New(commonName string, now time.Time) (*Authority, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(DefaultLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	certificate, key, err := sign(template, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("making authority %s: %w", commonName, err)
	}
	return &Authority{certificate: certificate, key: key}, nil
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// Issue makes a certificate and its key, both as PEM.
func (a *Authority) Issue(r Request) (certificatePEM, keyPEM []byte, err error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: r.CommonName}, DNSNames: r.Names, IPAddresses: r.IPs,
		NotBefore: r.Now.Add(-time.Hour), NotAfter: r.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if r.NotAfter.IsZero() {
		template.NotAfter = r.Now.Add(DefaultLife)
	}
	if r.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if r.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	certificate, key, err := sign(template, a.certificate, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("making a certificate for %s: %w", r.CommonName, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("writing the key of %s: %w", r.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// sign makes a key and a certificate; a nil parent signs itself.
func sign(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return nil, nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return certificate, key, err
}
