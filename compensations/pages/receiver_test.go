package pages_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// patience bounds every wait: far above what a slow machine needs.
const patience = 60 * time.Second

// receiver is the other side of a channel: a real server that keeps what it
// accepted.
type receiver struct {
	t        *testing.T
	server   *httptest.Server
	accepted chan message
	tries    atomic.Int64
	answer   func(try int64, w http.ResponseWriter) bool // false: not accepted
}

type message struct {
	header http.Header
	path   string
	body   string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, accepted: make(chan message, 1000), answer: func(_ int64, w http.ResponseWriter) bool {
		w.WriteHeader(http.StatusAccepted)
		return true
	}}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		r.t.Error(err)
	}
	if request.Method != http.MethodPost || request.Header.Get("Content-Type") != "application/json" {
		r.t.Errorf("got %s of %s", request.Method, request.Header.Get("Content-Type"))
	}
	if r.answer(r.tries.Add(1), w) {
		r.accepted <- message{request.Header, request.URL.Path, string(body)}
	}
}

// next waits for a message.
func (r *receiver) next() message {
	r.t.Helper()
	select {
	case m := <-r.accepted:
		return m
	case <-time.After(patience):
		r.t.Fatal("nothing was received")
		return message{}
	}
}

// assertSilent fails if there is a message that nobody waited for.
func (r *receiver) assertSilent() {
	r.t.Helper()
	select {
	case m := <-r.accepted:
		r.t.Errorf("received %s", m.body)
	default:
	}
}

// cut ends the connection without an answer.
func cut(w http.ResponseWriter) {
	connection, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		connection.Close()
	}
}
