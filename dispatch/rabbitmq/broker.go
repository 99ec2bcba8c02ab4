package rabbitmq

import (
	"context"
	"errors"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// broker knows how to connect.
type broker struct {
	address address
	network dispatch.Network
}

func newBroker(spec dispatch.Spec) (broker, error) {
	address, err := newAddress(spec.Settings)
	return broker{address: address, network: spec.Network}, err
}

func amqpURI(text string) (amqp.URI, error) { return amqp.ParseURI(text) }

// connect is bounded by the context; the session that it gives is not.
func (b broker) connect(ctx context.Context) (*session, error) {
	var tcp net.Conn
	release := func() bool { return true }
	conn, err := amqp.DialConfig(b.address.url, amqp.Config{
		Heartbeat:       b.address.heartbeat,
		TLSClientConfig: b.network.TLSConfig(),
		Properties:      amqp.Table{"product": "drainer"},
		Dial: func(network, host string) (_ net.Conn, err error) {
			if tcp, err = b.network.DialContext(ctx, network, host); err != nil {
				return nil, err
			}
			release = context.AfterFunc(ctx, func() { _ = tcp.Close() })
			return tcp, nil
		},
	})
	switch inTime := release(); {
	case !inTime || ctx.Err() != nil:
		err = ctx.Err() // whatever the library made of it
	case err == nil:
		return newSession(conn, tcp), nil
	}
	if tcp != nil {
		_ = tcp.Close() // after a failed handshake the library leaves it open
	}
	return nil, err
}

// connectFailure names why there is no session: nothing was published.
func connectFailure(ctx context.Context, err error) string {
	var refusal *amqp.Error
	switch {
	case ctx.Err() != nil || !errors.As(err, &refusal):
		return failure.Unsent(ctx, err)
	case refusal.Code == amqp.AccessRefused:
		return "auth"
	case refusal.Server:
		return exceptionClass(refusal.Code)
	default:
		return "protocol"
	}
}
