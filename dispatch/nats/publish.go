package nats

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// publish hands the message to the connection once and waits for what becomes
// of it.
func (l *link) publish(ctx context.Context, tool *tool, message *nats.Msg) dispatch.Result {
	if ctx.Err() != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: failure.Context(ctx)}
	}
	future, err := l.js.PublishMsgAsync(message, jetstream.WithRetryAttempts(0))
	if err != nil {
		return unwritten(ctx, err)
	}
	select {
	case acknowledged := <-future.Ok():
		return stored(acknowledged)
	case err := <-future.Err():
		return tool.judge(err)
	case <-l.lost:
	case <-ctx.Done():
	}
	return l.unanswered(ctx, future)
}

// unanswered is the result of a message whose acknowledgement was not waited
// for, unless it came at the last moment.
func (l *link) unanswered(ctx context.Context, future jetstream.PubAckFuture) dispatch.Result {
	select {
	case acknowledged := <-future.Ok():
		return stored(acknowledged)
	default:
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: l.silence(ctx)}
}

// unwritten is the result of a message that the connection did not take. The
// errors below come before anything is put into its buffer; any other may come
// from writing the buffer out.
func unwritten(ctx context.Context, err error) dispatch.Result {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "message_too_large"}
	case errors.Is(err, nats.ErrHeadersNotSupported):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "headers_not_supported"}
	case errors.Is(err, nats.ErrBadSubject):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "subject"}
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrReconnectBufExceeded):
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "disconnected"}
	case errors.Is(err, jetstream.ErrTooManyStalledMsgs):
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "too_many_unacknowledged"}
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: failure.Sent(ctx, err)}
}
