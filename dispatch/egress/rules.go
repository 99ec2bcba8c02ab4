package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/agentoutbox/drainer/dispatch"
)

// Rules are one provider's. The zero value forbids what no provider may have:
// link-local and cloud metadata addresses, multicast.
type Rules struct {
	DenyPrivate bool     // also forbid loopback, private and reserved addresses
	Allow       []Target // nil: every other address; else these alone
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
		return nil, dispatch.ErrEgressRefused // without asking the resolver
	}
	dialer := dispatch.PlainDialer()
	dialer.Control = func(_, resolved string, _ syscall.RawConn) error {
		return r.check(resolved, isNamed)
	}
	return dialer.DialContext(ctx, network, address)
}

// check looks at an address that is about to be connected to.
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
