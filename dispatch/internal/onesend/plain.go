package onesend

import (
	"context"
	"net/http"

	"golang.org/x/net/http/httpguts"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// maxPlainBody is less than what any kernel takes for a peer that does not
// read. Beyond that, a provider that answers first and reads later would
// wait for us while we wait for it.
const maxPlainBody = 32 << 10

// plain speaks HTTP/1.1 without TLS on its caller's goroutine: it writes the
// request, and then it reads. So it knows what was sent without watching,
// sends nothing twice, and does without the two goroutines for each
// connection that make the standard transport half as dear again.
type plain struct {
	network dispatch.Network
	idle    idleConnections
}

func newPlain(network dispatch.Network) *plain { return &plain{network: network} }

// suits reports a request that has a URL without TLS and a small body of
// known length, or none.
func (p *plain) suits(request *http.Request) bool {
	hasBody := request.Body != nil && request.Body != http.NoBody
	return request.URL.Scheme == "http" && request.ContentLength <= maxPlainBody && hasBody == (request.ContentLength > 0)
}

func (p *plain) send(request *http.Request) (*http.Response, *Failure) {
	ctx := request.Context()
	conn, err := p.connect(ctx, Destination(request.URL).Address)
	if err != nil {
		return nil, &Failure{Class: failure.Unsent(ctx, err)}
	}
	exchange := p.begin(ctx, conn)
	mayBeZipped := allowZip(request)
	response, err := conn.roundTrip(request)
	if err != nil {
		exchange.end(false)
		return nil, conn.failure(ctx, err)
	}
	response.Body = newAnswerBody(response, exchange)
	if mayBeZipped {
		unzip(response)
	}
	return response, nil
}

// connect prefers a connection that is open already.
func (p *plain) connect(ctx context.Context, address string) (*connection, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if conn := p.idle.take(address); conn != nil {
		return conn, nil
	}
	ascii, err := httpguts.PunycodeHostPort(address)
	if err != nil {
		return nil, err
	}
	conn, err := p.network.DialContext(ctx, "tcp", ascii)
	if err != nil {
		return nil, err
	}
	return newConnection(conn, address), nil
}
