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

// attempt is one message on its way to the broker. The library's calls cannot be interrupted, so another goroutine
// makes them while the dispatch waits. Either that goroutine decides first to write the message, or the dispatch
// gives up first. After the dispatch has given up, nothing is written.
type attempt struct {
	decided atomic.Bool
	result  chan dispatch.Result // buffered for the only result
}

func (a *attempt) commit() bool { return a.decided.CompareAndSwap(false, true) }
func (a *attempt) giveUp() bool { return a.decided.CompareAndSwap(false, true) }

// publish sends one message and waits for its result, or for the end of ctx. timedOut reports that the deadline of
// ctx passed.
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
	case result := <-a.result: // the result and the end of ctx came at the same time
		return result, false
	default:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: s.silence(ctx)}, timedOut
	}
}

// carry sends the message. If the broker answers late or never, carry outlives the dispatch and its context, and
// ends with the connection at the latest.
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

// silence returns the error class of a missing answer.
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

// newPublisher opens a channel. The channel's notifications are buffered for the only one that each can get, so the
// connection's reader never waits for a dispatch.
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

// publish sends the message and waits for its answer without a time limit. The end of the connection is an answer as
// well.
//
// A return comes before the confirm of the same message, and the library reports the end of a channel before it ends
// the channel's open confirms. So both can be read here once the confirm is done.
func (p *publisher) publish(m routed) answer {
	confirm, err := p.channel.PublishWithDeferredConfirm(m.exchange, m.routingKey, true, false, m.publishing)
	if err != nil {
		// ErrClosed means that a frame was not written. So the broker has only a part of the message, and does not
		// store it.
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

// exception returns why the channel ended, or nil if the reason is not known.
func (p *publisher) exception() *amqp.Error {
	select {
	case exception := <-p.closed:
		return exception
	default:
		return nil
	}
}

// answer is the outcome of one message, as reported on its own channel.
type answer struct {
	acked      bool
	returned   uint16      // the reply code of a return, or 0
	ended      bool        // the channel has ended
	exception  *amqp.Error // why the channel closed; nil if the broker gave no reason
	incomplete bool        // a frame of the message was never written
	err        error       // of the write
}

// blocked is the result during an alarm of the broker. Nothing is published.
var blocked = dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "blocked"}

// judge returns the outcome that the answer proves. After a nack, some of the queues may have the message. When a
// connection ends, it is not known whether the broker had handled the message.
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

// judgeException judges an exception of the channel. The broker checks a message before it routes it, so these
// refusals have no effect. If the exchange does not exist yet, a later attempt may find it.
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

// channelFailure returns the error class of a channel that could not be opened. Nothing was published.
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

// exceptionClass returns the error class of a reply code (AMQP 0-9-1, 1.2).
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
