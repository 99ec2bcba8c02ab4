package pgpool

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// longestStatement is for statements whose caller sets no end, as some of
// River's. On a connection that is dead without a word they would never return.
const longestStatement = 10 * time.Second

// patience ends such statements. pgx asks it before and after each one.
type patience struct{}

type cancelKey struct{}

func (patience) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if _, ends := ctx.Deadline(); ends {
		return ctx
	}
	ctx, cancel := context.WithTimeout(ctx, longestStatement)
	return context.WithValue(ctx, cancelKey{}, cancel)
}

func (patience) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if cancel, set := ctx.Value(cancelKey{}).(context.CancelFunc); set {
		cancel()
	}
}
