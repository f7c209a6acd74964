package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// CA is a certificate authority with an ECDSA P-256 key, valid for a day.
type CA struct {
	// CertPEM is the authority's own certificate.
	CertPEM []byte

	cert *x509.Certificate
	key  crypto.Signer
}

// Leaf says what a certificate is for.
type Leaf struct {
	// CommonName is the user name when the certificate is a client's.
	CommonName string
	// Organizations are the groups of a client.
	Organizations []string
	DNSNames      []string
	IPs           []net.IP
	// Server and Client are the usages; a leaf may have both.
	Server, Client bool
	// Validity from now; a day when zero. Negative makes one that has expired.
	Validity time.Duration
}

// KeyPair is a certificate and its key, as PEM.
type KeyPair struct {
	CertPEM, KeyPEM []byte
}

// Loopback is the address that every process of a cluster listens on.
var loopback = net.IPv4(127, 0, 0, 1)

// NewCA makes an authority.
func NewCA(name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of CA %s: %w", name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing CA %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading CA %s back: %w", name, err)
	}
	return &CA{CertPEM: pemBlock("CERTIFICATE", der), cert: cert, key: key}, nil
}

// Issue signs a leaf.
func (ca *CA) Issue(leaf Leaf) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("making the key of %s: %w", leaf.CommonName, err)
	}
	serial, err := newSerial()
	if err != nil {
		return KeyPair{}, err
	}
	validity := leaf.Validity
	if validity == 0 {
		validity = 24 * time.Hour
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations},
		DNSNames:     leaf.DNSNames,
		IPAddresses:  leaf.IPs,
		NotBefore:    time.Now().Add(-25 * time.Hour),
		NotAfter:     time.Now().Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	if leaf.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if leaf.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("signing the certificate of %s: %w", leaf.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{CertPEM: pemBlock("CERTIFICATE", der), KeyPEM: keyPEM}, nil
}

// Pool holds the authority alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// TLS is the pair as crypto/tls takes it.
func (k KeyPair) TLS() (tls.Certificate, error) {
	c, err := tls.X509KeyPair(k.CertPEM, k.KeyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading a key pair: %w", err)
	}
	return c, nil
}

// Write puts the pair into dir as tls.crt and tls.key, each replaced at once,
// the key first: a reader of both finds the old pair, a mismatch that it
// retries, or the new pair.
func (k KeyPair) Write(dir string) error {
	if err := WriteFile(filepath.Join(dir, "tls.key"), k.KeyPEM); err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, "tls.crt"), k.CertPEM)
}

// WriteFile replaces a file by renaming a new one over it, as the kubelet does
// for mounted secrets: a reader never finds half of it. Folders are made.
func WriteFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", path, err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	return nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	return serial, nil
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pemBlock("PRIVATE KEY", der), nil
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// clientTLS trusts one authority.
func clientTLS(ca *CA) *tls.Config {
	return &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13}
}
