// Package nats is the NATS JetStream adapter: a provider is a NATS system, a
// tool is a subject that a stream listens on, and an effect is one message in
// that stream.
//
//	Request ──tool.message──▶ message ──publish──▶ acknowledgement ──judge──▶ Result
//
// One dispatch publishes at most once and waits for the stream's
// acknowledgement. A connection that is lost is not mended in the background
// but made anew by the next dispatch, so that nothing is sent later.
//
// The idempotency key travels as Nats-Msg-Id. The stream tells a repetition
// for as long as its duplicate window lasts, and a tool that promises more
// than that does not send.
package nats

import (
	"context"
	"errors"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/deadline"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Kind registers the adapter as "nats". A message is an effect, so no tool is
// read_only.
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
	connection *connection
	timeout    time.Duration
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	settings, err := readSettings(spec.Settings)
	tools, toolsErr := blocks.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (*tool, error) { return newTool(spec) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	return &Adapter{
		tools:      tools,
		connection: newConnection(settings, spec.Network, spec.Timeout),
		timeout:    spec.Timeout,
	}, nil
}

// Dispatch publishes one message and reports what the evidence says about it.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := deadline.Within(ctx, a.timeout)
	defer cancel()
	message, err := tool.message(ctx, request)
	if err != nil {
		return render.Refusal(ctx, err)
	}
	link, err := a.connection.get(ctx)
	if err != nil {
		return unconnected(ctx, err)
	}
	if refusal, vouched := link.vouchFor(ctx, tool); !vouched {
		return refusal
	}
	return link.publish(ctx, tool, message)
}

// Close ends the connection. No dispatch may be running.
func (a *Adapter) Close() error {
	a.connection.close()
	return nil
}
