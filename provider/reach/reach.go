// Package reach decides how a connection to a registry is made: which
// certificates are trusted and shown, through which proxy, to which addresses.
// It gives http.RoundTrippers whose connections are pooled and shared.
//
// It holds no credentials for registries and reads no images.
package reach

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Defaults of Config.
const (
	DefaultDialTimeout           = 10 * time.Second
	DefaultTLSHandshakeTimeout   = 10 * time.Second
	DefaultResponseHeaderTimeout = 30 * time.Second
	// DefaultMaxHeaderBytes bounds the headers of one response: registries
	// send a few KiB, token challenges and redirects included.
	DefaultMaxHeaderBytes = 64 << 10
)

// Config says how registries are reached. The zero Config uses the system's
// trust store, no proxy, refuses no address and speaks HTTPS to every host.
type Config struct {
	// CAFiles are PEM bundles trusted beside the system's, for every host.
	// They are read again when they change.
	CAFiles []string
	// CertsDirs are directories in the certs.d layout of containers and
	// Docker: <dir>/<host[:port]>/ with *.crt (authorities trusted for that
	// host, beside the others) and pairs of *.cert and *.key (client
	// certificates). The first directory that has the host is used. A missing
	// directory is no error. Read again when they change.
	// Rule: containers-certs.d(5), https://docs.docker.com/engine/security/certificates/.
	CertsDirs []string
	// PlainHTTPHosts, host[:port] as references name them, are spoken to by
	// HTTP. Their addresses are not judged: who lists a host vouches for it.
	PlainHTTPHosts []string

	// DenyPrivate refuses loopback, link-local, unspecified and multicast
	// addresses and the clouds' metadata services, in IPv4, IPv6 and every
	// IPv6 form of an IPv4 address. RFC 1918 networks are not refused: many
	// registries live there. Add those of the cluster to DenyCIDRs.
	DenyPrivate bool
	// DenyCIDRs are refused too, with DenyPrivate or without.
	DenyCIDRs []netip.Prefix
	// AllowCIDRs wins over DenyPrivate and DenyCIDRs.
	AllowCIDRs []netip.Prefix

	// AllowRegistries, when not empty, are the only registries to be asked;
	// DenyRegistries are never asked and win. An entry is a host[:port] as
	// references name it, docker.io for the hub, or *.example.com for every
	// name below example.com. Without a port, an entry allows the default port
	// and denies every port. The hosts to which an allowed registry redirects
	// need not be allowed, but must not be denied.
	AllowRegistries, DenyRegistries []string

	// Proxy gives the proxy for a request's URL, nil for none; see
	// ProxyFromEnvironment. A proxy's own address is not judged. Behind a
	// proxy the guard sees literal addresses and localhost only: names are
	// resolved by the proxy, whose access list is then the guard.
	Proxy func(*url.URL) (*url.URL, error)

	// DialTimeout, TLSHandshakeTimeout and ResponseHeaderTimeout bound the
	// stages of a request, 0 for the defaults. Reading the body is bounded by
	// the request's context alone.
	DialTimeout, TLSHandshakeTimeout, ResponseHeaderTimeout time.Duration
	// MaxHeaderBytes bounds the headers of a response; 0 for the default.
	MaxHeaderBytes int64

	// Resolver of names; nil for the system's.
	Resolver *net.Resolver
	// Logger hears of certificate files that became unusable; nil for none.
	Logger *slog.Logger
}

// Reach makes connections as its Config says. It is safe for concurrent use.
type Reach struct {
	config     Config
	guard      guard
	plainHTTP  map[string]bool
	allow      hostList
	deny       hostList
	trust      trustFiles
	mu         sync.Mutex
	transports map[profile]*generation
}

// profile is what tells transports apart. Their number is bounded by the
// configuration (files, listed hosts, mirrors called insecure), not by the
// hosts that images name: those without settings of their own share one.
type profile struct {
	certsDir string // directory of the host's own certificates, or ""
	insecure string // the host whose certificate is not verified, or ""
	proxy    string // the proxy's URL, or ""
	trusted  bool   // addresses are not judged
}

// New checks a Config and gives a Reach. CA files that cannot be read, or hold
// no certificate, are errors.
func New(config Config) (*Reach, error) {
	r := &Reach{
		config:     config,
		guard:      newGuard(config.DenyPrivate, unmapped(config.DenyCIDRs), unmapped(config.AllowCIDRs)),
		plainHTTP:  map[string]bool{},
		transports: map[profile]*generation{},
		trust:      trustFiles{caFiles: config.CAFiles, certsDirs: config.CertsDirs},
	}
	for _, host := range config.PlainHTTPHosts {
		if host == "" || strings.ContainsAny(host, "/@ ") {
			return nil, fmt.Errorf("plain-HTTP host %q is not host[:port]", host)
		}
		r.plainHTTP[canonicalHost(host)] = true
	}
	var err error
	if r.allow, err = newHostList(config.AllowRegistries); err != nil {
		return nil, fmt.Errorf("allowed registries: %w", err)
	}
	if r.deny, err = newHostList(config.DenyRegistries); err != nil {
		return nil, fmt.Errorf("denied registries: %w", err)
	}
	if _, err := r.transport(profile{}); err != nil {
		return nil, err
	}
	return r, nil
}

// PlainHTTP tells whether host[:port] is spoken to by HTTP.
func (r *Reach) PlainHTTP(host string) bool { return r.plainHTTP[canonicalHost(host)] }

// Permits says, before any contact, whether a registry may be asked: nil, or a
// *BlockedAddressError by the lists of allowed and denied registries.
func (r *Reach) Permits(registry string) error {
	host := canonicalHost(registry)
	if r.deny.has(host) || r.deny.has(withoutPort(host)) {
		return &BlockedAddressError{Host: registry, Reason: "denied registry"}
	}
	if !r.allow.empty() && !r.allow.has(host) {
		return &BlockedAddressError{Host: registry, Reason: "not among the allowed registries"}
	}
	return nil
}

// RoundTripper for requests to a registry, host[:port], and to wherever it
// redirects or sends for tokens: each request is judged and connected by the
// host of its own URL. insecure, as a mirror configuration says of a location,
// skips certificate verification for that hostname (any port) and lets it be
// asked by HTTP; it means nothing for other hosts. Otherwise HTTP is refused,
// except to the listed plain-HTTP hosts, and to where one of them redirects or
// sends for tokens: there was no security to lose. Addresses are judged all the
// same.
//
// The result is cheap: connections are shared by all that this Reach gives.
// Bodies are passed as sent: there is no transparent decompression.
func (r *Reach) RoundTripper(host string, insecure bool) http.RoundTripper {
	tripper := &roundTripper{reach: r, refused: r.Permits(host), plain: r.PlainHTTP(host)}
	if insecure {
		tripper.insecure = hostname(canonicalHost(host))
	}
	return tripper
}

// CloseIdleConnections closes the pooled connections that no request uses.
func (r *Reach) CloseIdleConnections() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, current := range r.transports {
		current.transport.CloseIdleConnections()
	}
}

type roundTripper struct {
	reach    *Reach
	refused  error
	insecure string // hostname for which anything goes, or ""
	plain    bool   // the registry itself is on plain HTTP: so may be what it leads to
}

// RoundTrip refuses, or sends by the transport of the request's own host.
func (t *roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	transport, err := t.transport(request)
	if err != nil {
		if request.Body != nil {
			request.Body.Close() // the contract of http.RoundTripper; nothing was sent
		}
		return nil, err
	}
	return transport.RoundTrip(request)
}

func (t *roundTripper) transport(request *http.Request) (*http.Transport, error) {
	if t.refused != nil {
		return nil, t.refused
	}
	r, host := t.reach, canonicalHost(request.URL.Host)
	if r.deny.has(host) || r.deny.has(withoutPort(host)) {
		return nil, &BlockedAddressError{Host: request.URL.Host, Reason: "denied registry"}
	}
	key := profile{trusted: r.plainHTTP[host], certsDir: r.trust.directory(host)}
	if t.insecure != "" && t.insecure == hostname(host) {
		key.insecure = t.insecure
	}
	switch request.URL.Scheme {
	case "https":
	case "http":
		if !key.trusted && key.insecure == "" && !t.plain {
			return nil, &BlockedAddressError{Host: request.URL.Host, Reason: "plain HTTP to a host that is not listed for it"}
		}
	default:
		return nil, fmt.Errorf("connection to %s: scheme %q is neither https nor http", request.URL.Host, request.URL.Scheme)
	}
	if r.config.Proxy != nil {
		proxy, err := r.config.Proxy(request.URL)
		if err != nil {
			return nil, fmt.Errorf("proxy for %s: %w", request.URL.Host, redactProxy(err))
		}
		if proxy != nil {
			key.proxy = proxy.String()
			if reason := r.refusesByName(hostname(host)); reason != "" && !key.trusted {
				return nil, &BlockedAddressError{Host: request.URL.Host, Reason: reason}
			}
		}
	}
	return r.transport(key)
}

// refusesByName judges what can be judged without resolution. A name that ends
// in a number is an address to some resolvers (127.1, 0x7f000001): refused.
func (r *Reach) refusesByName(hostname string) string {
	if !r.guard.active() {
		return ""
	}
	if addr, err := netip.ParseAddr(hostname); err == nil {
		return r.guard.refuses(addr)
	}
	last := hostname[strings.LastIndexByte(hostname, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil {
		return "address that cannot be read"
	}
	if last == "localhost" {
		return r.guard.refuses(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return ""
}

// newTransport builds the transport of a profile.
//
// HTTP/2 is offered: one connection carries the bursts that admission makes,
// where HTTP/1.1 would open up to 64 with a handshake each. Its known weakness,
// a dead connection that swallows every request, is met by pings.
func (r *Reach) newTransport(key profile, config *tls.Config) (*http.Transport, error) {
	if key.insecure != "" {
		config.InsecureSkipVerify = true
	}
	dialer := &net.Dialer{
		Timeout:   orDefault(r.config.DialTimeout, DefaultDialTimeout),
		KeepAlive: 30 * time.Second,
		Resolver:  r.config.Resolver,
	}
	guarded := r.guard.active() && !key.trusted && key.proxy == ""
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dialer := *dialer
			if guarded {
				dialer.ControlContext = func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
					return r.judge(address, resolved)
				}
			}
			conn, err := dialer.DialContext(ctx, network, address)
			var blocked *BlockedAddressError
			switch {
			case errors.As(err, &blocked):
				return nil, blocked // alone: package net would add the address
			case err != nil:
				return nil, &DialError{Host: address, Cause: err}
			}
			return conn, nil
		},
		TLSClientConfig:        config,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
		TLSHandshakeTimeout:    orDefault(r.config.TLSHandshakeTimeout, DefaultTLSHandshakeTimeout),
		ResponseHeaderTimeout:  orDefault(r.config.ResponseHeaderTimeout, DefaultResponseHeaderTimeout),
		MaxResponseHeaderBytes: orDefault(r.config.MaxHeaderBytes, DefaultMaxHeaderBytes),
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		DisableCompression:     true,
	}
	if key.proxy != "" {
		proxy, err := url.Parse(key.proxy)
		if err != nil {
			return nil, errors.New("the proxy's URL cannot be parsed")
		}
		transport.Proxy = http.ProxyURL(proxy)
	}
	return transport, nil
}

// judge refuses a resolved ip:port. Whatever it cannot read it refuses.
func (r *Reach) judge(asked, resolved string) error {
	at, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return &BlockedAddressError{Host: asked, Reason: "address that cannot be read"}
	}
	if reason := r.guard.refuses(at.Addr()); reason != "" {
		return &BlockedAddressError{Host: asked, Address: at.Addr(), Reason: reason}
	}
	return nil
}

func orDefault[T int64 | time.Duration](value, byDefault T) T {
	if value == 0 {
		return byDefault
	}
	return value
}

// unmapped gives ranges of IPv4-mapped addresses as ranges of IPv4.
func unmapped(prefixes []netip.Prefix) []netip.Prefix {
	plain := make([]netip.Prefix, 0, len(prefixes))
	for _, prefix := range prefixes {
		if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
		plain = append(plain, prefix)
	}
	return plain
}
