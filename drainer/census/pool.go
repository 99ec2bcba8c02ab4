package census

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/internal/pgpool"
)

// OpenPool connects lazily, with the one connection that a census needs: a lease
// that waited for others' work would be lost for nothing.
func OpenPool(ctx context.Context, databaseURL string) (*pgxpool.Pool, error) {
	return pgpool.Open(ctx, databaseURL, 1)
}
