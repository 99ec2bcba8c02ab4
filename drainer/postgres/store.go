// Package postgres is the outbox in PostgreSQL: every statement of the hot
// path, one .sql file each, and the transactions around them.
//
// Locks are taken in one order (worker, claim, attempt, queue), claiming never
// waits for a lock, and every statement is written for READ COMMITTED.
package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

const (
	// turnConnections serve the lanes; more than a few do not make Postgres
	// commit faster.
	turnConnections = 4
	// controlConnections serve recovery, which may take long, and what workers share.
	controlConnections = 2
	// lifeConnections serve heartbeats alone: a beat that queues behind anything
	// could cost a healthy worker its lease.
	lifeConnections = 1
)

// Store implements [drainer.Store]. Create one with [Open].
type Store struct {
	turns   *pgxpool.Pool
	control *pgxpool.Pool
	life    *pgxpool.Pool
}

var _ drainer.Store = (*Store)(nil)

// Open connects lazily: the database may come up later. Behind PgBouncer in
// transaction mode, put default_query_exec_mode=exec into the URL.
func Open(ctx context.Context, databaseURL string) (store *Store, err error) {
	store = &Store{}
	for _, wanted := range []struct {
		pool        **pgxpool.Pool
		connections int32
		settings    []string
	}{
		{&store.turns, turnConnections, []string{planSQL, transactionTimeout("10s")}},
		{&store.control, controlConnections, []string{transactionTimeout("1min")}},
		{&store.life, lifeConnections, nil},
	} {
		if *wanted.pool, err = pgpool.Open(ctx, databaseURL, wanted.connections, wanted.settings...); err != nil {
			store.Close()
			return nil, err
		}
	}
	return store, nil
}

// planSQL plans each statement of a turn once, for planning takes longer than
// claiming a few rows. The plan may be made while the queue is empty and is kept
// while it grows, so it has to go by the indexes. No turn is worth compiling.
const planSQL = `
	SET plan_cache_mode = force_generic_plan;
	SET enable_seqscan = off;
	SET enable_bitmapscan = off;
	SET jit = off`

// transactionTimeout ends a transaction whose statements stopped coming in the
// middle of a batch: it holds the locks of its claims, is not idle by Postgres's
// reckoning, and the end of a dead peer can lie behind a proxy that is alive.
// Postgres has it from version 17 on.
func transactionTimeout(longest string) string {
	return `SELECT set_config('transaction_timeout', '` + longest + `', false) WHERE current_setting('transaction_timeout', true) IS NOT NULL`
}

// Close waits for connections in use.
func (s *Store) Close() {
	for _, pool := range []*pgxpool.Pool{s.turns, s.control, s.life} {
		if pool != nil {
			pool.Close()
		}
	}
}
