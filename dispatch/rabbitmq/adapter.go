// Package rabbitmq publishes intents to an exchange of a RabbitMQ broker (AMQP 0-9-1). Messages are persistent and
// mandatory, and the broker confirms them.
//
//	Request ──tool.render──▶ message ──session──▶ publisher ──▶ answer ──judge──▶ Result
//
// One dispatch publishes at most one message. The exchange and the routing key come from the configuration alone. A
// provider has one connection. Each message has its own channel on that connection until it is answered, so a
// confirm, a return or a channel exception can only concern that message.
package rabbitmq

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/sharedconn"
)

// Kind registers the adapter as "rabbitmq". RabbitMQ does not recognise idempotency keys. A key_idempotent tool
// promises that its consumers recognise a message id for the ttl of the key.
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
	tools    map[string]*tool
	sessions *sharedconn.Shared[*session]
	timeout  time.Duration
	grace    time.Duration // how long messages under way may still take after their session was retired
	url      string
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	address, err := newAddress(spec.Settings)
	tools, toolsErr := adapter.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (*tool, error) { return newTool(spec.Settings) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	limit := connectTimeout
	if spec.Timeout > 0 {
		limit = spec.Timeout
	}
	connect := func(ctx context.Context) (*session, error) { return connect(ctx, address, spec.Network) }
	return &Adapter{tools: tools, sessions: sharedconn.New(connect, limit), timeout: spec.Timeout, grace: limit, url: address.url}, nil
}

// Dispatch publishes one message and returns the result that the evidence proves.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	routed, err := tool.render(ctx, request)
	if err != nil {
		return render.Refusal(ctx, err)
	}
	session, err := a.sessions.Get(ctx)
	if err != nil {
		return unconnected(ctx, err)
	}
	result, timedOut := session.publish(ctx, routed)
	if timedOut && !session.blocked.Load() && a.sessions.Forget(session) {
		session.retired <- a.grace // the broker is silent, but other messages may still get their answers
	}
	return result
}

// Greet connects to the broker. It publishes nothing.
func (a *Adapter) Greet(ctx context.Context) dispatch.Result {
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	if _, err := a.sessions.Get(ctx); err != nil {
		return unconnected(ctx, err)
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

// Close ends the connections.
func (a *Adapter) Close() error {
	a.sessions.Close()
	return nil
}

// Destinations returns the address of the broker.
func (a *Adapter) Destinations() []dispatch.Destination {
	broker, err := amqp.ParseURI(a.url)
	if err != nil {
		return nil // New refused it
	}
	use := dispatch.PlainText
	if broker.Scheme == "amqps" {
		use = dispatch.ImplicitTLS
	}
	return []dispatch.Destination{{Network: "tcp", Address: net.JoinHostPort(broker.Host, strconv.Itoa(broker.Port)), TLS: use}}
}
