package rabbitmq

import (
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// publisher is a channel in confirm mode with at most one message under way.
type publisher struct {
	channel  *amqp.Channel
	returned chan amqp.Return
	closed   chan *amqp.Error
}

// Both notifications have room for the only one that can come, so the
// connection's reader never waits for us.
func newPublisher(connection *amqp.Connection) (*publisher, error) {
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	return &publisher{
		channel:  channel,
		returned: channel.NotifyReturn(make(chan amqp.Return, 1)),
		closed:   channel.NotifyClose(make(chan *amqp.Error, 1)),
	}, nil
}

func (p *publisher) ended() bool { return p.channel.IsClosed() }

// publish waits for the answer, without bound: the end of the connection is an
// answer as well.
//
// A return comes before the confirm of the same message, and the end of a
// channel before the library gives up on its confirms, so both can be read
// here once the confirm is done.
func (p *publisher) publish(m routed) evidence {
	confirm, err := p.channel.PublishWithDeferredConfirm(m.exchange, m.routingKey, true, false, m.publishing)
	if err != nil {
		// ErrClosed comes before a frame is written: the broker lacks at
		// least that one, and half a message is none.
		return evidence{exception: p.exception(), incomplete: errors.Is(err, amqp.ErrClosed), err: err}
	}
	<-confirm.Done()
	select {
	case returned, open := <-p.returned:
		if open {
			return evidence{acked: confirm.Acked(), returned: returned.ReplyCode}
		}
	default:
	}
	return evidence{acked: confirm.Acked(), ended: p.ended(), exception: p.exception()}
}

// exception is why the channel ended, if the reason is known.
func (p *publisher) exception() *amqp.Error {
	select {
	case exception := <-p.closed:
		return exception
	default:
		return nil
	}
}
