// Package postgres is the adapter for a recipient that is a Postgres database:
// an intent becomes a row in its inbox, or the call of a function there.
//
//	Request ──▶ inbox: INSERT … ON CONFLICT DO NOTHING ──────────────────▶ Result
//	        └─▶ function: BEGIN ─▶ SELECT f(…) ─▶ COMMIT or ROLLBACK ─────▶ Result
//
// The database is its own witness: what was not committed has not happened,
// so almost every failure here is known to have had no effect. Doubt is left
// where a commit was asked for and its answer is missing.
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

// closeTimeout bounds the goodbye on a connection that is not used again.
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

// Adapter dispatches to one database, over as many connections as there are
// dispatches at work.
type Adapter struct {
	tools   map[string]tool
	timeout time.Duration
	config  *pgxpool.Config

	mu   sync.Mutex
	pool *pgxpool.Pool // nil until the first dispatch
}

// tool makes one attempt on a connection that is its own meanwhile.
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

// Dispatch makes one attempt and reports what the evidence says about it.
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
	defer func() { put(conn, isAnswer(result.Outcome)) }() // also where the attempt panics
	result = tool.attempt(ctx, conn.Conn(), request)
	return result
}

// Greet logs in to the server, and runs no statement.
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

// acquire takes an idle connection or makes one; the pool asks one that was
// idle for a second whether it still lives.
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

// isAnswer reports whether the recipient lives and takes part. A connection
// that brought anything else may lead to a server that was demoted, or hold a
// plan of a table that has changed: the next attempt makes a new one.
func isAnswer(outcome dispatch.Outcome) bool {
	switch outcome {
	case dispatch.Completed, dispatch.Rejected, dispatch.Absent, dispatch.InFlight:
		return true
	}
	return false
}

// put gives a connection back, or closes it. One that was cut is cleaned up
// behind the pool's back, for as long as its peer likes.
func put(conn *pgxpool.Conn, keep bool) {
	if keep && !conn.Conn().IsClosed() {
		conn.Release()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Hijack().Close(ctx) // the server sees the end of the connection either way
}

// Destinations are the servers that the URL names.
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
