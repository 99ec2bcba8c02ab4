package dispatchtest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// HTTPCounterpart is a simulated provider that remembers whole messages, and
// whose host can go away and come back. It is the counterpart of adapters that
// speak HTTP.
type HTTPCounterpart struct {
	KeyHeader string // that carries the idempotency key
	Address   string // host and port

	provider SimulatedProvider
	fault    atomic.Value
	babbles  atomic.Bool
	t        *testing.T
	listener net.Listener
	server   *http.Server
	gone     bool

	mu       sync.Mutex
	messages []Message
}

// StartHTTP serves one on a loopback port until the test ends.
func StartHTTP(t *testing.T, keyHeader string) *HTTPCounterpart {
	t.Helper()
	u := &HTTPCounterpart{KeyHeader: keyHeader, t: t, provider: SimulatedProvider{Ledger: NewLedger()}}
	u.provider.Plan = func(string, int) Fault { return u.fault.Load().(Fault) }
	u.fault.Store(None)
	u.open(Address(t))
	t.Cleanup(func() {
		u.provider.Release()
		u.server.Close()
	})
	return u
}

func (u *HTTPCounterpart) open(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		u.t.Fatal(err)
	}
	u.Address, u.listener, u.server = listener.Addr().String(), listener, &http.Server{Handler: u}
	go func(server *http.Server) { _ = server.Serve(listener) }(u.server)
}

// Enter is for [Counterpart].
func (u *HTTPCounterpart) Enter(situation Situation) {
	if situation == Unreachable {
		u.listener.Close() // the server may not have begun to serve, and would not close it
		u.server.Close()
		u.gone = true
		return
	}
	if u.gone {
		u.gone = false
		u.open(u.Address)
	}
	u.babbles.Store(situation == Babbling)
	u.fault.Store(map[Situation]Fault{
		Answering:  None,
		Throttling: ThrottleFor,
		Rejecting:  Declined,
		Severing:   DropAfter,
		Busy:       Outstanding,
		Silent:     HangAfter,
		Babbling:   None,
	}[situation])
}

// ServeHTTP answers as the situation wants it.
func (u *HTTPCounterpart) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it did not arrive whole
	}
	key := r.Header.Get(u.KeyHeader)
	u.mu.Lock()
	u.messages = append(u.messages, Message{Key: key, Body: body})
	u.mu.Unlock()
	if u.babbles.Load() {
		babble(w)
		return
	}
	r.Header.Set("Idempotency-Key", key)
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

// Received is for [Counterpart].
func (u *HTTPCounterpart) Received() []Message {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.messages)
}
