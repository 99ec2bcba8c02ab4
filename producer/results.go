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
	quickest = 50 * time.Millisecond // between two looks, unless a notification comes
	slowest  = 250 * time.Millisecond
	breath   = 5 * time.Millisecond // between two looks, however many notifications come
	idle     = 5 * time.Second      // until a connection that serves no wait is closed
	batch    = 1000                 // intents that one statement asks for
)

// Result is where an intent stands.
type Result struct {
	Status      string
	ProviderRef string
	Response    json.RawMessage // null where there is none
	LastError   string          // what the daemon recorded of the last attempt
}

// Results waits for results. One question serves all waits, over one connection
// at a time: when Postgres notifies that something settled, and every 50 to
// 250 ms. It listens over a second connection, beside those of the pool, until
// 5 s after the last wait. Behind a pooler it does not listen.
type Results struct {
	db   Querier
	news chan struct{} // a notification came, or a wait

	mu      sync.Mutex
	waits   map[*wait]struct{}
	running bool
}

// Querier is a [*pgxpool.Pool]; others are not notified, and look at intervals. It must not be
// in a transaction: that would never see a commit.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

type wait struct {
	id     int64
	xid    string // of a transaction that may be open: it saw an earlier one's intent
	answer chan answer
}

type answer struct {
	Result
	err error
}

// NewResults waits over db. It needs no closing.
func NewResults(db Querier) *Results {
	return &Results{db: db, news: make(chan struct{}, 1), waits: map[*wait]struct{}{}}
}

// Wait returns the result of a completed intent. Call it after the commit. Of an
// intent that another process recorded, the ID is enough. Else its error is ErrFailed, ErrUnknown, ErrCancelled or ErrUndone; ErrNotCommitted;
// or ErrPending, with the context's own error, when the context is done.
func (r *Results) Wait(ctx context.Context, intent Recorded) (Result, error) {
	w := &wait{id: intent.ID, answer: make(chan answer, 1)}
	if !intent.Created {
		w.xid = intent.xid
	}
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

// errPooled says that the session is not the connection's own. A pooler that shares sessions would give
// the notifications of a LISTEN to its other clients, and PgBouncer from 1.18 to 1.20.0 may die of one (pgbouncer#822).
var errPooled = errors.New("the session belongs to a pooler")

// listen passes notifications on. The pool keeps its connections: a wait would
// hold one of them for as long as it lasts.
func (r *Results) listen(ctx context.Context, pool *pgxpool.Config) {
	for ctx.Err() == nil {
		// After any other error it listens again. Until then looks at intervals find all.
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
	config.OnNotification = nil // a callback of the program would take what is waited for here
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
	// Without a pooler the connection knows its session by the server's own number.
	var session uint32
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`).Scan(&session); err != nil {
		return err
	}
	if session != conn.PgConn().PID() {
		return errPooled
	}
	// From here on it is told what settles, so a look that follows misses nothing.
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
	// A connection that is stuck must not stop the waits that have others to go by.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var found map[int64]Result
	var open []string
	err := fmt.Errorf("%w: this connection is in a transaction", ErrNotCommitted)
	if !inTransaction(r.db) {
		if found, err = r.ask(ctx, ids); err == nil {
			open, err = r.open(ctx, waits, found)
		}
		if err != nil && passes(err) {
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
		case !told && w.xid != "" && slices.Contains(open, w.xid):
			w.answer <- answer{err: fmt.Errorf("%w: the transaction that enqueued intent %d is open", ErrNotCommitted, w.id)}
		case !told:
			w.xid = ""
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

// ask returns what has settled, and of what is not there a Result without a status.
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

// open returns those transactions of waits without a result that have not ended.
func (r *Results) open(ctx context.Context, waits []*wait, found map[int64]Result) ([]string, error) {
	var xids []string
	for _, w := range waits {
		if _, told := found[w.id]; !told && w.xid != "" {
			xids = append(xids, w.xid)
		}
	}
	if xids == nil {
		return nil, nil
	}
	rows, err := r.db.Query(ctx, `SELECT xid::text FROM unnest($1::text::xid8[]) xid
		WHERE NOT pg_visible_in_snapshot(xid, pg_current_snapshot())`, "{"+strings.Join(xids, ",")+"}")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// passes says whether an error is one of a lost connection, a restart, a
// standby that may become a primary, or a shortage. A missing right, a wrong password or a closed pool does not pass.
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
