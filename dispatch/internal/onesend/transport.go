// Package onesend sends an HTTP request at most once, and knows afterwards
// whether any of it can have left. The standard transport does neither: it
// repeats what it takes for idempotent, and its errors do not tell.
//
//	Transport.Send ──small, without TLS──▶ plain: on the caller's goroutine, by its own connections
//	               ──all else────────────▶ standard: net/http's transport, watched by evidence
package onesend

import (
	"net/http"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// idleTimeout is shorter than what servers commonly allow, so that a
	// connection is rarely closed under a request.
	idleTimeout        = 30 * time.Second
	maxIdleConnections = 256 // of each of the two ways
	maxHeaderOctets    = 64 << 10
)

// Transport is one provider's own: keep-alive and HTTP/2, no proxy from the
// environment. It follows no redirect and keeps no cookie.
type Transport struct {
	plain    *plain
	standard *standard
}

// New connects to nothing yet.
func New(network dispatch.Network) *Transport {
	return &Transport{plain: newPlain(network), standard: newStandard(network)}
}

// Failure is an exchange that brought no response.
type Failure struct {
	Sent  bool   // an octet of the request may have left
	Class string // as package failure names it
}

// Send makes one attempt under the request's context, which must not end
// before the response's body is closed. The request is the transport's from
// here on. One with a body must have no GetBody: with it, the standard
// transport could send the body again.
func (t *Transport) Send(request *http.Request) (*http.Response, *Failure) {
	if t.plain.suits(request) {
		return t.plain.send(request)
	}
	return t.standard.send(request)
}

// CloseIdleConnections is for when nothing more is to be sent.
func (t *Transport) CloseIdleConnections() {
	t.plain.idle.close()
	t.standard.roundTripper.CloseIdleConnections()
}
