package http

import (
	"context"
	"net"
	"net/http"
	"time"
)

const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// idleTimeout is shorter than what servers commonly allow, so that a
	// connection is rarely closed under a request.
	idleTimeout         = 30 * time.Second
	maxIdleConnections  = 256
	maxHeaderOctets     = 64 << 10
	pingAfter           = 15 * time.Second
	pingTimeout         = 10 * time.Second
	tcpKeepAliveSilence = 15 * time.Second
)

// newTransport is a provider's own: keep-alive and HTTP/2, no proxy from the
// environment. It is used without a Client, and so follows no redirect and
// keeps no cookie.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: tcpKeepAliveSilence}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		Proxy:                  nil,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		TLSHandshakeTimeout:    handshakeTimeout,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           maxIdleConnections,
		MaxIdleConnsPerHost:    maxIdleConnections,
		MaxResponseHeaderBytes: maxHeaderOctets,
	}
}
