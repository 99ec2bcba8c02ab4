// Package onesend sends an HTTP request at most once, and knows afterwards
// whether any of it can have left. The standard transport does neither: it
// repeats what it takes for idempotent, and its errors do not tell.
package onesend

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

const (
	handshakeTimeout = 10 * time.Second
	// idleTimeout is shorter than what servers commonly allow, so that a
	// connection is rarely closed under a request.
	idleTimeout        = 30 * time.Second
	maxIdleConnections = 256
	maxHeaderOctets    = 64 << 10
	pingAfter          = 15 * time.Second
	pingTimeout        = 10 * time.Second
)

// Transport is one provider's own: keep-alive and HTTP/2, no proxy from the
// environment. It follows no redirect and keeps no cookie.
type Transport struct {
	roundTripper *http.Transport
}

// New connects to nothing yet.
func New(network dispatch.Network) *Transport {
	return &Transport{&http.Transport{
		DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
			conn, err := network.DialContext(ctx, kind, address)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		Proxy:                  nil,
		TLSClientConfig:        network.TLSConfig(),
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           maxIdleConnections,
		MaxIdleConnsPerHost:    maxIdleConnections,
		MaxResponseHeaderBytes: maxHeaderOctets,
	}}
}

// Failure is an exchange that brought no response.
type Failure struct {
	Sent  bool   // an octet of the request may have left
	Class string // as package failure names it
}

// Send makes one attempt under the request's context. The caller closes the
// response's body. A request with a body must have no GetBody: with one, the
// standard transport could send it again.
func (t *Transport) Send(request *http.Request) (*http.Response, *Failure) {
	ctx, evidence, stop := watch(request.Context(), request.URL.Scheme == "https")
	response, err := t.roundTripper.RoundTrip(request.WithContext(ctx))
	if err != nil {
		defer stop()
		return nil, evidence.failure(ctx, err)
	}
	response.Body = &releasingBody{response.Body, stop}
	return response, nil
}

// CloseIdleConnections is for when nothing more is to be sent.
func (t *Transport) CloseIdleConnections() { t.roundTripper.CloseIdleConnections() }

func (e *evidence) failure(ctx context.Context, err error) *Failure {
	if e.provesUnsent() {
		return &Failure{Class: e.unsentClass(ctx, err)}
	}
	return &Failure{Sent: true, Class: e.sentClass(ctx, err)}
}

func (e *evidence) unsentClass(ctx context.Context, err error) string {
	class := failure.Unsent(ctx, err)
	if class == "dial" && e.handshakeFailed() {
		return "tls"
	}
	return class
}

func (e *evidence) sentClass(ctx context.Context, err error) string {
	if errors.Is(context.Cause(ctx), errSecondSend) {
		return "reset"
	}
	class := failure.Sent(ctx, err)
	if class == "protocol" && e.connEnded() {
		return "reset"
	}
	return class
}
