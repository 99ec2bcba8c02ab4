package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// publish writes the message to the connection once and waits for the acknowledgement.
func (c *connection) publish(ctx context.Context, tool *tool, message *nats.Msg) dispatch.Result {
	if ctx.Err() != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Context(ctx)}
	}
	future, err := c.js.PublishMsgAsync(message, jetstream.WithRetryAttempts(0))
	if err != nil {
		return unwritten(ctx, err)
	}
	select {
	case acknowledged := <-future.Ok():
		return stored(acknowledged)
	case err := <-future.Err():
		return tool.judge(err)
	case <-c.lost:
	case <-ctx.Done():
	}
	return c.unanswered(ctx, future)
}

// unanswered is the result of a message without an acknowledgement. If the acknowledgement came at the last moment,
// unanswered still uses it.
func (c *connection) unanswered(ctx context.Context, future jetstream.PubAckFuture) dispatch.Result {
	select {
	case acknowledged := <-future.Ok():
		return stored(acknowledged)
	default:
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: c.silence(ctx)}
}

// unwritten is the result of a message that the connection refused. The errors below occur before anything is put
// into the connection's buffer. Any other error may come from writing the buffer out.
func unwritten(ctx context.Context, err error) dispatch.Result {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "message_too_large", Unsent: true}
	case errors.Is(err, nats.ErrHeadersNotSupported):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "headers_not_supported", Unsent: true}
	case errors.Is(err, nats.ErrBadSubject):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "subject", Unsent: true}
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining), errors.Is(err, nats.ErrReconnectBufExceeded):
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "disconnected"}
	case errors.Is(err, jetstream.ErrTooManyStalledMsgs):
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "too_many_unacknowledged"}
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: evidence.Sent(ctx, err)}
}

// windowAge is for how long a known stream configuration is used.
const windowAge = time.Minute

// window is a stream's duplicate window, and when it was read.
type window struct {
	length time.Duration
	asked  time.Time
}

// vouchFor checks, for a key_idempotent tool, that the stream's duplicate window is at least as long as the ttl of
// the key. If not, nothing is sent: the engine would repeat a message that the stream takes for a new one. The
// intent stays queued, and is sent once the configuration or the stream is corrected.
func (c *connection) vouchFor(ctx context.Context, tool *tool) (refusal dispatch.Result, vouched bool) {
	if tool.class != dispatch.KeyIdempotent {
		return dispatch.Result{}, true
	}
	length, err := c.windowOf(ctx, tool)
	switch {
	case err != nil:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: c.unreadClass(ctx, err), OfOperation: errors.Is(err, jetstream.ErrStreamNotFound)}, false
	case length < tool.keyTTL:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "duplicate_window_too_short", OfOperation: true}, false
	}
	return dispatch.Result{}, true
}

func (c *connection) windowOf(ctx context.Context, tool *tool) (time.Duration, error) {
	key := tool.subject + " " + tool.stream
	c.mu.Lock()
	known := c.windows[key]
	c.mu.Unlock()
	if time.Since(known.asked) < windowAge {
		return known.length, nil
	}
	asked := time.Now()
	length, err := c.readWindow(ctx, tool)
	if err != nil || length < tool.keyTTL {
		return length, err // not cached: the stream may be corrected before the next attempt
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.windows[key] = window{length, asked}
	return length, nil
}

func (c *connection) readWindow(ctx context.Context, tool *tool) (time.Duration, error) {
	name := tool.stream
	if name == "" {
		listening, err := c.js.StreamNameBySubject(ctx, tool.subject)
		if err != nil {
			return 0, fmt.Errorf("finding the stream of a subject: %w", err)
		}
		name = listening
	}
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("reading the configuration of a stream: %w", err)
	}
	return stream.CachedInfo().Config.Duplicates, nil
}

// unreadClass returns the error class if the stream's configuration cannot be read.
func (c *connection) unreadClass(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "stream_not_found"
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled),
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return "jetstream_not_enabled"
	case ctx.Err() != nil, !c.Alive():
		return c.silence(ctx)
	}
	return "stream_unreadable"
}
