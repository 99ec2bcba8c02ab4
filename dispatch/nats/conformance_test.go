package nats_test

import (
	"encoding/json"
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
	gate *dispatchtest.Gate

	mu        sync.Mutex
	situation dispatchtest.Situation
	messages  []dispatchtest.Message
}

func startUpstream(t *testing.T) dispatchtest.Counterpart {
	c := start(t, func(options *server.Options) { options.Username, options.Password = "drainer", password })
	c.look(t, natsgo.UserInfo("drainer", password))
	c.create(t, func(config *jetstream.StreamConfig) { config.Discard = jetstream.DiscardNew })
	u := &upstream{counterpart: c, gate: dispatchtest.OpenGate(t, c.Addr().String(), nil), situation: dispatchtest.Answering}
	c.subscribe(t, u.receive)
	return dispatchtest.Counterpart{
		Settings: "{urls: ['nats://" + u.gate.Address + "'], username: drainer, password: " + password + "}",
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

// enter makes the stream itself refuse where it can. For the other situations it disconnects the stream, and a fake
// misbehaves in its place.
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
	if situation == dispatchtest.Unreachable {
		u.gate.Shut()
	} else {
		u.gate.Open()
	}
}

func (u *upstream) receive(message *natsgo.Msg) {
	u.mu.Lock()
	u.messages = append(u.messages, dispatchtest.Message{Key: message.Header.Get("Nats-Msg-Id"), Body: message.Data})
	situation := u.situation
	u.mu.Unlock()
	switch situation {
	case dispatchtest.Severing:
		u.gate.Cut()
	case dispatchtest.Busy:
		_ = message.Respond([]byte(`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"CHARGES","seq":0}`))
	case dispatchtest.Babbling:
		_ = message.Respond([]byte("220 mail.example ESMTP\r\n"))
	}
}
