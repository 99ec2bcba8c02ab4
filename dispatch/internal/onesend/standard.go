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
	pingAfter        = 15 * time.Second
	pingTimeout      = 10 * time.Second
)

// standard is net/http's transport. What it did with a request is told by
// evidence.
type standard struct {
	roundTripper *http.Transport
}

func newStandard(network dispatch.Network) *standard {
	return &standard{&http.Transport{
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

func (s *standard) send(request *http.Request) (*http.Response, *Failure) {
	ctx, evidence, stop := watch(request.Context())
	response, err := s.roundTripper.RoundTrip(request.WithContext(ctx))
	if err != nil {
		defer stop()
		return nil, evidence.failure(ctx, err)
	}
	response.Body = &releasingBody{response.Body, stop}
	return response, nil
}

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
