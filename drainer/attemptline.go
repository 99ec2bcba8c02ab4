package drainer

import (
	"context"
	"log/slog"

	"github.com/agentoutbox/drainer/dispatch"
)

// attemptLine writes the one line that an attempt gets. What all attempts of its
// ending have in common is rendered once. It passes the logger by, which would
// look up where in the program this is: it is always here.
type attemptLine struct {
	level   slog.Level
	handler slog.Handler
}

func newAttemptLine(handler slog.Handler, e ending) attemptLine {
	return attemptLine{levelOf(e.status, e.looksUp), handler.WithAttrs([]slog.Attr{
		slog.String("provider", e.server),
		slog.String("operation", e.operation),
		slog.String("outcome", string(e.outcome)),
		slog.String("status", string(e.status)),
	})}
}

// write leaves out what is zero or empty of all that not every attempt has. Its
// numbers are whole: a fraction would take longer to write than the rest.
func (l attemptLine) write(s *Settlement) {
	ctx := context.Background()
	if !l.handler.Enabled(ctx, l.level) {
		return
	}
	line := slog.NewRecord(s.FinishedAt, l.level, "attempt", 0)
	line.AddAttrs(
		slog.Int64("intent_id", s.Row.IntentID),
		slog.Int("attempt", s.Row.Attempt),
		slog.String("idempotency_key", s.Row.idempotencyKey()),
		slog.Int64("took_us", s.FinishedAt.Sub(s.StartedAt).Microseconds()),
	)
	if s.Row.Lookup {
		line.AddAttrs(slog.Bool("lookup", true))
	}
	if s.Result.HTTPStatus != 0 {
		line.AddAttrs(slog.Int("http_status", s.Result.HTTPStatus))
	}
	if s.Result.ErrorClass != "" {
		line.AddAttrs(slog.String("error", s.Result.ErrorClass))
	}
	if s.Result.Replayed {
		line.AddAttrs(slog.Bool("replayed", true))
	}
	if s.Result.ProviderRef != "" {
		line.AddAttrs(slog.String("provider_ref", s.Result.ProviderRef))
	}
	if s.Decision.Back() {
		line.AddAttrs(slog.Int64("retry_in_us", s.Decision.Delay.Microseconds()))
	}
	_ = l.handler.Handle(ctx, line) // nobody could be told
}

// levelOf calls for a human only where nobody else will find out.
func levelOf(status dispatch.Status, looksUp bool) slog.Level {
	switch {
	case status == dispatch.StatusUnknown && !looksUp:
		return slog.LevelError
	case status == dispatch.StatusUnknown, status == dispatch.StatusFailed:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}
