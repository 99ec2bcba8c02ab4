// Package postgres is the outbox in PostgreSQL: every statement of the hot
// path, one .sql file each, and the transactions around them.
//
// Locks are taken in one order (worker, claim, attempt, queue), claiming never
// waits for a lock, and every statement is written for READ COMMITTED.
package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

const (
	// turnConnections serve the lanes. With more of them Postgres does not commit faster.
	turnConnections = 4
	// controlConnections serve recovery, which may take long, and the state that workers share.
	controlConnections = 2
	// lifeConnections serve heartbeats alone: a heartbeat that queues behind other work could
	// cost a healthy worker its lease.
	lifeConnections = 1
)

// rendered is a statement that has several forms.
func rendered(source string, form any) string {
	var statement strings.Builder
	if err := template.Must(template.New("").Parse(source)).Execute(&statement, form); err != nil {
		panic(err) // it is constant
	}
	return statement.String()
}

// Store implements [drainer.Store]. Create one with [Open].
type Store struct {
	batches *pgxpool.Pool
	control *pgxpool.Pool
	life    *pgxpool.Pool
	memory  *memory
}

var _ drainer.Store = (*Store)(nil)

// Open connects lazily: the database may come up later. Behind PgBouncer in
// transaction mode, put default_query_exec_mode=exec into the URL.
func Open(ctx context.Context, database *pgpool.Database) (store *Store, err error) {
	store = &Store{memory: newMemory()}
	for _, wanted := range []struct {
		pool        **pgxpool.Pool
		connections int32
	}{
		{&store.batches, turnConnections},
		{&store.control, controlConnections},
		{&store.life, lifeConnections},
	} {
		if *wanted.pool, err = pgpool.Open(ctx, database, wanted.connections); err != nil {
			store.Close()
			return nil, err
		}
	}
	return store, nil
}

// planSQL is the first statement of a batch. Its settings last for the transaction only: behind a pooler
// the next transaction may get another connection.
//
// Each statement of a batch is planned once, since planning takes longer than claiming a few rows.
// The plan may be made while the queue is empty and is kept while it grows, so it has to use the
// indexes. JIT compilation never pays for a batch.
//
// Warnings are on, because only a warning says that the wait for a synchronous standby was cancelled.
//
// transaction_timeout, which Postgres has from version 17 on, ends a transaction whose statements stopped
// coming in the middle of a batch. Such a transaction holds the locks of its claims and does not
// count as idle. TCP keepalive does not see a dead peer behind a live proxy.
const planSQL = `SELECT
	pg_catalog.set_config('search_path', '` + pgpool.Path + `', true),
	pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true), pg_catalog.set_config('enable_seqscan', 'off', true),
	pg_catalog.set_config('enable_bitmapscan', 'off', true), pg_catalog.set_config('jit', 'off', true),
	pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', true), pg_catalog.set_config('tcp_user_timeout', '10s', true),
	CASE WHEN pg_catalog.current_setting('client_min_messages') = 'error' THEN pg_catalog.set_config('client_min_messages', 'warning', true) END,
	CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL THEN pg_catalog.set_config('transaction_timeout', '10s', true) END`

// recovery begins a transaction that may take longer than a batch.
var recovery = pgx.TxOptions{BeginQuery: pgpool.Transaction.BeginQuery +
	`; SELECT pg_catalog.set_config('transaction_timeout', '1min', true) WHERE pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL`}

// Close waits for connections in use.
func (s *Store) Close() {
	for _, pool := range []*pgxpool.Pool{s.batches, s.control, s.life} {
		if pool != nil {
			pool.Close()
		}
	}
	if s.memory.lock != nil {
		_ = s.memory.lock.Close()
	}
}

var (
	//go:embed sql/finish.sql
	finishSQL string
	//go:embed sql/held.sql
	heldSQL string
	//go:embed sql/hold.sql
	holdSQL string
	//go:embed sql/idle.sql
	idleSQL string
	//go:embed sql/park.sql
	parkSQL string
)

// Commit sends the whole batch in one round trip and one commit: without BEGIN, it is an
// implicit transaction that commits or rolls back as a whole at its Sync. The rows it
// returns are committed, so their caller may send them.
func (s *Store) Commit(ctx context.Context, worker string, batch drainer.Batch) (drainer.BatchReply, error) {
	reply, err := s.commit(ctx, worker, batch)
	if isDataError(err) {
		reply, err = s.commitAround(ctx, worker, batch)
	}
	if err == nil {
		err = s.recordLate(ctx, worker, batch.Settle, reply.Refused)
	}
	if err != nil {
		return drainer.BatchReply{}, err
	}
	return reply, nil
}

// commit first assumes that no row was settled before, and that each undo that is ready can be enqueued. If a
// constraint shows otherwise, it finds out which rows were settled and leaves the undos to a later
// pass of the saga. That happens when a lane repeats a batch whose reply was lost.
func (s *Store) commit(ctx context.Context, worker string, batch drainer.Batch) (drainer.BatchReply, error) {
	reply, err := s.commitOnce(ctx, worker, batch, false)
	if isViolation(err) {
		reply, err = s.commitOnce(ctx, worker, batch, true)
	}
	return reply, err
}

func (s *Store) commitOnce(ctx context.Context, worker string, batch drainer.Batch, repeated bool) (drainer.BatchReply, error) {
	reply := drainer.BatchReply{Claimed: make([]drainer.ClaimReply, len(batch.Claims))}
	var queue pgx.Batch
	var begun time.Time
	queue.Queue(planSQL).Exec(func(pgconn.CommandTag) error { begun = time.Now(); return nil })
	queueHold(&queue, worker, batch)
	settled, places := queuePark(&queue, worker, batch.Settle)
	queueSettle(&queue, worker, settled, repeated, &reply)
	queueFinish(&queue, worker, batch.Finish)
	queueBreakers(&queue, worker, batch.Settle)
	queueIdle(&queue, batch.Claims)
	queueClaims(&queue, worker, s.memory.historyOf(worker), batch.Claims, reply.Claimed, &begun)
	queueHeld(&queue, batch.Claims, reply.Claimed)
	if err := s.send(ctx, &queue); err != nil {
		return drainer.BatchReply{}, fmt.Errorf("batch: %w", err)
	}
	for i, place := range reply.Refused {
		if places != nil {
			reply.Refused[i] = places[place]
		}
	}
	s.memory.remember(worker, batch, reply)
	return reply, nil
}

var errUnreplicated = errors.New("the wait for the synchronous standby was cancelled: a failover may lose the commit")

// send returns nil once the batch is committed, including on a synchronous standby if there is one.
func (s *Store) send(ctx context.Context, queue *pgx.Batch) error {
	conn, err := s.batches.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = conn.SendBatch(ctx, queue).Close()
	if pgpool.WaitWasCancelled(conn.Conn()) && err == nil {
		err = errUnreplicated
	}
	return err
}

// isViolation recognises class 23, "integrity constraint violation", and the outbox's own.
func isViolation(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && (strings.HasPrefix(refusal.Code, "23") || strings.HasPrefix(refusal.Code, "OB"))
}

func queueHold(queue *pgx.Batch, worker string, batch drainer.Batch) {
	if slices.ContainsFunc(batch.Settle, func(s drainer.Settlement) bool { return s.Repeats }) {
		queue.Queue(holdSQL, worker, batch.Finish)
	}
}

// lockParkedSQL waits for a reaper that is settling rows of these claims. Other batches can hold the lock at the
// same time.
const lockParkedSQL = `SELECT FROM outbox.claim WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid ORDER BY claim_id FOR NO KEY UPDATE`

// queuePark queues the settlements that park their row, and returns the others with their indices in the
// batch. The indices are nil if nothing is parked.
func queuePark(queue *pgx.Batch, worker string, settlements []drainer.Settlement) (rest []drainer.Settlement, places []int) {
	isParked := func(s drainer.Settlement) bool { return s.Park != "" }
	if !slices.ContainsFunc(settlements, isParked) {
		return settlements, nil
	}
	var claims, intents []int64
	var lanes []string
	var waits []float64
	places = []int{}
	for i, s := range settlements {
		if isParked(s) {
			claims, intents = append(claims, s.Row.ClaimID), append(intents, s.Row.IntentID)
			lanes, waits = append(lanes, s.Park), append(waits, s.ParkFor.Seconds())
		} else {
			rest, places = append(rest, s), append(places, i)
		}
	}
	queue.Queue(lockParkedSQL, worker, claims)
	queue.Queue(parkSQL, worker, claims, intents, lanes, waits)
	return rest, places
}

func queueFinish(batch *pgx.Batch, worker string, claims []int64) {
	if len(claims) > 0 {
		batch.Queue(finishSQL, worker, claims)
	}
}

func queueIdle(batch *pgx.Batch, claims []drainer.Claim) {
	var providers []string
	var waiting []bool
	for _, claim := range claims {
		if claim.Idle != drainer.IdleUnchanged {
			providers = append(providers, claim.Provider)
			waiting = append(waiting, claim.Idle == drainer.IdleWaiting)
		}
	}
	if len(providers) > 0 {
		batch.Queue(idleSQL, providers, waiting, drainer.IdleFor.Seconds())
	}
}

// column is an array parameter with NULL wherever no value was set. A column without any value is NULL as
// a whole, so it costs nothing to send or to read.
type column[V any] struct {
	values []V                  // a zero value is null
	array  pgtype.FlatArray[*V] // of pointers, because pgx would copy each value to the heap
}

func (c *column[V]) put(rows, i int, value V) {
	if c.array == nil {
		c.begin(rows)
	}
	c.values[i] = value
}

func (c *column[V]) begin(rows int) {
	c.values, c.array = make([]V, rows), make(pgtype.FlatArray[*V], rows)
	for i := range c.values {
		c.array[i] = &c.values[i]
	}
}

func bigint(value int64) pgtype.Int8    { return pgtype.Int8{Int64: value, Valid: true} }
func integer(value int) pgtype.Int4     { return pgtype.Int4{Int32: int32(value), Valid: true} }
func float(value float64) pgtype.Float8 { return pgtype.Float8{Float64: value, Valid: true} }
func text(value string) pgtype.Text     { return pgtype.Text{String: value, Valid: true} }

// errSessionIsShared is returned by Listen where a pooler changes sessions.
var errSessionIsShared = errors.New("a pooler gives one session to several clients")

// Listen wakes lanes by NOTIFY, on a connection of its own outside the pools.
// Rows that came before it listened are found by polling. It fails behind a pooler that gives each transaction
// another session: the LISTEN would stay in a session that serves others, they would get the notifications, and
// PgBouncer from 1.18 to 1.20.0 may die of one (pgbouncer#822).
func (s *Store) Listen(ctx context.Context, wake func(provider string)) error {
	pooled, err := s.control.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))
	if isShared, err := s.sharesSession(ctx, conn); err != nil {
		return fmt.Errorf("listen: %w", err)
	} else if isShared {
		return fmt.Errorf("listen: %w", errSessionIsShared)
	}
	if _, err := conn.Exec(ctx, "LISTEN outbox"); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		wake(notification.Payload)
	}
}

// sharesSession reports whether another client gets the session that conn has just used, or conn gets another one.
// A pooler that shares sessions hands out the one that became free last, unless a third client is faster, so this tries
// a few times. Without a pooler the server has told the connection its session's id.
func (s *Store) sharesSession(ctx context.Context, conn *pgx.Conn) (bool, error) {
	const looks = 5
	var first, mine, others uint32
	session := `SELECT pg_catalog.pg_backend_pid()`
	for look := range looks {
		if err := conn.QueryRow(ctx, session).Scan(&mine); err != nil {
			return false, fmt.Errorf("ask for the session: %w", err)
		}
		if mine == conn.PgConn().PID() {
			return false, nil
		}
		if look == 0 {
			first = mine
		}
		if err := s.control.QueryRow(ctx, session).Scan(&others); err != nil {
			return false, fmt.Errorf("ask for another session: %w", err)
		}
		if mine == others || mine != first {
			return true, nil
		}
	}
	return false, nil
}
