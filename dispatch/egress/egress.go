// Package egress decides which addresses a provider's connections may reach.
//
//	name ──allowed?──▶ resolve ──▶ address ──forbidden? allowed?──▶ connect
//
// The address is checked just before the operating system connects, after each resolution of a name. So a name that
// resolves to another address at the next lookup (DNS rebinding) cannot avoid the check.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentoutbox/drainer/dispatch"
)

// Rules are the egress rules of one provider. The zero value forbids the addresses that no provider may have:
// link-local and cloud metadata addresses, and multicast.
type Rules struct {
	DenyPrivate bool     // also forbid loopback, private and reserved addresses
	Allow       []Target // the only allowed targets; nil allows all other addresses
	Proxy       *Proxy   // nil to connect directly
}

// Dial connects to host:port over TCP, or fails with
// [dispatch.ErrEgressRefused] before anything was sent.
func (r Rules) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil, fmt.Errorf("%w: not a TCP connection", dispatch.ErrEgressRefused)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("reading the address to connect to: %w", err)
	}
	isNamed := r.Allow == nil || r.allowsName(host, port)
	if !isNamed && !slices.ContainsFunc(r.Allow, Target.isAddress) {
		return nil, dispatch.ErrEgressRefused // before the name is resolved
	}
	literal, _ := netip.ParseAddr(host)
	isThisMachine := strings.EqualFold(host, "localhost") || literal.Unmap().IsLoopback() // through a proxy, it would be the proxy's own machine
	if r.Proxy != nil && !isThisMachine {
		proxy, err := r.Proxy.choose(host, port)
		if err != nil {
			return nil, fmt.Errorf("choosing a proxy: %w", err)
		}
		if proxy != nil {
			return r.through(ctx, proxy, host, port, isNamed)
		}
	}
	dialer := dispatch.PlainDialer()
	dialer.Control = func(_, resolved string, _ syscall.RawConn) error {
		return r.check(resolved, isNamed)
	}
	return dialer.DialContext(ctx, network, address)
}

// check refuses a forbidden address before the connection is made.
func (r Rules) check(resolved string, isNamed bool) error {
	target, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return dispatch.ErrEgressRefused
	}
	for _, address := range meanings(target.Addr()) {
		if isNeverAllowed(address) || (r.DenyPrivate && isPrivate(address)) {
			return dispatch.ErrEgressRefused
		}
	}
	if !isNamed && !r.allowsAddress(target) {
		return dispatch.ErrEgressRefused
	}
	return nil
}

func (r Rules) allowsName(host, port string) bool {
	return slices.ContainsFunc(r.Allow, func(t Target) bool { return t.matchesName(host, port) })
}

func (r Rules) allowsAddress(target netip.AddrPort) bool {
	return slices.ContainsFunc(r.Allow, func(t Target) bool { return t.matchesAddress(target) })
}

// Target is one entry of an allow-list: all names below a name (*.example.com), one name, or a block of addresses.
// It may have a port.
type Target struct {
	name     string       // in lower case; "" for addresses
	isSuffix bool         // matches the names below it, but not the name itself
	block    netip.Prefix // invalid for a name
	port     string       // "" for any port
}

var errTarget = errors.New("want a name, *.name, an address or a block such as 10.0.0.0/8, each with :port or without")

// ParseTarget reads an entry. An IPv6 address with a port is written as in a URL: [2001:db8::1]:443.
func ParseTarget(text string) (Target, error) {
	host, port, err := splitPort(text)
	if err != nil {
		return Target{}, err
	}
	if block, ok := parseBlock(host); ok {
		return Target{block: block, port: port}, nil
	}
	name, isSuffix := strings.CutPrefix(canonical(host), "*.")
	if name == "" || strings.ContainsAny(name, "*/:[]@ ") {
		return Target{}, errTarget
	}
	return Target{name: name, isSuffix: isSuffix, port: port}, nil
}

func splitPort(text string) (host, port string, err error) {
	if _, isAddress := parseBlock(strings.Trim(text, "[]")); isAddress {
		return strings.Trim(text, "[]"), "", nil
	}
	if !strings.Contains(text, ":") {
		return text, "", nil
	}
	if strings.Contains(text, "://") {
		return "", "", errTarget
	}
	host, port, err = net.SplitHostPort(text)
	if err != nil {
		return "", "", errTarget
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", "", errors.New("the port is no number from 1 to 65535")
	}
	return host, strconv.FormatUint(number, 10), nil
}

func parseBlock(text string) (netip.Prefix, bool) {
	if address, err := netip.ParseAddr(text); err == nil {
		address = address.Unmap().WithZone("")
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	block, err := netip.ParsePrefix(text)
	return block.Masked(), err == nil
}

func canonical(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func (t Target) isAddress() bool { return t.block.IsValid() }

func (t Target) matchesName(host, port string) bool {
	host = canonical(host)
	switch {
	case t.isAddress() || !t.matchesPort(port):
		return false
	case t.isSuffix:
		return strings.HasSuffix(host, "."+t.name)
	default:
		return host == t.name
	}
}

func (t Target) matchesAddress(target netip.AddrPort) bool {
	return t.isAddress() && t.matchesPort(strconv.Itoa(int(target.Port()))) &&
		t.block.Contains(target.Addr().Unmap().WithZone(""))
}

func (t Target) matchesPort(port string) bool { return t.port == "" || t.port == port }

// metadata are the addresses outside the link-local ranges at which clouds give out credentials: AWS over IPv6 and
// for pods, Google, Scaleway and Oracle over IPv6, Alibaba, Oracle, and Azure.
var metadata = addresses("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe",
	"100.100.100.200", "192.0.0.192", "168.63.129.16")

// reserved are blocks of the special-purpose registries (RFC 6890) that are not reachable globally and that netip
// does not treat as private.
var reserved = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "100::/64", "2001:2::/48", "2001:db8::/32", "fec0::/10",
)

func isNeverAllowed(address netip.Addr) bool {
	return address.IsLinkLocalUnicast() || address.IsMulticast() || slices.Contains(metadata, address)
}

// isPrivate includes the unspecified address, since a connection to it reaches this machine.
func isPrivate(address netip.Addr) bool {
	return address.IsLoopback() || address.IsPrivate() || address.IsUnspecified() ||
		slices.ContainsFunc(reserved, func(block netip.Prefix) bool { return block.Contains(address) })
}

var (
	compatible = netip.MustParsePrefix("::/96")           // RFC 4291, deprecated
	siit       = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")       // RFC 4380
)

// meanings returns the address and the IPv4 addresses that it contains, if any. A gateway may deliver to any of
// them.
func meanings(address netip.Addr) []netip.Addr {
	address = address.Unmap().WithZone("")
	all := []netip.Addr{address}
	raw := address.As16()
	switch {
	case address.Is4():
	case compatible.Contains(address), siit.Contains(address), nat64.Contains(address), isISATAP(raw):
		all = append(all, netip.AddrFrom4([4]byte(raw[12:])))
	case localNAT64.Contains(address): // the prefix may have 48, 56, 64 or 96 bits; in the first three forms byte 8 is not part of the address
		all = append(all,
			netip.AddrFrom4([4]byte{raw[6], raw[7], raw[9], raw[10]}),
			netip.AddrFrom4([4]byte{raw[7], raw[9], raw[10], raw[11]}),
			netip.AddrFrom4([4]byte(raw[9:13])),
			netip.AddrFrom4([4]byte(raw[12:])))
	case sixToFour.Contains(address):
		all = append(all, netip.AddrFrom4([4]byte(raw[2:6])))
	case teredo.Contains(address): // the IPv4 address is stored inverted
		all = append(all, netip.AddrFrom4([4]byte{^raw[12], ^raw[13], ^raw[14], ^raw[15]}))
	}
	return all
}

// isISATAP recognises the interface identifier of ISATAP, which may follow any prefix (RFC 5214).
func isISATAP(raw [16]byte) bool {
	return raw[8]&^0x02 == 0 && raw[9] == 0 && raw[10] == 0x5e && raw[11] == 0xfe
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
