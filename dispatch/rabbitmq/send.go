package rabbitmq

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// attempt is one message on its way to the broker. The library's calls cannot
// be interrupted, so another goroutine makes them while the dispatch waits. Either
// that publisher first decides to write, or the dispatch first gives up. After a
// dispatch gave up, nothing is written.
type attempt struct {
	decided atomic.Bool
	result  chan dispatch.Result // has room for the one result
}

func (a *attempt) commit() bool { return a.decided.CompareAndSwap(false, true) }
func (a *attempt) giveUp() bool { return a.decided.CompareAndSwap(false, true) }

// publish sends one message and waits for its fate, or for the context's end,
// which it reports as well where it was time that ran out.
func (s *session) publish(ctx context.Context, m routed) (result dispatch.Result, timedOut bool) {
	a := &attempt{result: make(chan dispatch.Result, 1)}
	go s.carry(ctx, a, m)
	select {
	case result := <-a.result:
		return result, false
	case <-ctx.Done():
	}
	timedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
	if a.giveUp() {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Context(ctx)}, timedOut
	}
	select {
	case result := <-a.result: // both ended at once
		return result, false
	default:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: s.silence(ctx)}, timedOut
	}
}

// carry outlives the dispatch, and its context, where the broker answers late
// or never; it ends with the connection at the latest.
func (s *session) carry(ctx context.Context, a *attempt, m routed) {
	if s.blocked.Load() {
		a.result <- blocked
		return
	}
	publisher, err := s.acquire()
	if err != nil {
		a.result <- dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: channelFailure(err)}
		return
	}
	if s.blocked.Load() {
		s.release(publisher)
		a.result <- blocked
		return
	}
	if ctx.Err() == nil && a.commit() {
		a.result <- judge(publisher.publish(m), !s.Alive())
	}
	s.release(publisher)
}

// silence names why there was no answer.
func (s *session) silence(ctx context.Context) string {
	if s.blocked.Load() {
		return "blocked"
	}
	return evidence.Context(ctx)
}

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
func (p *publisher) publish(m routed) answer {
	confirm, err := p.channel.PublishWithDeferredConfirm(m.exchange, m.routingKey, true, false, m.publishing)
	if err != nil {
		// ErrClosed means that a frame was not written. So the broker has no
		// whole message, and stores none.
		return answer{exception: p.exception(), incomplete: errors.Is(err, amqp.ErrClosed), err: err}
	}
	<-confirm.Done()
	select {
	case returned, open := <-p.returned:
		if open {
			return answer{acked: confirm.Acked(), returned: returned.ReplyCode}
		}
	default:
	}
	return answer{acked: confirm.Acked(), ended: p.ended(), exception: p.exception()}
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

// answer is the outcome of one message, as far as its own channel reported it.
type answer struct {
	acked      bool
	returned   uint16      // the reply code of a return, or 0
	ended      bool        // the channel is over
	exception  *amqp.Error // why the channel closed; nil if the broker gave no reason
	incomplete bool        // a frame of the message was never written
	err        error       // from writing
}

// blocked is the result during an alarm of the broker: nothing is published.
var blocked = dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "blocked"}

// judge says what the evidence proves. After a nack some of the queues may have
// the message, and when a connection ends it is unknown what the broker had done.
func judge(e answer, connectionEnded bool) dispatch.Result {
	switch {
	case e.returned != 0:
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "unroutable", OfOperation: true}
	case e.acked:
		return dispatch.Result{Outcome: dispatch.Completed}
	case e.exception != nil && e.exception.Server && !connectionEnded:
		return judgeException(e.exception)
	case e.incomplete:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "reset"}
	case e.exception != nil && e.exception.Server:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: exceptionClass(e.exception.Code)}
	case e.ended || e.err != nil:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "reset"}
	default:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "nacked"}
	}
}

// judgeException reads why the broker closed the channel. It checks a message
// before it routes it, so these refusals are without an effect; of an exchange
// that does not exist yet, another attempt may find it.
func judgeException(exception *amqp.Error) dispatch.Result {
	result := dispatch.Result{
		Outcome:    dispatch.Ambiguous,
		ErrorClass: exceptionClass(exception.Code),
		Problem:    &dispatch.Problem{Title: strconv.Itoa(exception.Code), Detail: evidence.Text(exception.Reason)},
	}
	switch exception.Code {
	case amqp.NotFound:
		result.Outcome, result.OfOperation = dispatch.Throttled, true
	case amqp.AccessRefused:
		result.Outcome = dispatch.Forbidden
	case amqp.PreconditionFailed, amqp.ContentTooLarge:
		result.Outcome = dispatch.Rejected
	}
	return result
}

// channelFailure names why no channel could be opened: nothing was published.
func channelFailure(err error) string {
	var exception *amqp.Error
	switch {
	case errors.Is(err, amqp.ErrChannelMax):
		return "channels_exhausted"
	case errors.As(err, &exception) && exception.Server:
		return exceptionClass(exception.Code)
	default:
		return "reset"
	}
}

// exceptionClass names a reply code (AMQP 0-9-1, 1.2).
func exceptionClass(code int) string {
	switch code {
	case amqp.ContentTooLarge:
		return "content_too_large"
	case amqp.ConnectionForced:
		return "connection_forced"
	case amqp.AccessRefused:
		return "access_refused"
	case amqp.NotFound:
		return "no_exchange"
	case amqp.PreconditionFailed:
		return "precondition_failed"
	}
	return "amqp_" + strconv.Itoa(code)
}
