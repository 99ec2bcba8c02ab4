package egress

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Target is what one entry of an allow-list stands for: a name with all below
// it (*.example.com), one name, or a block of addresses; with a port, or any.
type Target struct {
	name     string       // in lower case; empty for addresses
	isSuffix bool         // names below it, not itself
	block    netip.Prefix // invalid for a name
	port     string       // empty for any
}

var errTarget = errors.New("want a name, *.name, an address or a block such as 10.0.0.0/8, each with :port or without")

// ParseTarget reads an entry. An address with a port is written like a URL's:
// [2001:db8::1]:443.
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
