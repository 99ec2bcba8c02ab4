package onesend

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/net/http/httpguts"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// maxPlainOctets is less than any kernel takes for a peer that does not read.
// Beyond that, a provider that answers first and reads later would wait for us
// while we wait for it.
const maxPlainOctets = 4 << 10

// plain speaks HTTP/1.1 without TLS on its caller's goroutine: it writes the
// request, and then it reads. So it knows what was sent without watching,
// sends nothing twice, and does without the two goroutines for each
// connection that make the standard transport half as dear again.
type plain struct {
	network dispatch.Network
	idle    idleConnections
}

func newPlain(network dispatch.Network) *plain { return &plain{network: network} }

// suits reports a request without TLS that is short as a whole. A body of
// unknown length, a name that DNS does not know as it is, and a header that must
// be refused are the standard transport's.
func (p *plain) suits(request *http.Request) bool {
	hasBody := request.Body != nil && request.Body != http.NoBody
	return request.URL.Scheme == "http" && isASCII(request.URL.Host) && hasBody == (request.ContentLength > 0) &&
		request.ContentLength <= maxPlainOctets && octetsOf(request) <= maxPlainOctets && isValid(request.Header)
}

// octetsOf is what a request takes on the wire, but for a few constants.
func octetsOf(request *http.Request) int {
	octets := len(request.URL.RequestURI()) + len(request.Host) + int(request.ContentLength)
	for name, values := range request.Header {
		for _, value := range values {
			octets += len(name) + len(value)
		}
	}
	return octets
}

func isValid(header http.Header) bool {
	for name, values := range header {
		if !httpguts.ValidHeaderFieldName(name) || slices.ContainsFunc(values, isInvalidValue) {
			return false
		}
	}
	return true
}

func isInvalidValue(value string) bool { return !httpguts.ValidHeaderFieldValue(value) }

func isASCII(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) < 0
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
	conn, err := p.network.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return newConnection(conn, address), nil
}
