package pgpool

import (
	"context"
	"log/slog"
)

// unrepeated drops warnings whose error is a refused login. About ten lines a second would
// come otherwise, from every loop that needs the database. River's errors are text, which
// shows no cause: they are dropped while the login is refused.
type unrepeated struct {
	slog.Handler
	database *Database
}

func (u unrepeated) Handle(ctx context.Context, record slog.Record) error {
	if record.Level >= slog.LevelWarn && u.repeats(record) {
		return nil
	}
	return u.Handler.Handle(ctx, record)
}

func (u unrepeated) repeats(record slog.Record) (repeats bool) {
	record.Attrs(func(attr slog.Attr) bool {
		if attr.Key != "error" && attr.Key != "err" {
			return true
		}
		if err, is := attr.Value.Any().(error); is {
			repeats = record.Level < slog.LevelError && refusalOf(err) != nil
		} else {
			repeats = u.database.Refusal() != nil
		}
		return false
	})
	return repeats
}

func (u unrepeated) WithAttrs(attrs []slog.Attr) slog.Handler {
	return unrepeated{u.Handler.WithAttrs(attrs), u.database}
}

func (u unrepeated) WithGroup(name string) slog.Handler {
	return unrepeated{u.Handler.WithGroup(name), u.database}
}
