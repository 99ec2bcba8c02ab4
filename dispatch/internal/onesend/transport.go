// Package onesend sends an HTTP request at most once, and knows afterwards
// whether any of it can have left. The standard transport does neither: it
// repeats a request that it takes for idempotent, and its errors do not say
// what was written. So it is watched here, by the hooks of httptrace and by
// connections that count.
//
//	Transport.Send ──▶ net/http ──▶ countedConn ──▶ provider
//	                      └──httptrace──▶ exchangeTrace
package onesend

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

const (
	// idleTimeout is shorter than servers commonly allow, so that a connection
	// is rarely closed under a request.
	idleTimeout        = 30 * time.Second
	maxIdleConnections = 256
	maxHeaderBytes     = 64 << 10

	handshakeTimeout = 10 * time.Second
	pingAfter        = 15 * time.Second
	pingTimeout      = 10 * time.Second
)

// Transport is one provider's own: keep-alive and HTTP/2, no proxy from the
// environment. It follows no redirect and keeps no cookie.
type Transport struct {
	roundTripper *http.Transport

	mu     sync.Mutex
	open   map[*countedConn]struct{}
	closed bool
}

// New connects to nothing yet.
func New(network dispatch.Network) *Transport {
	t := &Transport{open: make(map[*countedConn]struct{})}
	t.roundTripper = &http.Transport{
		DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
			conn, err := network.DialContext(ctx, kind, address)
			if err != nil {
				return nil, err
			}
			return t.keep(conn)
		},
		Proxy:                  nil,
		TLSClientConfig:        network.TLSConfig(),
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           maxIdleConnections,
		MaxIdleConnsPerHost:    maxIdleConnections,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	return t
}

// Destination is where a request to an http or https URL goes.
func Destination(to *url.URL) dispatch.Destination {
	use, usual := dispatch.PlainText, "80"
	if to.Scheme == "https" {
		use, usual = dispatch.ImplicitTLS, "443"
	}
	return dispatch.Destination{Network: "tcp", Address: net.JoinHostPort(to.Hostname(), cmp.Or(to.Port(), usual)), TLS: use}
}

// Failure is an exchange that brought no response.
type Failure struct {
	Sent  bool   // a byte of the request may have left
	Class string // as package failure names it
}

// Send makes one attempt under the request's context, which must not end
// before the response's body is closed. The request is the transport's from
// here on. One with a body must have no GetBody: with it, net/http could send
// the body again.
func (t *Transport) Send(request *http.Request) (*http.Response, *Failure) {
	if err := request.Context().Err(); err != nil {
		// net/http may still give the request a connection that is open already, and
		// then it could not be distinguished from one that was sent.
		return nil, &Failure{Class: evidence.Unsent(request.Context(), err)}
	}
	ctx, trace, stop := watch(request.Context())
	response, err := t.roundTripper.RoundTrip(request.WithContext(ctx))
	if err != nil {
		defer stop()
		return nil, trace.failure(ctx, err)
	}
	response.Body = &releasingBody{response.Body, stop}
	return response, nil
}

// releasingBody ends the request's context when its response has been read:
// until then the context guards against a second send.
type releasingBody struct {
	io.ReadCloser
	release func()
}

func (b *releasingBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// keep remembers a connection until it is closed. net/http goes on dialing for a
// request that has found another connection meanwhile, and keeps the new one.
func (t *Transport) keep(conn net.Conn) (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	counted := &countedConn{Conn: conn}
	counted.forget = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, counted)
	}
	t.open[counted] = struct{}{}
	return counted, nil
}

// Close ends all connections, for when nothing more is to be sent.
// CloseIdleConnections alone leaves an HTTP/2 connection whose last stream has
// just ended, and one that is still being dialed.
func (t *Transport) Close() {
	t.roundTripper.CloseIdleConnections()
	t.mu.Lock()
	t.closed = true
	left := make([]*countedConn, 0, len(t.open))
	for conn := range t.open {
		left = append(left, conn)
	}
	t.mu.Unlock()
	for _, conn := range left {
		_ = conn.Close()
	}
}
