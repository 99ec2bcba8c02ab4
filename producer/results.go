package producer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"
)

const (
	quickest = 50 * time.Millisecond // the first time between two looks without a notification
	slowest  = 250 * time.Millisecond
	breath   = 5 * time.Millisecond // the least time between two looks, even with many notifications
	idle     = 5 * time.Second      // how long the second connection stays open without a wait
	batch    = 1000                 // intents in one statement
)

// Result is the present result of an intent.
type Result struct {
	Status      string
	ProviderRef string
	Response    json.RawMessage // null if there is none
	LastError   string          // the daemon's record of the last attempt
}

// Results waits for results. One query serves all waits, over one connection at a time. It runs after each
// notification that an intent was settled, and every 50 to 250 ms. Notifications arrive on a second connection,
// which is not one of the pool's. It is closed 5 s after the last wait. Behind a pooler there are no
// notifications.
type Results struct {
	db   Querier
	news chan struct{} // signals a notification or a new wait

	mu      sync.Mutex
	waits   map[*wait]struct{}
	running bool
}

// Querier is a [*pgxpool.Pool]. Other types get no notifications, and are asked at intervals. It must not be a
// transaction, which would never see a commit.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

type wait struct {
	id     int64
	answer chan answer
}

type answer struct {
	Result
	err error
}

// NewResults returns a Results that uses db. It needs no Close.
func NewResults(db Querier) *Results {
	return &Results{db: db, news: make(chan struct{}, 1), waits: map[*wait]struct{}{}}
}

// Wait returns the result of a completed intent. Call it after the commit. Otherwise it returns ErrFailed,
// ErrUnknown, ErrCancelled or ErrUndone; ErrNotCommitted; or, if ctx ends first, ErrPending together with the
// error of ctx. In the transaction that enqueued the intent, it returns ErrNotCommitted, unless an earlier transaction had
// recorded the intent: then it waits.
func (r *Results) Wait(ctx context.Context, id int64) (Result, error) {
	w := &wait{id: id, answer: make(chan answer, 1)}
	r.mu.Lock()
	r.waits[w] = struct{}{}
	if !r.running {
		r.running = true
		go r.run()
	}
	r.mu.Unlock()
	r.tell()
	select {
	case answer := <-w.answer:
		return answer.Result, answer.err
	case <-ctx.Done():
		r.mu.Lock()
		delete(r.waits, w)
		r.mu.Unlock()
		return Result{Status: "pending"}, errors.Join(ErrPending, ctx.Err())
	}
}

func (r *Results) tell() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *Results) run() {
	if pool, is := r.db.(*pgxpool.Pool); is {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go r.listen(ctx, pool.Config())
	}
	for pause := quickest; ; {
		r.mu.Lock()
		waits := slices.Collect(maps.Keys(r.waits))
		r.mu.Unlock()
		began := time.Now()
		for some := range slices.Chunk(waits, batch) {
			r.look(some)
		}
		time.Sleep(min(max(breath, time.Since(began)), slowest))
		wait := pause
		if len(waits) == 0 {
			wait = idle
		}
		select {
		case <-r.news:
			pause = quickest
			continue
		case <-time.After(wait):
			pause = min(2*pause, slowest)
		}
		r.mu.Lock()
		if len(waits) == 0 && len(r.waits) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
	}
}

// errPooled says that a pooler owns the session. A pooler that shares sessions would deliver the notifications of
// a LISTEN to its other clients, and PgBouncer from 1.18 to 1.20.0 may crash on such a notification
// (pgbouncer#822).
var errPooled = errors.New("the session belongs to a pooler")

// listen passes notifications on. It does not take a connection of the pool, which would lack it during all waits.
func (r *Results) listen(ctx context.Context, pool *pgxpool.Config) {
	for ctx.Err() == nil {
		// After any other error it listens again. Until then, looks at intervals find all results.
		if errors.Is(r.hear(ctx, pool), errPooled) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (r *Results) hear(ctx context.Context, pool *pgxpool.Config) error {
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return err
		}
	}
	config.OnNotification = nil // a callback of the program would take the notifications
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if pool.AfterConnect != nil {
		if err := pool.AfterConnect(ctx, conn); err != nil {
			return err
		}
	}
	// Without a pooler, the connection's process id is that of its server process.
	var session uint32
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`).Scan(&session); err != nil {
		return err
	}
	if session != conn.PgConn().PID() {
		return errPooled
	}
	// From here on notifications arrive, so the next look misses nothing.
	for _, statement := range []string{`LISTEN outbox_settled`, `SELECT FROM outbox.await('{}')`} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	for {
		r.tell()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
	}
}

func (r *Results) look(waits []*wait) {
	ids := make([]int64, len(waits))
	for i, w := range waits {
		ids[i] = w.id
	}
	// A stuck connection must not stop the waits, because other connections may work.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var found map[int64]Result
	err := fmt.Errorf("%w: this connection is in a transaction", ErrNotCommitted)
	if !inTransaction(r.db) {
		if found, err = r.ask(ctx, ids); err != nil && passes(err) {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range waits {
		settled, told := found[w.id]
		switch {
		case err != nil:
			w.answer <- answer{err: misuse(fmt.Errorf("asking for results: %w", err))}
		case !told:
			continue
		case settled.Status == "":
			w.answer <- answer{err: fmt.Errorf(
				"%w: intent %d is not there; its transaction is open or was rolled back, or this login may not see it", ErrNotCommitted, w.id)}
		case unfinished[settled.Status] != nil:
			w.answer <- answer{settled, &NotCompleted{IntentID: w.id, Result: settled}}
		default:
			w.answer <- answer{Result: settled}
		}
		delete(r.waits, w)
	}
}

func inTransaction(db Querier) bool {
	switch db := db.(type) {
	case pgx.Tx:
		return true
	case *pgx.Conn:
		return db.PgConn().TxStatus() != 'I'
	case *pgxpool.Conn:
		return db.Conn().PgConn().TxStatus() != 'I'
	}
	return false
}

// ask returns the intents that were settled, and a Result without a status for intents that do not exist.
func (r *Results) ask(ctx context.Context, ids []int64) (map[int64]Result, error) {
	rows, err := r.db.Query(ctx, `SELECT intent_id, coalesce(status, ''), coalesce(provider_ref, ''), response::text, coalesce(last_error, '')
		FROM outbox.await($1::bigint[])`, ids)
	if err != nil {
		return nil, err
	}
	found := map[int64]Result{}
	var id int64
	var result Result
	var response *string
	_, err = pgx.ForEachRow(rows, []any{&id, &result.Status, &result.ProviderRef, &response, &result.LastError}, func() error {
		result.Response = nil
		if response != nil {
			result.Response = json.RawMessage(*response)
		}
		found[id] = result
		return nil
	})
	return found, err
}

// passes reports whether an error may pass: a lost connection, a restart, a standby that may become a primary, or
// a shortage. A missing right, a wrong password or a closed pool does not pass.
func passes(err error) bool {
	var connect *pgconn.ConnectError
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code != "" {
		const (
			lockTimeout        = "55P03"
			isStandby          = "25006"
			transactionTimeout = "25P04"
		)
		return slices.ContainsFunc([]string{"08", "40", "53", "57", "58", lockTimeout, isStandby, transactionTimeout},
			func(class string) bool { return strings.HasPrefix(server.Code, class) })
	}
	return errors.As(err, &connect) || !errors.Is(err, context.Canceled) && !errors.Is(err, puddle.ErrClosedPool)
}
