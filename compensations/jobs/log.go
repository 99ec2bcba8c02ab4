package jobs

import (
	"context"
	"log/slog"
)

// quiet passes on what somebody has to look at. Every few seconds River says how
// many jobs it has, and nobody would find the attempts between that.
type quiet struct{ to slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && q.to.Enabled(ctx, level)
}

func (q quiet) Handle(ctx context.Context, record slog.Record) error { return q.to.Handle(ctx, record) }

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.to.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.to.WithGroup(name)} }
