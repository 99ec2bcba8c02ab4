package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
)

// windowAge is how long a stream's configuration is believed.
const windowAge = time.Minute

// window is how long a stream recognises a key, and when that was learned.
type window struct {
	length time.Duration
	asked  time.Time
}

// vouchFor asks, for a tool whose key is to be recognised, whether the stream
// recognises one for that long. Nothing is sent where it does not: the engine
// would repeat a message that the stream takes for a new one. The intent
// stays, and goes out once the configuration or the stream is put right.
func (l *link) vouchFor(ctx context.Context, tool *tool) (refusal dispatch.Result, vouched bool) {
	if tool.class != dispatch.KeyIdempotent {
		return dispatch.Result{}, true
	}
	length, err := l.windowOf(ctx, tool)
	switch {
	case err != nil:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: l.unreadClass(ctx, err)}, false
	case length < tool.keyTTL:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "duplicate_window_too_short"}, false
	}
	return dispatch.Result{}, true
}

func (l *link) windowOf(ctx context.Context, tool *tool) (time.Duration, error) {
	key := tool.subject + " " + tool.stream
	l.mu.Lock()
	known := l.windows[key]
	l.mu.Unlock()
	if time.Since(known.asked) < windowAge {
		return known.length, nil
	}
	asked := time.Now()
	length, err := l.readWindow(ctx, tool)
	if err != nil || length < tool.keyTTL {
		return length, err // asked again next time: somebody is about to mend it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.windows[key] = window{length, asked}
	return length, nil
}

func (l *link) readWindow(ctx context.Context, tool *tool) (time.Duration, error) {
	name := tool.stream
	if name == "" {
		listening, err := l.js.StreamNameBySubject(ctx, tool.subject)
		if err != nil {
			return 0, fmt.Errorf("finding the stream of a subject: %w", err)
		}
		name = listening
	}
	stream, err := l.js.Stream(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("reading the configuration of a stream: %w", err)
	}
	return stream.CachedInfo().Config.Duplicates, nil
}

// unreadClass says why the stream's configuration is not known.
func (l *link) unreadClass(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "stream_not_found"
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled),
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return "jetstream_not_enabled"
	case ctx.Err() != nil, !l.isUp():
		return l.silence(ctx)
	}
	return "stream_unreadable"
}
