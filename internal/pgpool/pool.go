// Package pgpool opens a daemon's pools of database connections, so that neither
// end waits for long for one that is gone: the daemon does not stay with a
// server that hangs, vanished or only reads, and the server does not keep the
// locks of a daemon that froze or vanished.
package pgpool

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connectTimeout = 5 * time.Second
	// pingTimeout is for a connection that was idle: a fresh one is sooner there
	// than the answer of one that is dead.
	pingTimeout = 3 * time.Second
	// lastWords is how long a connection that was given up may keep its place in
	// the pool, so that the server hears of it.
	lastWords = 2 * time.Second
	// statements is far above what a daemon prepares on one connection, and each
	// connection makes room for as many.
	statements = 64
)

// dialer notices a dead host about as soon as the server notices a dead daemon.
var dialer = net.Dialer{
	Timeout:         connectTimeout, // of cancel requests as well
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
}

// Open connects lazily: the database may come up later. settings are statements
// that each new session begins with, beside those of every pool.
func Open(ctx context.Context, databaseURL string, connections int32, settings ...string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = connections
	config.PingTimeout = pingTimeout
	config.BeforeClose = takeLeave
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.DialFunc = dialer.DialContext
	config.ConnConfig.StatementCacheCapacity = min(config.ConnConfig.StatementCacheCapacity, statements)
	config.ConnConfig.DescriptionCacheCapacity = min(config.ConnConfig.DescriptionCacheCapacity, statements)
	config.ConnConfig.Tracer = patience{}
	config.AfterConnect = prepare(strings.Join(append([]string{sessionSQL}, settings...), ";"))
	leaveReadOnly(&config.ConnConfig.Config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	return pool, nil
}

// sessionSQL frees what a worker that froze or vanished holds: another one
// cannot recover rows that are still locked. The isolation is set because the
// role's default could be stricter, and statements would fail.
const sessionSQL = `
	SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;
	SET idle_in_transaction_session_timeout = '10s';
	SET tcp_user_timeout = '10s';
	SET tcp_keepalives_idle = 5;
	SET tcp_keepalives_interval = 2;
	SET tcp_keepalives_count = 3`

func prepare(session string) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		// The pool goes on when nobody waits any more, and keeps the connection's place.
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		if err := conn.PgConn().Exec(ctx, session).Close(); err != nil {
			return fmt.Errorf("prepare the database session: %w", err)
		}
		return nil
	}
}

// takeLeave bounds the wait for the last words of a connection that was given up:
// on one that is dead without a word they never come, and with few connections
// the daemon would be mute meanwhile.
func takeLeave(conn *pgx.Conn) {
	if conn.IsClosed() {
		end := conn.PgConn().Conn()
		time.AfterFunc(lastWords, func() { _ = end.Close() })
	}
}
