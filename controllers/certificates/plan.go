// Package certificates keeps the certificates of an installation fresh: one
// certificate authority, the leaves that it signs, and the copies of its
// certificate in those who trust it (Gatekeeper's Provider objects, our
// webhook configuration, the leaves' own Secrets).
//
// A new authority is trusted before it signs: it is published beside the old
// one, everybody gets time to take it in, then it signs new leaves, and the old
// one stays trusted until its last leaf is out of use. So no request fails while
// certificates rotate. Plan decides, and reads no clock; Controller does.
package certificates

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"time"
)

// Lifetimes of certificates.
type Lifetimes struct {
	// Authority and Leaf are how long each is valid. Defaults: 2 years, 90 days.
	// Both are renewed when a third of that is left. They are also dated back, by
	// an hour or a tenth of their life, because clocks differ.
	Authority, Leaf time.Duration
	// Overlap is how long a new authority is published before it signs, and an
	// old one trusted after it has stopped. Default: 10 minutes, four times the
	// minute or two that a kubelet takes to refresh a mounted Secret.
	Overlap time.Duration
}

func (l Lifetimes) withDefaults() Lifetimes {
	if l.Authority == 0 {
		l.Authority = 2 * 365 * 24 * time.Hour
	}
	if l.Leaf == 0 {
		l.Leaf = 90 * 24 * time.Hour
	}
	if l.Overlap == 0 {
		l.Overlap = 10 * time.Minute
	}
	return l
}

// Request is a leaf that is wanted.
type Request struct {
	// Name of the Secret that holds it.
	Name string
	// CommonName, and Hosts: DNS names and IP addresses.
	CommonName string
	Hosts      []string
	// Client asks for client authentication, beside server authentication
	// when there are Hosts.
	Client bool
}

// Pair is a certificate and its key, both PEM.
type Pair struct{ Cert, Key []byte }

// Empty tells whether there is no pair.
func (p Pair) Empty() bool { return len(p.Cert) == 0 || len(p.Key) == 0 }

// State is what the authority's Secret holds.
type State struct {
	// Active signs leaves. Next is published and does not sign yet.
	Active, Next Pair
	// Old are PEM certificates that are still trusted.
	Old []byte
	// Published is since when everybody has been seen to trust Next; zero while
	// somebody does not.
	Published time.Time
	// Promoted is when Active took over from Old.
	Promoted time.Time
	// Asked is set when somebody wants a new authority though none is due.
	Asked bool
}

// Bundle is every certificate to trust, PEM, the active one first.
func (s State) Bundle() []byte {
	return slices.Concat(s.Active.Cert, s.Next.Cert, s.Old)
}

// Outcome of a Plan.
type Outcome struct {
	State  State
	Leaves map[string]Pair
	// Again is when to plan again at the latest.
	Again time.Duration
	// Notes say what was done, for a log and events.
	Notes []string
}

// Plan says what the authority and the leaves should be at a time. Nothing
// that is given is changed. published tells whether everybody who trusts us
// holds state.Bundle(). random is the source of keys; nil for crypto/rand.
//
// A State that cannot be read is an error: replacing an authority that others
// trust is not for this function to decide.
func Plan(now time.Time, life Lifetimes, state State, leaves map[string]Pair, wanted []Request, published bool, random io.Reader) (Outcome, error) {
	life = life.withDefaults()
	if random == nil {
		random = rand.Reader
	}
	out := Outcome{State: state, Leaves: map[string]Pair{}, Again: life.Leaf / 12}
	s := &out.State
	var active *x509.Certificate
	var err error
	switch {
	case s.Active.Empty():
		if s.Active, active, err = newAuthority(now, life, random); err != nil {
			return Outcome{}, err
		}
		out.Notes = append(out.Notes, "made a certificate authority")
	default:
		if active, err = parse(s.Active); err != nil {
			return Outcome{}, fmt.Errorf("the active authority: %w", err)
		}
	}
	if !s.Next.Empty() {
		if _, err := parse(s.Next); err != nil {
			return Outcome{}, fmt.Errorf("the next authority: %w", err)
		}
	} else if due(now, active) || s.Asked {
		if s.Next, _, err = newAuthority(now, life, random); err != nil {
			return Outcome{}, err
		}
		s.Published, published, s.Asked = time.Time{}, false, false
		out.Notes = append(out.Notes, "published the next certificate authority beside the active one")
	}
	switch {
	case s.Next.Empty():
	case !published:
		s.Published = time.Time{}
		out.again(life.Overlap / 10)
	case s.Published.IsZero():
		s.Published = now
		out.again(life.Overlap)
	case now.Sub(s.Published) < life.Overlap:
		out.again(life.Overlap - now.Sub(s.Published))
	case len(s.Old) > 0: // one at a time: a leaf of the old one may be in use
		out.again(life.Overlap / 10)
	default:
		s.Old = s.Active.Cert
		s.Active, s.Next = s.Next, Pair{}
		s.Published, s.Promoted = time.Time{}, now
		if active, err = parse(s.Active); err != nil {
			return Outcome{}, fmt.Errorf("the next authority: %w", err)
		}
		out.Notes = append(out.Notes, "the next certificate authority now signs")
	}
	if len(s.Old) > 0 {
		// While a leaf in use is still the old one's, its time has not begun: the
		// last attempt to write the new leaf may have failed.
		for _, w := range wanted {
			if cert, err := parse(leaves[w.Name]); err == nil && cert.CheckSignatureFrom(active) != nil {
				s.Promoted = now
			}
		}
		if left := life.Overlap - now.Sub(s.Promoted); left > 0 {
			out.again(left)
		} else {
			s.Old = nil
			out.Notes = append(out.Notes, "the old certificate authority is no longer trusted")
		}
	}
	for _, w := range wanted {
		leaf := leaves[w.Name]
		if why := stale(now, leaf, active, w); why != "" {
			if leaf, err = newLeaf(now, life, s.Active, w, random); err != nil {
				return Outcome{}, fmt.Errorf("leaf %s: %w", w.Name, err)
			}
			out.Notes = append(out.Notes, fmt.Sprintf("issued %s: %s", w.Name, why))
		}
		out.Leaves[w.Name] = leaf
	}
	return out, nil
}

func (o *Outcome) again(d time.Duration) { o.Again = max(min(o.Again, d), time.Second) }

// backdate is how long before its making a certificate of some life is valid.
func backdate(life time.Duration) time.Duration { return min(time.Hour, life/10) }

// due tells whether a third or less of a certificate's life is left.
func due(now time.Time, c *x509.Certificate) bool {
	return now.After(c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3))
}

// stale says why a leaf must be issued anew; empty when it need not.
func stale(now time.Time, leaf Pair, authority *x509.Certificate, w Request) string {
	if leaf.Empty() {
		return "there was none"
	}
	cert, err := parse(leaf)
	switch {
	case err != nil:
		return "it could not be read"
	case due(now, cert):
		return "it expires on " + cert.NotAfter.UTC().Format(time.DateOnly)
	case cert.CheckSignatureFrom(authority) != nil:
		return "another authority signed it"
	}
	hosts := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	want := slices.Clone(w.Hosts)
	slices.Sort(hosts)
	slices.Sort(want)
	if !slices.Equal(hosts, want) || cert.Subject.CommonName != w.CommonName {
		return "its names changed"
	}
	return ""
}

func newAuthority(now time.Time, life Lifetimes, random io.Reader) (Pair, *x509.Certificate, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "archkeeper-ca-" + now.UTC().Format("20060102T150405Z")},
		NotBefore:             now.Add(-backdate(life.Authority)),
		NotAfter:              now.Add(life.Authority),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	pair, err := sign(template, nil, nil, random)
	if err != nil {
		return Pair{}, nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	cert, err := parse(pair)
	return pair, cert, err
}

func newLeaf(now time.Time, life Lifetimes, authority Pair, w Request, random io.Reader) (Pair, error) {
	ca, err := tls.X509KeyPair(authority.Cert, authority.Key)
	if err != nil {
		return Pair{}, err
	}
	key, ok := ca.PrivateKey.(crypto.Signer)
	if !ok {
		return Pair{}, errors.New("the authority's key cannot sign")
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: w.CommonName},
		NotBefore: now.Add(-backdate(life.Leaf)),
		NotAfter:  now.Add(life.Leaf),
		KeyUsage:  x509.KeyUsageDigitalSignature,
	}
	if template.NotAfter.After(ca.Leaf.NotAfter) {
		template.NotAfter = ca.Leaf.NotAfter
	}
	for _, host := range w.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(w.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if w.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	return sign(template, ca.Leaf, key, random)
}

// sign makes a key pair and a certificate, signed by itself without a parent.
func sign(template, parent *x509.Certificate, by crypto.Signer, random io.Reader) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return Pair{}, err
	}
	if template.SerialNumber, err = rand.Int(random, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return Pair{}, err
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(random, template, parent, key.Public(), by)
	if err != nil {
		return Pair{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

// parse reads a pair and gives its certificate.
func parse(p Pair) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, err
	}
	return pair.Leaf, nil
}

// holds tells whether bundle has every certificate of want.
func holds(bundle, want []byte) bool {
	for block, rest := pem.Decode(want); block != nil; block, rest = pem.Decode(rest) {
		found := false
		for b, more := pem.Decode(bundle); b != nil; b, more = pem.Decode(more) {
			found = found || bytes.Equal(b.Bytes, block.Bytes)
		}
		if !found {
			return false
		}
	}
	return true
}
