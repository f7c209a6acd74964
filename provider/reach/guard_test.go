package reach

import (
	"net/netip"
	"testing"
)

func TestGuard(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd12::/16")}
	opened := []netip.Prefix{netip.MustParsePrefix("127.0.0.5/32"), netip.MustParsePrefix("10.96.7.0/24"), netip.MustParsePrefix("fe80::5/128")}
	strict := newGuard(true, cluster, opened)

	for name, test := range map[string]struct{ address, want string }{
		"a public IPv4 address passes":                {"93.184.216.34", ""},
		"a public IPv6 address passes":                {"2606:2800:220:1::1", ""},
		"a private network that is not listed passes": {"192.168.1.1", ""},
		"loopback":                                            {"127.0.0.1", "loopback address"},
		"anywhere in the loopback network":                    {"127.255.3.4", "loopback address"},
		"IPv6 loopback":                                       {"::1", "loopback address"},
		"the metadata service":                                {"169.254.169.254", "link-local address"},
		"IPv6 link-local":                                     {"fe80::1", "link-local address"},
		"IPv6 link-local with a zone":                         {"fe80::1%eth0", "link-local address"},
		"the metadata service, mapped":                        {"::ffff:169.254.169.254", "link-local address"},
		"loopback, mapped":                                    {"::ffff:127.0.0.1", "loopback address"},
		"the metadata service by NAT64":                       {"64:ff9b::a9fe:a9fe", "link-local address"},
		"loopback by NAT64":                                   {"64:ff9b::7f00:1", "loopback address"},
		"a public address by NAT64 passes":                    {"64:ff9b::5db8:d822", ""},
		"any address behind a local NAT64":                    {"64:ff9b:1::5db8:d822", "address of a local translator"},
		"the metadata service by 6to4":                        {"2002:a9fe:a9fe::1", "link-local address"},
		"loopback by Teredo, whose client address is inverse": {"2001::80ff:fffe", "loopback address"},
		"loopback, IPv4-compatible":                           {"::7f00:1", "loopback address"},
		"loopback, IPv4-translated":                           {"::ffff:0:7f00:1", "loopback address"},
		"unspecified":                                         {"0.0.0.0", "unspecified address"},
		"this network":                                        {"0.1.2.3", "unspecified address"},
		"IPv6 unspecified":                                    {"::", "unspecified address"},
		"multicast":                                           {"224.0.0.1", "multicast address"},
		"IPv6 multicast":                                      {"ff02::1", "multicast address"},
		"broadcast":                                           {"255.255.255.255", "broadcast address"},
		"AWS's metadata over IPv6":                            {"fd00:ec2::254", "address of a metadata service"},
		"Azure's WireServer":                                  {"168.63.129.16", "address of a metadata service"},
		"a listed range":                                      {"10.100.0.1", "address inside a refused range"},
		"a listed range, mapped":                              {"::ffff:10.100.0.1", "address inside a refused range"},
		"a listed range by NAT64":                             {"64:ff9b::a64:1", "address inside a refused range"},
		"a listed IPv6 range":                                 {"fd12:1::1", "address inside a refused range"},
		"loopback that the allow list opens":                  {"127.0.0.5", ""},
		"the same, mapped":                                    {"::ffff:127.0.0.5", ""},
		"the allow list opens part of a listed range":         {"10.96.7.9", ""},
		"link-local that the allow list opens, with a zone":   {"fe80::5%eth0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strict.refuses(netip.MustParseAddr(test.address)); got != test.want {
				t.Errorf("refuses(%s) = %q, want %q", test.address, got, test.want)
			}
		})
	}

	t.Run("a guard that is off refuses nothing", func(t *testing.T) {
		open := newGuard(false, nil, nil)
		for _, address := range []string{"127.0.0.1", "169.254.169.254", "::1"} {
			if got := open.refuses(netip.MustParseAddr(address)); got != "" || open.active() {
				t.Errorf("refuses(%s) = %q, active %v", address, got, open.active())
			}
		}
	})
	t.Run("listed ranges are refused without the private ones", func(t *testing.T) {
		listed := newGuard(false, cluster, nil)
		if got := listed.refuses(netip.MustParseAddr("10.96.0.1")); got == "" {
			t.Error("an address of a listed range passed")
		}
		if got := listed.refuses(netip.MustParseAddr("127.0.0.1")); got != "" {
			t.Errorf("loopback: %s", got)
		}
	})
	t.Run("a range written in mapped form counts as IPv4", func(t *testing.T) {
		mapped := newGuard(false, unmapped([]netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}), nil)
		if got := mapped.refuses(netip.MustParseAddr("10.2.3.4")); got == "" {
			t.Error("an address of the range passed")
		}
	})
}

// FuzzGuard: whatever form an address has, mapping an IPv4 address into IPv6
// never opens what is refused.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{169, 254, 169, 254})
	f.Add([]byte{8, 8, 8, 8})
	strict := newGuard(true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		addr, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		plain := strict.refuses(addr)
		if !addr.Is4() {
			return
		}
		v4 := addr.As4()
		nat := netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: v4[0], 13: v4[1], 14: v4[2], 15: v4[3]})
		for _, form := range []netip.Addr{netip.AddrFrom16(addr.As16()), nat} {
			if got := strict.refuses(form); got != plain {
				t.Errorf("%s: %q, but %s: %q", addr, plain, form, got)
			}
		}
	})
}
