package rabbitmq

import (
	"errors"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

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
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "unroutable"}
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
		result.Outcome = dispatch.Throttled
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
