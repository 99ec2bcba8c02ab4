// Package postgres is the outbox in PostgreSQL: every statement of the hot
// path, one .sql file each, and the transactions around them.
//
// Locks are taken in one order (worker, claim, attempt, queue), claiming never
// waits for a lock, and every statement is written for READ COMMITTED.
package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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
func Open(ctx context.Context, databaseURL string) (*Store, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	store := &Store{}
	for pool, connections := range map[**pgxpool.Pool]int32{
		&store.turns: turnConnections, &store.control: controlConnections, &store.life: lifeConnections,
	} {
		if *pool, err = open(ctx, config.Copy(), connections); err != nil {
			store.Close()
			return nil, err
		}
	}
	return store, nil
}

// sessionSQL frees what a worker that froze or vanished holds: another one
// cannot recover claims that are still locked. The isolation is set because the
// role's default could be stricter, and the statements would fail.
const sessionSQL = `
	SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;
	SET idle_in_transaction_session_timeout = '10s';
	SET tcp_user_timeout = '10s';
	SET tcp_keepalives_idle = 5;
	SET tcp_keepalives_interval = 2;
	SET tcp_keepalives_count = 3`

func open(ctx context.Context, config *pgxpool.Config, connections int32) (*pgxpool.Pool, error) {
	config.MaxConns = connections
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := conn.PgConn().Exec(ctx, sessionSQL).Close(); err != nil {
			return fmt.Errorf("prepare the database session: %w", err)
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	return pool, nil
}

// Close waits for connections in use.
func (s *Store) Close() {
	for _, pool := range []*pgxpool.Pool{s.turns, s.control, s.life} {
		if pool != nil {
			pool.Close()
		}
	}
}
