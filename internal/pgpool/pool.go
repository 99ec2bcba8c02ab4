// Package pgpool opens a daemon's pools of database connections, so that neither side waits long for a lost peer.
// The daemon leaves a server that hangs, vanished or only reads. The server releases the locks of a daemon that
// froze or vanished.
package pgpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connectTimeout = 5 * time.Second
	// pingTimeout tests a connection that was idle. If it is dead, a new connection is ready sooner than an
	// answer.
	pingTimeout = 3 * time.Second
	// closeGrace is how long an abandoned connection may keep its place in the pool, so that the server is
	// notified of its end.
	closeGrace = 2 * time.Second
	// statements is far above the number that a daemon prepares on one connection. Each connection reserves room
	// for as many.
	statements = 64
)

// dialer notices a dead host about as soon as the server notices a dead daemon.
var dialer = net.Dialer{
	Timeout:         connectTimeout, // also for cancel requests
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
}

// Open connects lazily, because the database may start later. A pooler in front of it accepts no session settings,
// so each transaction makes its own: see [Transaction].
func Open(ctx context.Context, database *Database, connections int32) (*pgxpool.Pool, error) {
	config, _, err := database.config()
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	config.PingTimeout = pingTimeout
	config.BeforeClose = boundClose
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.DialFunc = dialer.DialContext
	config.ConnConfig.StatementCacheCapacity = min(config.ConnConfig.StatementCacheCapacity, statements)
	config.ConnConfig.DescriptionCacheCapacity = min(config.ConnConfig.DescriptionCacheCapacity, statements)
	config.ConnConfig.Tracer = observer{database}
	config.ConnConfig.OnNotice = noteCancelledWait
	config.BeforeConnect = database.BeforeConnect
	leaveReadOnly(&config.ConnConfig.Config)
	begin(config, session)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	return pool, nil
}

// boundClose bounds the wait for the end of an abandoned connection. A dead peer never sends it, and in a pool
// with few connections the daemon would have none meanwhile.
func boundClose(conn *pgx.Conn) {
	if conn.IsClosed() {
		end := conn.PgConn().Conn()
		time.AfterFunc(closeGrace, func() { _ = end.Close() })
	}
}

// Path is the search_path of every statement of daemon and CLI. Names of the outbox are written with their schema.
// So no schema in which others can create objects is searched.
const Path = "pg_catalog, pg_temp"

// session limits how long a frozen or vanished worker holds locks, because another worker cannot reclaim rows that
// are locked. The isolation is set because the role's default could be stricter, and statements would fail. JIT is
// off because the planner expects many rows where a statement reads few: it would compile each search for stuck
// rows for 200 ms, to run it for one.
var session = map[string]string{
	"search_path":                         Path,
	"default_transaction_isolation":       "read committed",
	"jit":                                 "off",
	"idle_in_transaction_session_timeout": "10s",
	"tcp_user_timeout":                    "10s",
	"tcp_keepalives_idle":                 "5",
	"tcp_keepalives_interval":             "2",
	"tcp_keepalives_count":                "3",
}

// Transaction begins every transaction of daemon and CLI. A pooler may give each transaction another server
// connection, and accepts no settings at login. So they are made again, for this transaction only.
var Transaction = pgx.TxOptions{BeginQuery: `BEGIN ISOLATION LEVEL READ COMMITTED;
	SET LOCAL search_path = ` + Path + `;
	SET LOCAL jit = off;
	SET LOCAL idle_in_transaction_session_timeout = '10s';
	SET LOCAL tcp_user_timeout = '10s'`}

// Connect opens a connection with the search_path of daemon and CLI.
func Connect(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	plain := config.Copy()
	config.RuntimeParams["search_path"] = Path
	conn, err := pgx.ConnectConfig(ctx, config)
	if refusesSettings(err) {
		conn, err = pgx.ConnectConfig(ctx, plain)
	}
	return conn, err
}

// Pin sets the search_path of daemon and CLI for the connections of a pool.
func Pin(config *pgxpool.Config) { begin(config, map[string]string{"search_path": Path}) }

// begin starts each session with settings. They are sent at login and never by SET: PgBouncer refuses them at
// login, and a SET would stay on its server connection, which another client may get next.
func begin(config *pgxpool.Config, settings map[string]string) {
	var known, refused atomic.Bool
	keeps := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(conn *pgconn.PgConn, refusal *pgconn.PgError) bool {
		if refusesSettings(refusal) { // a pooler has been added since
			refused.Store(true)
		}
		return keeps(conn, refusal)
	}
	prepare := config.BeforeConnect
	config.BeforeConnect = func(ctx context.Context, next *pgx.ConnConfig) error {
		if prepare != nil {
			if err := prepare(ctx, next); err != nil {
				return err
			}
		}
		if !refused.Load() {
			maps.Copy(next.RuntimeParams, settings)
		}
		if known.Load() {
			return nil
		}
		start := time.Now()
		conn, err := pgconn.ConnectConfig(ctx, &next.Config)
		switch {
		case err == nil:
			known.Store(true)
			return conn.Close(ctx)
		case refusesSettings(err):
			known.Store(true)
			for name := range settings {
				delete(next.RuntimeParams, name)
			}
			return nil
		}
		if watched, is := next.Tracer.(pgx.ConnectTracer); is {
			watched.TraceConnectEnd(context.WithValue(ctx, startKey{}, start), pgx.TraceConnectEndData{Err: err})
		}
		return fmt.Errorf("first connection: %w", err)
	}
}

// refusesSettings recognises PgBouncer's refusal of a start-up parameter.
func refusesSettings(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && refusal.Code == protocolViolation && strings.Contains(refusal.Message, "startup parameter")
}

const readOnlyTransaction = "25006"

// leaveReadOnly closes a connection to a server that refuses writes, such as a primary that returned as a standby.
// The daemon finds the new primary by reconnecting, and never by asking the same server again.
func leaveReadOnly(config *pgconn.Config) {
	keeps := config.OnPgError
	config.OnPgError = func(conn *pgconn.PgConn, refusal *pgconn.PgError) bool {
		return refusal.Code != readOnlyTransaction && keeps(conn, refusal)
	}
}

const cancelledWait = "the wait for a synchronous standby was cancelled"

// noteCancelledWait marks a connection whose commit is on this server only. Postgres sends a warning, in any
// language, from the routine that waits for the standby.
func noteCancelledWait(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[cancelledWait] = true
	}
}

// WaitWasCancelled reports whether a commit on the connection may be missing on the synchronous standby, and
// clears the mark.
func WaitWasCancelled(conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	defer delete(data, cancelledWait)
	return data[cancelledWait] != nil
}

// longestStatement bounds statements whose caller sets no deadline, such as some of River's. On a dead connection
// they would never return.
const longestStatement = 10 * time.Second

// observer sets this bound, and notes how connects and statements end. pgx calls it before and after each.
type observer struct{ database *Database }

type startKey struct{}

func (observer) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return context.WithValue(ctx, startKey{}, time.Now())
}

func (o observer) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	start, _ := ctx.Value(startKey{}).(time.Time)
	o.database.connected(start, data.Err)
}

type cancelKey struct{}

func (observer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if _, ends := ctx.Deadline(); ends {
		return ctx
	}
	ctx, cancel := context.WithTimeout(ctx, longestStatement)
	return context.WithValue(ctx, cancelKey{}, cancel)
}

func (o observer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	o.database.answered(data.Err)
	if cancel, set := ctx.Value(cancelKey{}).(context.CancelFunc); set {
		cancel()
	}
}
