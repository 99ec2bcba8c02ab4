// Package rabbitmq publishes intents to an exchange of a RabbitMQ broker
// (AMQP 0-9-1): persistent, mandatory, and confirmed.
//
//	Request ──tool.render──▶ message ──session──▶ publisher ──▶ evidence ──judge──▶ Result
//
// One dispatch publishes at most one message. The exchange and the routing key
// come from the configuration alone. A provider has one connection; each
// message that is under way has a channel of it to itself, so that a confirm,
// a return or a channel exception can only mean that message.
package rabbitmq

import (
	"context"
	"errors"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/deadline"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Kind registers the adapter as "rabbitmq". RabbitMQ knows no idempotency
// keys: a tool that is key_idempotent promises that its consumers recognise a
// message id for as long as the tool's ttl.
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "rabbitmq",
		Classes:  []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.KeyIdempotent, dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter publishes to one broker.
type Adapter struct {
	tools   map[string]*tool
	link    *link
	timeout time.Duration
	url     string
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	broker, err := newBroker(spec)
	tools, toolsErr := blocks.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (*tool, error) { return newTool(spec.Settings) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	return &Adapter{tools: tools, link: newLink(broker.connect, spec.Timeout), timeout: spec.Timeout, url: broker.address.url}, nil
}

// Dispatch publishes one message and reports what the evidence says about it.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := deadline.Within(ctx, a.timeout)
	defer cancel()
	routed, err := tool.render(ctx, request)
	if err != nil {
		return render.Refusal(ctx, err)
	}
	session, err := a.link.session(ctx)
	if err != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: connectFailure(ctx, err)}
	}
	result, timedOut := session.publish(ctx, routed)
	if timedOut && !session.blocked.Load() {
		a.link.retire(session)
	}
	return result
}

// Close ends the connections.
func (a *Adapter) Close() error {
	a.link.close()
	return nil
}
