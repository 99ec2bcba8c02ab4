// Package deadline bounds a dispatch.
package deadline

import (
	"context"
	"time"
)

// Within ends the context after limit at the latest; zero is no limit. One that
// ends by then anyway is returned as it is.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if end, has := ctx.Deadline(); limit <= 0 || has && time.Until(end) <= limit {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}
