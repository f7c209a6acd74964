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

// guard judges addresses after name resolution. The zero guard refuses nothing.
type guard struct {
	denyPrivate bool
	deny, allow []netip.Prefix
}

// active tells whether the guard can refuse anything.
func (g guard) active() bool { return g.denyPrivate || len(g.deny) > 0 }

// refuses gives the reason for which addr may not be dialled, or "". An address
// that carries an IPv4 address inside (mapped, compatible, NAT64, 6to4, Teredo)
// is judged by both: a gateway on the way would deliver to the inner one.
func (g guard) refuses(addr netip.Addr) string {
	addr = addr.WithZone("").Unmap()
	forms := []netip.Addr{addr}
	if inner, ok := embeddedIPv4(addr); ok {
		forms = append(forms, inner)
	}
	for _, form := range forms {
		for _, prefix := range g.allow {
			if prefix.Contains(form) {
				return ""
			}
		}
	}
	for _, form := range forms {
		for _, prefix := range g.deny {
			if prefix.Contains(form) {
				return "address inside a refused range"
			}
		}
		if g.denyPrivate {
			if reason := special(form); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// special names the kind of an address that no registry of the outside has.
func special(addr netip.Addr) string {
	switch {
	case addr.IsLoopback():
		return "loopback address"
	case addr.IsLinkLocalUnicast(), addr.IsLinkLocalMulticast(), addr.IsInterfaceLocalMulticast():
		return "link-local address"
	case addr.IsUnspecified(), thisNetwork.Contains(addr):
		return "unspecified address"
	case addr.IsMulticast(), addr == broadcast:
		return "multicast address"
	}
	for _, service := range metadataServices {
		if addr == service {
			return "address of a metadata service"
		}
	}
	return ""
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8") // RFC 1122 section 3.2.1.3: Linux connects 0.x to this host
	broadcast   = netip.MustParseAddr("255.255.255.255")

	// metadataServices are those that clouds put outside link-local ranges.
	metadataServices = []netip.Addr{
		netip.MustParseAddr("fd00:ec2::254"),   // AWS, IMDS over IPv6
		netip.MustParseAddr("fd20:ce::254"),    // Google Cloud, metadata over IPv6
		netip.MustParseAddr("168.63.129.16"),   // Azure, WireServer
		netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
		netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
	}

	ipv4Compatible = netip.MustParsePrefix("::/96")          // RFC 4291 section 2.5.5.1
	nat64          = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	nat64Local     = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour      = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo         = netip.MustParsePrefix("2001::/32")      // RFC 4380
)

// embeddedIPv4 gives the IPv4 address inside an IPv6 one.
func embeddedIPv4(addr netip.Addr) (netip.Addr, bool) {
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr), nat64Local.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case teredo.Contains(addr): // the client's address, every bit inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	case ipv4Compatible.Contains(addr) && !addr.IsUnspecified() && !addr.IsLoopback():
		return netip.AddrFrom4([4]byte(b[12:16])), true
	}
	return netip.Addr{}, false
}
