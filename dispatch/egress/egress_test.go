package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
)

func targets(t *testing.T, texts ...string) []Target {
	t.Helper()
	var all []Target
	for _, text := range texts {
		target, err := ParseTarget(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, target)
	}
	return all
}

func TestSomeAddressesAreNeverReached(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"169.254.169.254:80", "169.254.1.1:443", "[fe80::1]:80", "[fe80::1%eth0]:80", "[fd00:ec2::254]:80",
		"100.100.100.200:80", "192.0.0.192:80", "168.63.129.16:80", "224.0.0.1:80", "[ff02::1]:80",
		"[::ffff:169.254.169.254]:80", "[::ffff:a9fe:a9fe]:80", "[::169.254.169.254]:80", "[64:ff9b::a9fe:a9fe]:80",
		"[fd00:ec2::23]:80", "[fd20:ce::254]:80", "[fd00:42::42]:80", "[fd00:c1::a9fe:a9fe]:80",
		"[::ffff:0:a9fe:a9fe]:80", "[2606:4700::5efe:a9fe:a9fe]:80", "[2606:4700::200:5efe:a9fe:a9fe]:80",
		"[64:ff9b:1:a9fe:a9:fe00::]:80", "[64:ff9b:1:a9:fe:a9fe::]:80", "[64:ff9b:1:0:a9:fea9:fe00::]:80",
		"[64:ff9b:1::a9fe:a9fe]:80", "[2002:a9fe:a9fe::1]:80", "[2001:0:1:2:3:4:5601:5601]:80",
	} {
		open := Rules{Allow: targets(t, "0.0.0.0/0", "::/0", "169.254.169.254")}
		if err := open.check(address, true); !errors.Is(err, dispatch.ErrEgressRefused) {
			t.Errorf("%s is allowed", address)
		}
	}
}

func TestPrivateAddressesAreReachedUnlessDenied(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"127.0.0.1:80", "127.8.8.8:80", "[::1]:80", "10.1.2.3:80", "172.16.0.1:80", "192.168.1.1:80", "[fc00::1]:80",
		"100.64.0.1:80", "0.0.0.0:80", "[::]:80", "198.18.0.1:80", "240.0.0.1:80",
		"[::ffff:10.0.0.1]:80", "[64:ff9b::a00:1]:80", "[2002:7f00:1::]:80",
	} {
		if err := (Rules{}).check(address, true); err != nil {
			t.Errorf("%s is refused without private: deny", address)
		}
		if err := (Rules{DenyPrivate: true}).check(address, true); err == nil {
			t.Errorf("%s is allowed in spite of private: deny", address)
		}
	}
	for _, address := range []string{"1.1.1.1:443", "[2606:4700::1111]:443", "[64:ff9b::101:101]:443"} {
		if err := (Rules{DenyPrivate: true}).check(address, true); err != nil {
			t.Errorf("%s is public, and refused", address)
		}
	}
}

func TestAnAllowListNamesNamesAndBlocks(t *testing.T) {
	t.Parallel()
	rules := Rules{Allow: targets(t, "API.example.com:443", "*.example.org", "10.0.0.0/8:5432", "[2001:db8::1]:443", "192.0.2.7")}
	for name, test := range map[string]struct {
		host, port string
		allowed    bool
	}{
		"the name":                {"api.example.com", "443", true},
		"with its root dot":       {"api.example.com.", "443", true},
		"another port":            {"api.example.com", "80", false},
		"another name":            {"www.example.com", "443", false},
		"what ends like it":       {"evilapi.example.com", "443", false},
		"below a suffix":          {"a.b.example.org", "8080", true},
		"the suffix itself":       {"example.org", "443", false},
		"what ends in the suffix": {"evilexample.org", "443", false},
		"an address is no name":   {"10.0.0.1", "5432", false},
	} {
		if got := rules.allowsName(test.host, test.port); got != test.allowed {
			t.Errorf("%s: %v", name, got)
		}
	}
	for address, allowed := range map[string]bool{
		"10.9.9.9:5432": true, "10.9.9.9:5433": false, "11.0.0.1:5432": false, "192.0.2.7:1": true,
		"[2001:db8::1]:443": true, "[2001:db8::2]:443": false, "[::ffff:10.0.0.1]:5432": true,
	} {
		if err := rules.check(address, false); (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// The rules judge TCP connections to resolved addresses. Every other kind of connection or address is refused,
// because it would bypass them.
func TestWhatTheRulesCannotReadIsRefused(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "unix", "ip", ""} {
		if _, err := (Rules{}).Dial(t.Context(), network, listen(t)); !errors.Is(err, dispatch.ErrEgressRefused) {
			t.Errorf("over %q: %v", network, err)
		}
	}
	for _, resolved := range []string{"", "localhost:80", "1.1.1.1", "1.1.1.1:http"} {
		if err := (Rules{}).check(resolved, true); !errors.Is(err, dispatch.ErrEgressRefused) {
			t.Errorf("%q: %v", resolved, err)
		}
	}
}

func TestBadTargetsAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "*", "*.", "a.*.com", "https://example.com", "example.com:0", "example.com:http", "example.com:70000", "user@example.com", "a:b:1", "10.0.0.0/99", "a b"} {
		if target, err := ParseTarget(text); err == nil {
			t.Errorf("%q: %+v", text, target)
		}
	}
}

func listen(t *testing.T) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(net.Conn) {})
}

// TestANameIsNoWayAround covers DNS rebinding: the name was allowed, but the address to which it resolves now is
// not.
func TestANameIsNoWayAround(t *testing.T) {
	t.Parallel()
	_, port, _ := net.SplitHostPort(listen(t))
	local := net.JoinHostPort("localhost", port)
	for name, test := range map[string]struct {
		rules   Rules
		allowed bool
	}{
		"no rules":              {Rules{}, true},
		"private denied":        {Rules{DenyPrivate: true, Allow: targets(t, "localhost")}, false},
		"allowed by name":       {Rules{Allow: targets(t, "localhost:"+port)}, true},
		"allowed by block":      {Rules{Allow: targets(t, "127.0.0.0/8", "::1")}, true},
		"allowed is another":    {Rules{Allow: targets(t, "example.com")}, false},
		"block is another":      {Rules{Allow: targets(t, "10.0.0.0/8")}, false},
		"an empty allow-list":   {Rules{Allow: []Target{}}, false},
		"its port is forbidden": {Rules{Allow: targets(t, "localhost:1")}, false},
	} {
		conn, err := test.rules.Dial(t.Context(), "tcp", local)
		switch {
		case test.allowed && err != nil:
			t.Errorf("%s: %v", name, err)
		case !test.allowed && !errors.Is(err, dispatch.ErrEgressRefused):
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	if _, err := (Rules{}).Dial(context.Background(), "unix", "/tmp/x"); !errors.Is(err, dispatch.ErrEgressRefused) {
		t.Errorf("a socket that is no TCP: %v", err)
	}
}

func TestNoWayOfWritingAnAddressHidesIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v4 := [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address"))
		plain := netip.AddrFrom4(v4)
		hidden := rapid.SampledFrom([]netip.Addr{
			netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 12: v4[0], 13: v4[1], 14: v4[2], 15: v4[3]}),
			netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: v4[0], 13: v4[1], 14: v4[2], 15: v4[3]}),
			netip.AddrFrom16([16]byte{0x20, 0x02, v4[0], v4[1], v4[2], v4[3], 15: 1}),
			netip.AddrFrom16([16]byte{0x20, 0x01, 12: ^v4[0], 13: ^v4[1], 14: ^v4[2], 15: ^v4[3]}),
		}).Draw(t, "hidden")
		rules := Rules{DenyPrivate: rapid.Bool().Draw(t, "deny private")}
		refusesPlain := rules.check(netip.AddrPortFrom(plain, 80).String(), true) != nil
		refusesHidden := rules.check(netip.AddrPortFrom(hidden, 80).String(), true) != nil
		if refusesPlain && !refusesHidden {
			t.Fatalf("%s is refused, %s is not", plain, hidden)
		}
	})
}

// rebinding is an attacker's name server: its first answer for a name is the
// first address, and every later answer is the second.
type rebinding struct {
	first, then netip.Addr
	answers     atomic.Int64
}

// take makes r the resolver of the process. A test that calls it is not parallel, because the process has only one.
func (r *rebinding) take(t *testing.T) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		server.Close()
	})
	go r.serve(server)
}

func (r *rebinding) serve(server net.PacketConn) {
	query := make([]byte, 1500)
	for {
		n, client, err := server.ReadFrom(query)
		if err != nil {
			return
		}
		if reply, err := r.reply(query[:n]); err == nil {
			_, _ = server.WriteTo(reply, client)
		}
	}
}

func (r *rebinding) reply(query []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		return nil, err
	}
	message.Response, message.Additionals = true, nil
	if question := message.Questions[0]; question.Type == dnsmessage.TypeA {
		message.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class},
			Body:   &dnsmessage.AResource{A: r.next().As4()},
		}}
	}
	return message.Pack()
}

func (r *rebinding) next() netip.Addr {
	if r.answers.Add(1) == 1 {
		return r.first
	}
	return r.then
}

func TestANameThatIsReboundToTheMetadataServiceIsRefused(t *testing.T) {
	const name = "api.provider.test"
	_, port, _ := net.SplitHostPort(listen(t))
	for what, rules := range map[string]Rules{
		"no rules":             {},
		"the name is allowed":  {Allow: targets(t, name+":"+port)},
		"all are allowed":      {Allow: targets(t, "0.0.0.0/0", "::/0")},
		"even that is allowed": {Allow: targets(t, name, "169.254.169.254")},
	} {
		server := &rebinding{first: netip.MustParseAddr("127.0.0.1"), then: netip.MustParseAddr("169.254.169.254")}
		server.take(t)
		conn, err := rules.Dial(t.Context(), "tcp", net.JoinHostPort(name, port))
		if err != nil {
			t.Fatalf("%s: before it is rebound: %v", what, err)
		}
		conn.Close()
		_, err = rules.Dial(t.Context(), "tcp", net.JoinHostPort(name, port))
		fault.Injected(t, 52, int(server.answers.Load())-1)
		if !errors.Is(err, dispatch.ErrEgressRefused) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
}
