// Package deadline bounds a dispatch.
package deadline

import (
	"context"
	"time"
)

// Within ends the context after limit at the latest; zero is no limit.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}
