package reach

import (
	"net/netip"
)

// BlockedAddressError says that configuration forbids a connection. Its text
// names the host that was asked for and the kind of address, never the address
// itself: what an internal name resolves to is nobody's business who may only
// name images. Address is for the operator's log.
type BlockedAddressError struct {
	// Host as the request named it, host[:port].
	Host string
	// Address that Host resolved to; the zero Addr when the host was refused
	// before resolution.
	Address netip.Addr
	// Reason in words that follow "is refused: ", such as "loopback address".
	Reason string
}

// Error gives "connection to <host> is refused: <reason>".
func (e *BlockedAddressError) Error() string {
	return "connection to " + e.Host + " is refused: " + e.Reason
}

// guard judges addresses after name resolution.
type guard struct {
	denyPrivate bool
	deny, allow []netip.Prefix
	special     []specialRange
	carriers    []carrier
}

// specialRange is a range in which no registry of the outside is.
type specialRange struct {
	prefix netip.Prefix
	reason string
}

// carrier is an IPv6 range whose addresses hold an IPv4 address.
type carrier struct {
	prefix   netip.Prefix
	offset   int // of the IPv4 address, in bytes
	inverted bool
}

func newGuard(denyPrivate bool, deny, allow []netip.Prefix) guard {
	special := func(prefix, reason string) specialRange {
		return specialRange{prefix: netip.MustParsePrefix(prefix), reason: reason}
	}
	const metadata = "address of a metadata service"
	return guard{
		denyPrivate: denyPrivate, deny: deny, allow: allow,
		special: []specialRange{
			special("127.0.0.0/8", "loopback address"),
			special("::1/128", "loopback address"),
			special("169.254.0.0/16", "link-local address"), // metadata services of most clouds
			special("fe80::/10", "link-local address"),
			special("0.0.0.0/8", "unspecified address"), // RFC 1122, 3.2.1.3; Linux connects 0.x to itself
			special("::/128", "unspecified address"),
			special("224.0.0.0/4", "multicast address"),
			special("255.255.255.255/32", "broadcast address"),
			special("ff00::/8", "multicast address"),
			special("64:ff9b:1::/48", "address of a local translator"), // RFC 8215: where the IPv4 part is, only the network knows
			special("fd00:ec2::254/128", metadata),                     // AWS over IPv6
			special("fd20:ce::254/128", metadata),                      // Google Cloud over IPv6
			special("168.63.129.16/32", metadata),                      // Azure WireServer
			special("100.100.100.200/32", metadata),                    // Alibaba Cloud
			special("192.0.0.192/32", metadata),                        // Oracle Cloud
		},
		carriers: []carrier{
			{prefix: netip.MustParsePrefix("64:ff9b::/96"), offset: 12},              // NAT64, RFC 6052
			{prefix: netip.MustParsePrefix("64:ff9b:1::/48"), offset: 12},            // local NAT64, RFC 8215
			{prefix: netip.MustParsePrefix("2002::/16"), offset: 2},                  // 6to4, RFC 3056
			{prefix: netip.MustParsePrefix("2001::/32"), offset: 12, inverted: true}, // Teredo, RFC 4380
			{prefix: netip.MustParsePrefix("::/96"), offset: 12},                     // IPv4-compatible, RFC 4291
			{prefix: netip.MustParsePrefix("::ffff:0:0:0/96"), offset: 12},           // IPv4-translated, RFC 2765
		},
	}
}

// active tells whether the guard can refuse anything.
func (g guard) active() bool { return g.denyPrivate || len(g.deny) > 0 }

// refuses gives the reason for which addr may not be dialled, or "". An address
// that carries an IPv4 address inside is judged by both: a gateway on the way
// would deliver to the inner one.
func (g guard) refuses(addr netip.Addr) string {
	addr = addr.WithZone("").Unmap()
	forms := append([]netip.Addr{addr}, g.carried(addr)...)
	for _, form := range forms {
		for _, prefix := range g.allow {
			if prefix.Contains(form) {
				return ""
			}
		}
	}
	for _, form := range forms {
		if g.denyPrivate {
			for _, special := range g.special {
				if special.prefix.Contains(form) {
					return special.reason
				}
			}
		}
		for _, prefix := range g.deny {
			if prefix.Contains(form) {
				return "address inside a refused range"
			}
		}
	}
	return ""
}

// carried gives the IPv4 addresses inside an IPv6 one.
func (g guard) carried(addr netip.Addr) []netip.Addr {
	if !addr.Is6() || addr.IsUnspecified() || addr.IsLoopback() {
		return nil
	}
	var inner []netip.Addr
	b := addr.As16()
	for _, c := range g.carriers {
		if !c.prefix.Contains(addr) {
			continue
		}
		v4 := [4]byte(b[c.offset : c.offset+4])
		if c.inverted {
			for i := range v4 {
				v4[i] = ^v4[i]
			}
		}
		inner = append(inner, netip.AddrFrom4(v4))
	}
	return inner
}
