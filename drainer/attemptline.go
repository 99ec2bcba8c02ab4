package drainer

import (
	"context"
	"log/slog"

	"github.com/agentoutbox/drainer/dispatch"
)

// line writes the one line that an attempt gets. It passes the logger by, which
// would look up where in the program this is: it is always here.
func (o *observer) line(s *Settlement, operation string) {
	ctx, level, handler := context.Background(), levelOf(s.Decision), o.log.Handler()
	if !handler.Enabled(ctx, level) {
		return
	}
	line := slog.NewRecord(s.FinishedAt, level, "attempt", 0)
	line.AddAttrs(lineAttrs(s, operation)...)
	_ = handler.Handle(ctx, line) // nobody could be told
}

// lineAttrs leave out what is zero or empty of all that not every attempt has.
// Their numbers are whole: a fraction would take longer to write than the rest.
func lineAttrs(s *Settlement, operation string) []slog.Attr {
	attrs := make([]slog.Attr, 0, 14)
	attrs = append(attrs,
		slog.String("provider", s.Row.server()),
		slog.String("operation", operation),
		slog.Int64("intent_id", s.Row.IntentID),
		slog.Int("attempt", s.Row.Attempt),
		slog.String("idempotency_key", s.Row.idempotencyKey()),
		slog.String("outcome", string(s.Result.Outcome)),
		slog.String("status", string(s.Decision.Status)),
		slog.Int64("took_us", s.FinishedAt.Sub(s.StartedAt).Microseconds()),
	)
	if s.Row.Lookup {
		attrs = append(attrs, slog.Bool("lookup", true))
	}
	if s.Result.HTTPStatus != 0 {
		attrs = append(attrs, slog.Int("http_status", s.Result.HTTPStatus))
	}
	if s.Result.ErrorClass != "" {
		attrs = append(attrs, slog.String("error", s.Result.ErrorClass))
	}
	if s.Result.Replayed {
		attrs = append(attrs, slog.Bool("replayed", true))
	}
	if s.Result.ProviderRef != "" {
		attrs = append(attrs, slog.String("provider_ref", s.Result.ProviderRef))
	}
	if s.Decision.Back() {
		attrs = append(attrs, slog.Int64("retry_in_us", s.Decision.Delay.Microseconds()))
	}
	return attrs
}

// levelOf calls for a human only where nobody else will find out.
func levelOf(decision dispatch.Decision) slog.Level {
	switch {
	case decision.Status == dispatch.StatusUnknown && !decision.Lookup:
		return slog.LevelError
	case decision.Status == dispatch.StatusUnknown, decision.Status == dispatch.StatusFailed:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}
