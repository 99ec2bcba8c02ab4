package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/fault"
)

// rebinding is a name server of somebody else's: a name is that of the first
// address for one answer, and from then on of the second.
type rebinding struct {
	first, then netip.Addr
	answers     atomic.Int64
}

// The name is looked up by the process's own resolver, so the test has that for
// itself: it is not parallel.
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
