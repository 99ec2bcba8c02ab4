// Package onesend sends an HTTP request at most once, and can tell afterwards whether any of it may have been sent.
// The standard transport does neither: it repeats a request that it considers idempotent, and its errors do not say
// whether anything was written. So this package watches it with the hooks of httptrace and with connections that
// count bytes.
//
//	Transport.Send ──▶ net/http ──▶ countedConn ──▶ provider
//	                      └──httptrace──▶ exchangeTrace
package onesend

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

const (
	// idleTimeout is shorter than the timeout of most servers, so that a server rarely closes a connection while a
	// request is written.
	idleTimeout        = 30 * time.Second
	maxIdleConnections = 256
	maxHeaderBytes     = 64 << 10

	handshakeTimeout = 10 * time.Second
	pingAfter        = 15 * time.Second
	pingTimeout      = 10 * time.Second
)

// Transport carries the requests of one provider, with keep-alive and HTTP/2. It uses no proxy from the environment,
// follows no redirect and keeps no cookie.
type Transport struct {
	roundTripper *http.Transport

	mu     sync.Mutex
	open   map[*countedConn]struct{}
	closed bool
}

// New makes a transport. It connects to nothing yet.
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

// Destination returns the address of a request to an http or https URL.
func Destination(to *url.URL) dispatch.Destination {
	use, usual := dispatch.PlainText, "80"
	if to.Scheme == "https" {
		use, usual = dispatch.ImplicitTLS, "443"
	}
	return dispatch.Destination{Network: "tcp", Address: net.JoinHostPort(to.Hostname(), cmp.Or(to.Port(), usual)), TLS: use}
}

// Failure describes an exchange that brought no response.
type Failure struct {
	Sent  bool   // a byte of the request may have been sent
	Class string // an error class of package evidence
}

// Send makes one attempt under the request's context, which must not end before the response's body is closed. The
// caller must not use the request afterwards. A request with a body must have no GetBody: with it, net/http could
// send the body again.
func (t *Transport) Send(request *http.Request) (*http.Response, *Failure) {
	if err := request.Context().Err(); err != nil {
		// net/http might still give the request an open connection, and the failure would then look like the
		// failure of a sent request.
		return nil, &Failure{Class: evidence.Unsent(request.Context(), err)}
	}
	ctx, trace, stop := watch(request.Context())
	response, err := t.roundTripper.RoundTrip(request.WithContext(ctx))
	if err != nil {
		defer stop()
		return nil, trace.failure(ctx, err)
	}
	if trace.endStale() {
		defer stop()
		_ = response.Body.Close()
		return nil, &Failure{Sent: true, Class: "protocol"}
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		// No request asks for another protocol. net/http hands the connection over to the caller, and no context
		// would end a read from it.
		_ = response.Body.Close()
		response.Body = http.NoBody
	}
	response.Body = &releasingBody{response.Body, stop}
	return response, nil
}

// releasingBody ends the request's context once its response has been read. Until then the context prevents a second
// send.
type releasingBody struct {
	io.ReadCloser
	release func()
}

func (b *releasingBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// keep records a connection until it is closed. If a request finds another connection while it dials, net/http
// finishes the dial and keeps the new connection.
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

// Close ends all connections. Nothing can be sent afterwards. CloseIdleConnections alone would leave an HTTP/2
// connection whose last stream has just ended, and a connection that is still being dialed.
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

var errSecondSend = errors.New("the request may already have been sent; it is not sent again")

// exchangeTrace is the evidence about one request on the wire.
//
// It also prevents a second send. The transport repeats a request on a new connection by itself if it considers the
// request idempotent, as it does for every request with an Idempotency-Key (golang/go#19943). Each repetition first
// asks for a connection. There it is stopped, unless the first try cannot have sent anything.
type exchangeTrace struct {
	cancel context.CancelCauseFunc

	mu          sync.Mutex
	conn        *countedConn // nil until the request gets a connection
	base        int64        // bytes written on it before this request
	multiplexed bool         // HTTP/2: bytes on the connection may belong to any request
	headerBegun bool
	tlsFailed   bool
	reused      bool // the connection carried an earlier exchange
	stale       bool // the answer came before the request, so it belongs to another request
}

// watch starts to gather evidence. stop releases the context once the response was read.
func watch(ctx context.Context) (_ context.Context, _ *exchangeTrace, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	e := &exchangeTrace{cancel: cancel}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:          func(info httptrace.GotConnInfo) { e.gotConn(info.Conn, info.Reused) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { e.handshakeDone(err) },
		WroteHeaderField: func(string, []string) { e.headerBegins() },

		GotFirstResponseByte: e.answerBegins,
	})
	return ctx, e, func() { cancel(nil) }
}

func (e *exchangeTrace) gotConn(conn net.Conn, reused bool) {
	counted, multiplexed := unwrap(conn)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mayHaveSent() {
		e.cancel(errSecondSend)
		if !multiplexed {
			// HTTP/1 does not look at the context before it writes.
			counted.sealAt(counted.count())
		}
		return
	}
	e.conn, e.base, e.multiplexed, e.reused = counted, counted.count(), multiplexed, reused
}

// answerBegins checks the first byte of an answer over HTTP/1, where only the order shows to which request an answer
// belongs. A provider may have written more than the answer to an earlier request, such as a body after a 204.
// net/http discards such bytes only if it reads them before the next request gets the connection.
func (e *exchangeTrace) answerBegins() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stale = e.conn != nil && e.reused && !e.multiplexed && e.conn.countAtRead() <= e.base
}

// endStale closes the connection of a stale answer, and reports whether the answer was stale.
func (e *exchangeTrace) endStale() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stale {
		_ = e.conn.Close()
	}
	return e.stale
}

// mayHaveSent reports whether a try that the transport gave up may have sent anything. Over HTTP/2 the hook for the
// first header field runs before anything is written.
func (e *exchangeTrace) mayHaveSent() bool {
	switch {
	case e.conn == nil:
		return false
	case e.multiplexed:
		return e.headerBegun
	default:
		return e.conn.count() != e.base
	}
}

// provesUnsent reports that no byte of the request was written, and prevents later writes. Over HTTP/2 the bytes of
// a stream cannot be distinguished from those of other streams, so a request that got a connection is in doubt.
func (e *exchangeTrace) provesUnsent() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.conn == nil:
		return true
	case e.multiplexed:
		return false
	default:
		return e.conn.sealAt(e.base)
	}
}

func (e *exchangeTrace) connEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conn != nil && e.conn.hasEnded()
}

func (e *exchangeTrace) handshakeFailed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tlsFailed
}

func (e *exchangeTrace) handshakeDone(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tlsFailed = err != nil
}

func (e *exchangeTrace) headerBegins() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.headerBegun = true
}

// unwrap returns the connection that New dialed.
func unwrap(conn net.Conn) (counted *countedConn, multiplexed bool) {
	if secure, ok := conn.(*tls.Conn); ok {
		multiplexed = secure.ConnectionState().NegotiatedProtocol == "h2"
		conn = secure.NetConn()
	}
	return conn.(*countedConn), multiplexed
}

func (e *exchangeTrace) failure(ctx context.Context, err error) *Failure {
	if e.provesUnsent() {
		return &Failure{Class: e.unsentClass(ctx, err)}
	}
	return &Failure{Sent: true, Class: e.sentClass(ctx, err)}
}

func (e *exchangeTrace) unsentClass(ctx context.Context, err error) string {
	class := evidence.Unsent(ctx, err)
	if class == "dial" && e.handshakeFailed() {
		return "tls"
	}
	return class
}

func (e *exchangeTrace) sentClass(ctx context.Context, err error) string {
	if errors.Is(context.Cause(ctx), errSecondSend) {
		return "reset"
	}
	class := evidence.Sent(ctx, err)
	if class == "protocol" && e.connEnded() {
		return "reset"
	}
	return class
}

var errSealed = errors.New("connection is closed to further requests")

// countedConn counts the bytes that were given to the kernel.
type countedConn struct {
	net.Conn
	forget  func() // removes the connection from the transport's; nil if none keeps it
	mu      sync.Mutex
	written int64
	atRead  int64 // the value of written when bytes were last read
	sealed  bool
	ended   bool // the peer closed or reset the connection
}

// Write adds to the count before it writes and corrects the count afterwards. In between, the count is too high
// rather than too low.
func (c *countedConn) Write(data []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, errSealed
	}
	c.written += int64(len(data))
	c.mu.Unlock()

	n, err := c.Conn.Write(data)
	c.mu.Lock()
	c.written -= int64(len(data) - n)
	c.mu.Unlock()
	return n, err
}

func (c *countedConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		c.atRead = c.written
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.ended = true
	}
	return n, err
}

func (c *countedConn) Close() error {
	if c.forget != nil {
		c.forget()
	}
	return c.Conn.Close()
}

func (c *countedConn) count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written
}

func (c *countedConn) countAtRead() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.atRead
}

func (c *countedConn) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// sealAt forbids further writes if nothing was written since the count was base, and reports whether it did so.
func (c *countedConn) sealAt(base int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written != base {
		return false
	}
	c.sealed = true
	return true
}
