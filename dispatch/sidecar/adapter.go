// Package sidecar is the adapter for a provider whose adapter is a service next to drainer. The service answers the
// protocol of docs/adapter-protocol.md over HTTP, on a Unix socket or on a loopback address.
//
//	Dispatch ──greeter: GET /v1/hello──▶ POST /v1/dispatch ──judge──▶ Result
//
// Only a result of the protocol is believed. Any other response after a byte was sent, even an HTTP status, leaves
// the request in doubt: it may come from a framework or a proxy that does not know the handler's outcome.
package sidecar

import (
	"context"
	"net/http"
	"net/url"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/dispatch/internal/sharedconn"
)

// Kind registers the adapter as "sidecar".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "sidecar",
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter dispatches to one provider through its sidecar.
type Adapter struct {
	client    *protocol.Client
	greetings *sharedconn.Shared[*greeting]
	transport *onesend.Transport
	base      string
	socket    string // the path of a Unix socket; empty for TCP
	header    http.Header
	limit     int // the longest answer, in bytes
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	settings, address, err := newSettings(spec)
	if err != nil {
		return nil, err
	}
	a := &Adapter{
		transport: onesend.New(address.network(spec.Network, settings.User)),
		base:      address.base,
		socket:    address.socket,
		header:    settings.header(),
		limit:     settings.MaxMessage,
	}
	a.greetings = sharedconn.New(a.greet, helloTimeout)
	a.client = &protocol.Client{Tools: spec.Tools, Timeout: spec.Timeout, Reach: a.reach}
	return a, nil
}

// Dispatch asks the sidecar at most once and returns the result.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	return a.client.Dispatch(ctx, request)
}

// Greet asks the sidecar for its hello.
func (a *Adapter) Greet(ctx context.Context) dispatch.Result { return a.client.Greet(ctx) }

// Close ends the connections.
func (a *Adapter) Close() error {
	a.greetings.Close()
	a.transport.Close()
	return nil
}

// Destinations returns the address where the sidecar listens. The sidecar's own connections are not known.
func (a *Adapter) Destinations() []dispatch.Destination {
	if a.socket != "" {
		return []dispatch.Destination{{Network: "unix", Address: a.socket}}
	}
	base, err := url.Parse(a.base)
	if err != nil {
		return nil // New refused it
	}
	return []dispatch.Destination{onesend.Destination(base)}
}
