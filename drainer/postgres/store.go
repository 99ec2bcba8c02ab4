// Package postgres is the outbox in PostgreSQL: every statement of the hot
// path, one .sql file each, and the transactions around them.
//
// Locks are taken in one order (worker, claim, attempt, queue), claiming never
// waits for a lock, and every statement is written for READ COMMITTED.
package postgres

import (
	"context"
	_ "embed"
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
	// controlConnections are a pool of their own, so that heartbeats never queue
	// behind turns.
	controlConnections = 2
)

// Store implements [drainer.Store]. Create one with [Open].
type Store struct {
	turns   *pgxpool.Pool
	control *pgxpool.Pool
}

var _ drainer.Store = (*Store)(nil)

// Open connects lazily: the database may come up later. Behind PgBouncer in
// transaction mode, put default_query_exec_mode=exec into the URL.
func Open(ctx context.Context, databaseURL string) (*Store, error) {
	turns, err := open(ctx, databaseURL, turnConnections)
	if err != nil {
		return nil, err
	}
	control, err := open(ctx, databaseURL, controlConnections)
	if err != nil {
		turns.Close()
		return nil, err
	}
	return &Store{turns: turns, control: control}, nil
}

func open(ctx context.Context, databaseURL string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = connections
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	// The role's default could be stricter, and the statements would fail.
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	return pool, nil
}

// Close waits for connections in use.
func (s *Store) Close() {
	s.turns.Close()
	s.control.Close()
}
