// Package postgres is the adapter for a recipient that is a Postgres database. An intent becomes a row in its inbox,
// or the call of a function there.
//
//	Request ──▶ inbox: INSERT … ON CONFLICT DO NOTHING ──────────────────▶ Result
//	        └─▶ function: BEGIN ─▶ SELECT f(…) ─▶ COMMIT or ROLLBACK ─────▶ Result
//
// A transaction that was not committed has no effect, so almost every failure here is known to have had no effect.
// Doubt remains only if a commit was sent and its answer is missing.
package postgres

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
)

// closeTimeout bounds the orderly close of a connection that is not used again.
const closeTimeout = time.Second

// Kind registers the adapter as "postgres".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "postgres",
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter dispatches to one database. It opens as many connections as dispatches run at once.
type Adapter struct {
	tools   map[string]tool
	timeout time.Duration
	config  *pgxpool.Config

	mu   sync.Mutex
	pool *pgxpool.Pool // nil until the first dispatch
}

// tool makes one attempt on a connection that no other dispatch uses meanwhile.
type tool interface {
	attempt(ctx context.Context, conn *pgx.Conn, request dispatch.Request) dispatch.Result
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. The errors name fields and never repeat a value.
func New(spec dispatch.Spec) (*Adapter, error) {
	config, err := newPoolConfig(spec)
	tools, toolsErr := adapter.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (tool, error) { return newTool(spec) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	return &Adapter{tools: tools, timeout: spec.Timeout, config: config}, nil
}

// Dispatch makes one attempt and returns the result that the evidence proves.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	conn, err := a.acquire(ctx)
	if err != nil {
		return unconnected(ctx, err)
	}
	result := dispatch.Result{Outcome: dispatch.Ambiguous}
	defer func() { put(conn, isAnswer(result.Outcome)) }() // also if the attempt panics
	result = tool.attempt(ctx, conn.Conn(), request)
	return result
}

// Greet logs in to the server. It runs no statement.
func (a *Adapter) Greet(ctx context.Context) dispatch.Result {
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	conn, err := a.acquire(ctx)
	if err != nil {
		return unconnected(ctx, err)
	}
	put(conn, true)
	return dispatch.Result{Outcome: dispatch.Completed}
}

// Close closes the connections.
func (a *Adapter) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool != nil {
		a.pool.Close()
	}
	return nil
}

// acquire takes an idle connection or opens one. The pool pings a connection that was idle for a second.
func (a *Adapter) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	pool, err := a.opened()
	if err != nil {
		return nil, err
	}
	return pool.Acquire(ctx)
}

func (a *Adapter) opened() (*pgxpool.Pool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool == nil {
		pool, err := pgxpool.NewWithConfig(context.Background(), a.config)
		if err != nil {
			return nil, err
		}
		a.pool = pool
	}
	return a.pool, nil
}

// isAnswer reports whether the connection can be kept. After any other outcome the connection may lead to a server
// that was demoted, or hold a plan of a table that has changed, so the next attempt opens a new one.
func isAnswer(outcome dispatch.Outcome) bool {
	switch outcome {
	case dispatch.Completed, dispatch.Rejected, dispatch.Absent, dispatch.InFlight:
		return true
	}
	return false
}

// put returns a connection to the pool, or closes it. The driver cleans up a connection that was cut, which may take
// as long as its peer likes, so put removes that connection from the pool.
func put(conn *pgxpool.Conn, keep bool) {
	if keep && !conn.Conn().IsClosed() {
		conn.Release()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Hijack().Close(ctx) // the server sees the end of the connection even after an error
}

// Destinations returns the servers of the URL.
func (a *Adapter) Destinations() []dispatch.Destination {
	config := a.config.ConnConfig
	use := dispatch.PlainText
	if config.TLSConfig != nil {
		use = dispatch.UpgradedTLS
	}
	all := []dispatch.Destination{destination(config.Host, config.Port, use)}
	for _, next := range config.Fallbacks {
		if another := destination(next.Host, next.Port, use); !slices.Contains(all, another) {
			all = append(all, another)
		}
	}
	return all
}

func destination(host string, port uint16, use dispatch.TLSUse) dispatch.Destination {
	return dispatch.Destination{Network: "tcp", Address: net.JoinHostPort(host, strconv.Itoa(int(port))), TLS: use}
}
