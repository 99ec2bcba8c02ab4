package onesend

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
)

var errSecondSend = errors.New("the request may already have been sent; it is not sent again")

// evidence is what is known about one request on the wire.
//
// It is also the guard against a second send. The transport repeats a request
// on a new connection by itself where it takes the request for idempotent, as
// it does for everything that carries an Idempotency-Key (golang/go#19943).
// Every such repetition first asks for a connection; from there on it is
// stopped unless the first try cannot have sent anything.
type evidence struct {
	cancel context.CancelCauseFunc

	mu          sync.Mutex
	conn        *countedConn // nil until the request was given a connection
	base        int64        // octets on it that are not this request's
	multiplexed bool         // HTTP/2: octets on the connection may be anyone's
	headerBegun bool
	tlsFailed   bool
}

// watch begins to gather evidence. stop releases the context once the
// response was read.
func watch(ctx context.Context) (_ context.Context, _ *evidence, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	e := &evidence{cancel: cancel}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:          func(info httptrace.GotConnInfo) { e.gotConn(info.Conn) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { e.handshakeDone(err) },
		WroteHeaderField: func(string, []string) { e.headerBegins() },
	})
	return ctx, e, func() { cancel(nil) }
}

func (e *evidence) gotConn(conn net.Conn) {
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
	e.conn, e.base, e.multiplexed = counted, counted.count(), multiplexed
}

// mayHaveSent is asked after the transport gave up a try. Over HTTP/2 the
// hook for the first header field runs before anything is written.
func (e *evidence) mayHaveSent() bool {
	switch {
	case e.conn == nil:
		return false
	case e.multiplexed:
		return e.headerBegun
	default:
		return e.conn.count() != e.base
	}
}

// provesUnsent reports that no octet of the request was written, and sees to
// it that none will be. A stream of HTTP/2 cannot be told from its
// neighbours while it ends, so having had a connection is doubt enough.
func (e *evidence) provesUnsent() bool {
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

func (e *evidence) connEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conn != nil && e.conn.hasEnded()
}

func (e *evidence) handshakeFailed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tlsFailed
}

func (e *evidence) handshakeDone(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tlsFailed = err != nil
}

func (e *evidence) headerBegins() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.headerBegun = true
}

// unwrap finds the connection that New dialed.
func unwrap(conn net.Conn) (counted *countedConn, multiplexed bool) {
	if secure, ok := conn.(*tls.Conn); ok {
		multiplexed = secure.ConnectionState().NegotiatedProtocol == "h2"
		conn = secure.NetConn()
	}
	return conn.(*countedConn), multiplexed
}
