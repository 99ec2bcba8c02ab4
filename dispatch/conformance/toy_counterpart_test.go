package conformance_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/conformance"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

const secret = "secret-77aa01"

// line is the toy protocol: a request is one line of JSON, an answer is one of
// "done", "later", "never" and "busy".
type line struct {
	Token   string          `json:"token"`
	Verb    string          `json:"verb"`
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"`
}

// desk answers lines.
type desk struct {
	t       *testing.T
	address string
	ended   chan struct{}

	mu        sync.Mutex
	situation conformance.Situation
	listener  net.Listener
	conns     []net.Conn
	messages  []conformance.Message
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, address: dispatchtest.Address(t), ended: make(chan struct{})}
	d.enter(conformance.Answering)
	t.Cleanup(func() {
		close(d.ended)
		d.enter(conformance.Unreachable)
	})
	return d
}

func (d *desk) counterpart() conformance.Counterpart {
	return conformance.Counterpart{
		Settings: "{address: '" + d.address + "', token: " + secret + ", attempts: 1}",
		Tool:     "verb: act",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "a memo of the agent", "and": {"z": [true], "a": null}}`),
		Exact:    json.RawMessage(`{"amount": 9007199254740993}`),
		Secrets:  []string{secret},
		Received: func() []conformance.Message {
			d.mu.Lock()
			defer d.mu.Unlock()
			return slices.Clone(d.messages)
		},
		Enter: d.enter,
	}
}

func (d *desk) enter(situation conformance.Situation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.situation = situation
	switch {
	case situation == conformance.Unreachable && d.listener != nil:
		d.listener.Close()
		d.listener = nil
		for _, conn := range d.conns {
			conn.Close()
		}
		d.conns = nil
	case situation != conformance.Unreachable && d.listener == nil:
		d.open()
	}
}

func (d *desk) open() {
	listener, err := net.Listen("tcp", d.address)
	if err != nil {
		d.t.Errorf("listening: %v", err)
		return
	}
	d.listener = listener
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns = append(d.conns, conn)
			d.mu.Unlock()
			go d.serve(conn)
		}
	}()
}

func (d *desk) serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		text, err := reader.ReadBytes('\n')
		if err != nil {
			return
		}
		switch answer := d.take(text); answer {
		case "":
			return
		case "silence":
			<-d.ended
			return
		default:
			if _, err := io.WriteString(conn, answer+"\n"); err != nil {
				return
			}
		}
	}
}

// take records a request and gives the answer; "" hangs up.
func (d *desk) take(text []byte) string {
	var request line
	if err := json.Unmarshal(text, &request); err != nil {
		return "never"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.messages = append(d.messages, conformance.Message{Key: request.Key, Body: request.Payload})
	return map[conformance.Situation]string{
		conformance.Answering:  "done",
		conformance.Throttling: "later",
		conformance.Rejecting:  "never",
		conformance.Busy:       "busy",
		conformance.Silent:     "silence",
		conformance.Babbling:   "220 mail.example ESMTP",
	}[d.situation]
}
