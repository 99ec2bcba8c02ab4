// Package nats is the NATS JetStream adapter. A provider is a NATS system, a tool is a subject to which a stream
// listens, and an effect is one message in that stream.
//
//	Request ──tool.message──▶ message ──publish──▶ acknowledgement ──judge──▶ Result
//
// One dispatch publishes at most once and waits for the stream's acknowledgement. A lost connection is not restored
// in the background: the next dispatch opens a new one, so that nothing is sent after the end of its dispatch.
//
// The idempotency key is sent as Nats-Msg-Id. The stream recognises a repetition during its duplicate window. A tool
// whose configuration promises a longer time does not send.
package nats

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/sharedconn"
)

// Kind registers the adapter as "nats". A message is an effect, so no tool can be read_only.
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "nats",
		Classes:  []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.KeyIdempotent, dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter dispatches to one NATS system over one connection.
type Adapter struct {
	tools      map[string]*tool
	connection *sharedconn.Shared[*connection]
	timeout    time.Duration
	settings   Settings
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	settings, err := readSettings(spec.Settings)
	tools, toolsErr := adapter.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (*tool, error) { return newTool(spec) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	limit := connectTimeout
	if spec.Timeout > 0 {
		limit = min(spec.Timeout, connectTimeout)
	}
	return &Adapter{
		tools: tools,
		connection: sharedconn.New(func(ctx context.Context) (*connection, error) {
			return connect(ctx, settings, spec.Network, spec.Timeout)
		}, limit),
		timeout:  spec.Timeout,
		settings: settings,
	}, nil
}

// Dispatch publishes one message and returns the result that the evidence proves.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	message, err := tool.message(ctx, request)
	if err != nil {
		return render.Refusal(ctx, err)
	}
	connection, err := a.connection.Get(ctx)
	if err != nil {
		return unconnected(ctx, err)
	}
	if refusal, vouched := connection.vouchFor(ctx, tool); !vouched {
		return refusal
	}
	return connection.publish(ctx, tool, message)
}

// Greet connects to the server. It publishes nothing.
func (a *Adapter) Greet(ctx context.Context) dispatch.Result {
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	if _, err := a.connection.Get(ctx); err != nil {
		return unconnected(ctx, err)
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

// Close ends the connection. No dispatch may be running.
func (a *Adapter) Close() error {
	a.connection.Close()
	return nil
}

const usualPort = "4222"

// Destinations returns the servers. TLS begins after a server's first message.
func (a *Adapter) Destinations() (all []dispatch.Destination) {
	for _, text := range a.settings.URLs {
		server, err := url.Parse(text)
		if err != nil {
			continue // New refused it
		}
		use := dispatch.PlainText
		if a.settings.TLS || server.Scheme == "tls" {
			use = dispatch.UpgradedTLS
		}
		address := net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), usualPort))
		all = append(all, dispatch.Destination{Network: "tcp", Address: address, TLS: use})
	}
	return all
}
