package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// refusal says why a caller may not ask. Its text is for the caller and names
// nothing that a stranger should not learn.
type refusal struct {
	status int    // 401, 403, or 503 when it could not be found out
	reason string // bounded: a label of the refusals metric
	text   string
}

// The reasons of refusals, as the metric's label.
const (
	reasonNoProof     = "no-proof"
	reasonCertificate = "certificate"
	reasonToken       = "token"
	reasonForbidden   = "forbidden"
	reasonUnchecked   = "unchecked"
)

// clientCertificates prove callers by the certificate of their TLS connection:
// one of cas signed it, and it has one of names, when there are any.
type clientCertificates struct {
	cas   *clientCAs
	names []string
	clock clock.PassiveClock
}

// verify judges a chain as it came from the handshake, leaf first. It gives
// the end of the proof's life.
func (c *clientCertificates) verify(set *caSet, chain []*x509.Certificate, now time.Time) (notAfter time.Time, err error) {
	leaf := chain[0]
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: set.pool, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return time.Time{}, err
	}
	if len(c.names) > 0 && !slices.ContainsFunc(c.names, func(name string) bool { return hasName(leaf, name) }) {
		return time.Time{}, fmt.Errorf("none of its subject alternative names %q is one of a known caller", names(leaf))
	}
	for _, verified := range chains {
		end := verified[0].NotAfter
		for _, cert := range verified {
			if cert.NotAfter.Before(end) {
				end = cert.NotAfter
			}
		}
		if end.After(notAfter) {
			notAfter = end
		}
	}
	return notAfter, nil
}

func hasName(cert *x509.Certificate, name string) bool {
	for _, dns := range cert.DNSNames {
		if strings.EqualFold(strings.TrimSuffix(dns, "."), strings.TrimSuffix(name, ".")) {
			return true
		}
	}
	for _, uri := range cert.URIs {
		if uri.String() == name {
			return true
		}
	}
	if slices.Contains(cert.EmailAddresses, name) {
		return true
	}
	ip := net.ParseIP(name)
	return ip != nil && slices.ContainsFunc(cert.IPAddresses, ip.Equal)
}

// names lists at most eight subject alternative names.
func names(cert *x509.Certificate) []string {
	all := slices.Clone(cert.DNSNames)
	for _, uri := range cert.URIs {
		all = append(all, uri.String())
	}
	all = append(all, cert.EmailAddresses...)
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	return all[:min(len(all), 8)]
}

// proof is what a connection's handshake proved. It is judged once, at the
// first request, and holds for the connection: net/http serves one request of
// an HTTP/1.1 connection at a time.
type proof struct {
	set      *caSet
	notAfter time.Time
	err      error
}

type proofKey struct{}

// withProof gives each connection room for its proof.
func withProof(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, proofKey{}, new(atomic.Pointer[proof]))
}

// check judges the request's certificate. stale means: the handshake proved
// the caller, but a new handshake would now be judged by other CAs or the
// certificate has ended. Such a connection gets this answer and is then
// closed, so that a rotation costs a caller neither an answer nor the trust.
func (c *clientCertificates) check(r *http.Request) (stale bool, err error) {
	now := c.clock.Now()
	set := c.cas.set.Load()
	room, _ := r.Context().Value(proofKey{}).(*atomic.Pointer[proof])
	var p *proof
	if room != nil {
		p = room.Load()
	}
	if p == nil || p.err != nil {
		p = &proof{set: set}
		p.notAfter, p.err = c.verify(set, r.TLS.PeerCertificates, now)
		if room != nil {
			room.Store(p)
		}
		return false, p.err
	}
	return p.set != set || now.After(p.notAfter), nil
}

// guard decides who may ask. At least one of its fields is set.
type guard struct {
	certificates *clientCertificates // nil: certificates prove nothing
	tokens       *Tokens             // nil: tokens cannot be checked
	open         bool                // everybody may ask
}

// admit tells whether the request may be answered; a nil refusal is a yes.
// last means that the connection should end with this answer.
func (g *guard) admit(r *http.Request, path string) (last bool, refused *refusal) {
	if g.open {
		return false, nil
	}
	var certificateFault error
	if g.certificates != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		stale, err := g.certificates.check(r)
		if err == nil {
			return stale, nil
		}
		certificateFault = err
	}
	token, given := bearerToken(r)
	switch {
	case given && g.tokens == nil:
		return true, &refusal{http.StatusUnauthorized, reasonToken,
			"bearer tokens cannot be checked: the provider runs without access to a Kubernetes API server"}
	case given:
		refused := g.tokens.check(r.Context(), token, path, verb(r.Method))
		return refused != nil, refused
	case certificateFault != nil:
		return true, &refusal{http.StatusUnauthorized, reasonCertificate,
			"the client certificate does not prove a known caller: " + certificateFault.Error()}
	default:
		return true, &refusal{http.StatusUnauthorized, reasonNoProof,
			"present a client certificate that the provider knows, or a bearer token"}
	}
}

// bearerToken gives the token of RFC 6750's header. given is true also for an
// empty or unreadable one.
func bearerToken(r *http.Request) (token string, given bool) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", false
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true
	}
	return strings.TrimSpace(token), true
}

// verb is the method as RBAC's rules for non-resource URLs write it.
func verb(method string) string {
	if method == http.MethodHead {
		return "get"
	}
	return strings.ToLower(method)
}
