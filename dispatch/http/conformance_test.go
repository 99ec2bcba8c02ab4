package http_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

func TestTheHTTPAdapterConforms(t *testing.T) {
	for class, tool := range map[dispatch.Class]string{
		dispatch.KeyIdempotent:       "{path: /v1/charges, response: {ref: .id}}",
		dispatch.NaturallyIdempotent: "{method: PUT, path: '/v1/charges/{.key}', response: {ref: .id}}",
	} {
		t.Run(string(class), func(t *testing.T) {
			dispatchtest.Conform(t, dispatchtest.Subject{
				Kind:  dispatchhttp.Kind(),
				Class: class,
				Start: func(t *testing.T) dispatchtest.Counterpart { return startUpstream(t, tool) },
			})
		})
	}
}

const token = "token-9d41c07e"

func startUpstream(t *testing.T, tool string) dispatchtest.Counterpart {
	u := &upstream{provider: dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}}
	u.provider.Plan = func(string, int) dispatchtest.Fault { return u.fault.Load().(dispatchtest.Fault) }
	u.fault.Store(dispatchtest.None)
	u.open(t, "127.0.0.1:0")
	t.Cleanup(func() {
		u.provider.Release()
		u.server.Close()
	})
	return dispatchtest.Counterpart{
		Settings: "{base_url: 'http://" + u.address + "', headers: {Authorization: Bearer " + token + "}}",
		Tool:     tool,
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{token},
		Received: u.arrived,
		Enter:    func(situation dispatchtest.Situation) { u.enter(t, situation) },
	}
}

// upstream is a simulated provider that remembers whole messages, and whose
// host can go away and come back.
type upstream struct {
	provider dispatchtest.SimulatedProvider
	fault    atomic.Value
	babbles  atomic.Bool
	server   *http.Server
	address  string
	gone     bool

	mu       sync.Mutex
	messages []dispatchtest.Message
}

func (u *upstream) open(t *testing.T, address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	u.address, u.server = listener.Addr().String(), &http.Server{Handler: u}
	go func(server *http.Server) { _ = server.Serve(listener) }(u.server)
}

func (u *upstream) enter(t *testing.T, situation dispatchtest.Situation) {
	if situation == dispatchtest.Unreachable {
		u.server.Close()
		u.gone = true
		return
	}
	if u.gone {
		u.gone = false
		u.open(t, u.address)
	}
	u.babbles.Store(situation == dispatchtest.Babbling)
	u.fault.Store(map[dispatchtest.Situation]dispatchtest.Fault{
		dispatchtest.Answering:  dispatchtest.None,
		dispatchtest.Throttling: dispatchtest.ThrottleFor,
		dispatchtest.Rejecting:  dispatchtest.Declined,
		dispatchtest.Severing:   dispatchtest.DropAfter,
		dispatchtest.Busy:       dispatchtest.Outstanding,
		dispatchtest.Silent:     dispatchtest.HangAfter,
		dispatchtest.Babbling:   dispatchtest.None,
	}[situation])
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it did not arrive whole
	}
	u.mu.Lock()
	u.messages = append(u.messages, dispatchtest.Message{Key: r.Header.Get("Idempotency-Key"), Body: body})
	u.mu.Unlock()
	if u.babbles.Load() {
		babble(w)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	u.provider.ServeHTTP(w, r)
}

func babble(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(errors.Join(http.ErrAbortHandler, err))
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "220 mail.example ESMTP\r\n")
}

func (u *upstream) arrived() []dispatchtest.Message {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.messages)
}
