package nats_test

import (
	"encoding/json"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/nats"
)

func TestTheNATSAdapterConforms(t *testing.T) {
	for _, class := range []dispatch.Class{dispatch.KeyIdempotent, dispatch.NaturallyIdempotent} {
		t.Run(string(class), func(t *testing.T) {
			dispatchtest.Conform(t, dispatchtest.Subject{Kind: nats.Kind(), Class: class, Start: startUpstream})
		})
	}
}

const password = "password-51c2e0"

// upstream is a server with a stream, behind a gate, and a subscriber that
// receives every message whether or not the stream takes it.
type upstream struct {
	*counterpart
	gate *gate

	mu        sync.Mutex
	situation dispatchtest.Situation
	messages  []dispatchtest.Message
}

func startUpstream(t *testing.T) dispatchtest.Counterpart {
	c := start(t, func(options *server.Options) { options.Username, options.Password = "drainer", password })
	c.look(t, natsgo.UserInfo("drainer", password))
	c.create(t, func(config *jetstream.StreamConfig) { config.Discard = jetstream.DiscardNew })
	u := &upstream{counterpart: c, gate: openGate(t, c.Addr().String()), situation: dispatchtest.Answering}
	if _, err := c.conn.Subscribe(subject, u.receive); err != nil {
		t.Fatal(err)
	}
	if err := c.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return dispatchtest.Counterpart{
		Settings: "{urls: ['nats://" + u.gate.address + "'], username: drainer, password: " + password + "}",
		Tool:     "{subject: " + subject + ", stream: " + stream + "}",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{password},
		Received: u.received,
		Enter:    func(situation dispatchtest.Situation) { u.enter(t, situation) },
	}
}

func (u *upstream) received() []dispatchtest.Message {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.messages)
}

// enter lets the stream itself refuse where it can, and disconnects it where a
// fake behaves badly in its place.
func (u *upstream) enter(t *testing.T, situation dispatchtest.Situation) {
	u.mu.Lock()
	before := u.situation
	u.situation = situation
	u.mu.Unlock()
	if before == situation {
		return
	}
	u.update(t, func(config *jetstream.StreamConfig) {
		config.Subjects, config.MaxMsgs, config.MaxMsgSize = []string{"charges.>"}, -1, -1
		switch situation {
		case dispatchtest.Throttling:
			config.MaxMsgs = 1
		case dispatchtest.Rejecting:
			config.MaxMsgSize = 1
		case dispatchtest.Severing, dispatchtest.Busy, dispatchtest.Silent, dispatchtest.Babbling:
			config.Subjects = []string{"elsewhere"}
		}
	})
	switch {
	case situation == dispatchtest.Unreachable:
		u.gate.shut()
	case before == dispatchtest.Unreachable:
		u.gate.open(t)
	}
}

func (u *upstream) receive(message *natsgo.Msg) {
	u.mu.Lock()
	u.messages = append(u.messages, dispatchtest.Message{Key: message.Header.Get("Nats-Msg-Id"), Body: message.Data})
	situation := u.situation
	u.mu.Unlock()
	switch situation {
	case dispatchtest.Severing:
		u.gate.cut()
	case dispatchtest.Busy:
		_ = message.Respond([]byte(`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"CHARGES","seq":0}`))
	case dispatchtest.Babbling:
		_ = message.Respond([]byte("220 mail.example ESMTP\r\n"))
	}
}

// gate stands between the adapter and a server, and can be shut.
type gate struct {
	address, server string

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func openGate(t *testing.T, server string) *gate {
	g := &gate{address: "127.0.0.1:0", server: server}
	g.open(t)
	t.Cleanup(g.shut)
	return g
}

func (g *gate) open(t *testing.T) {
	listener, err := net.Listen("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener, g.address = listener, listener.Addr().String()
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			g.pass(near)
		}
	}()
}

func (g *gate) pass(near net.Conn) {
	far, err := net.Dial("tcp", g.server)
	if err != nil {
		_ = near.Close()
		return
	}
	g.mu.Lock()
	g.conns = append(g.conns, near, far)
	g.mu.Unlock()
	go splice(near, far)
	go splice(far, near)
}

func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range g.conns {
		_ = conn.Close()
	}
	g.conns = nil
}

func (g *gate) shut() {
	g.mu.Lock()
	listener := g.listener
	g.mu.Unlock()
	_ = listener.Close()
	g.cut()
}

func splice(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	_ = from.Close()
}
