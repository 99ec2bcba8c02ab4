package egress

import (
	"net/netip"
	"slices"
)

// metadata are the addresses outside of the link-local ranges at which clouds
// hand out credentials: AWS over IPv6, Alibaba, Oracle, and Azure's own.
var metadata = addresses("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")

// reserved are blocks of the special-purpose registries (RFC 6890) that are
// not reachable from everywhere, and that netip does not know as private.
var reserved = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "100::/64", "2001:2::/48", "2001:db8::/32", "fec0::/10",
)

func isNeverAllowed(address netip.Addr) bool {
	return address.IsLinkLocalUnicast() || address.IsMulticast() || slices.Contains(metadata, address)
}

// isPrivate counts the unspecified address in: connecting to it reaches the
// host itself.
func isPrivate(address netip.Addr) bool {
	return address.IsLoopback() || address.IsPrivate() || address.IsUnspecified() ||
		slices.ContainsFunc(reserved, func(block netip.Prefix) bool { return block.Contains(address) })
}

var (
	compatible = netip.MustParsePrefix("::/96")          // RFC 4291, deprecated
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
)

// meanings are the address and the IPv4 address that it carries inside, if it
// does: a gateway may deliver to either.
func meanings(address netip.Addr) []netip.Addr {
	address = address.Unmap().WithZone("")
	all := []netip.Addr{address}
	octets := address.As16()
	switch {
	case address.Is4():
	case compatible.Contains(address), nat64.Contains(address), localNAT64.Contains(address):
		all = append(all, netip.AddrFrom4([4]byte(octets[12:])))
	case sixToFour.Contains(address):
		all = append(all, netip.AddrFrom4([4]byte(octets[2:6])))
	case teredo.Contains(address): // written upside down
		all = append(all, netip.AddrFrom4([4]byte{^octets[12], ^octets[13], ^octets[14], ^octets[15]}))
	}
	return all
}

func addresses(texts ...string) []netip.Addr {
	all := make([]netip.Addr, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParseAddr(text)
	}
	return all
}

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}
