package producer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	quickest = 50 * time.Millisecond // between two looks
	slowest  = 250 * time.Millisecond
	batch    = 1000 // intents that one statement asks for
)

// Result is where an intent stands.
type Result struct {
	Status      string
	ProviderRef string
	Response    json.RawMessage // null where there is none
	LastError   string          // what the daemon recorded of the last attempt
}

// Results waits for results. One question, asked every 50 to 250 ms while
// there are any, serves all waits, over one connection at a time.
type Results struct {
	db Querier

	mu      sync.Mutex
	waits   map[*wait]struct{}
	running bool
	fresh   bool // a wait was added since the last look
}

// Querier is a pgxpool.Pool, say. It must not be a transaction: that would never
// see a commit.
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

// NewResults waits over db. It needs no closing.
func NewResults(db Querier) *Results {
	return &Results{db: db, waits: map[*wait]struct{}{}}
}

// Wait returns the result of a completed intent. Call it after the commit. Else
// its error is ErrFailed, ErrUnknown, ErrCancelled or ErrUndone; ErrNotCommitted;
// or ErrPending, with the context's own error, when the context is done.
func (r *Results) Wait(ctx context.Context, id int64) (Result, error) {
	if _, open := r.db.(pgx.Tx); open {
		return Result{}, fmt.Errorf("%w: results cannot be waited for in a transaction", ErrNotCommitted)
	}
	w := &wait{id: id, answer: make(chan answer, 1)}
	r.mu.Lock()
	r.waits[w], r.fresh = struct{}{}, true
	if !r.running {
		r.running = true
		go r.run()
	}
	r.mu.Unlock()
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

func (r *Results) run() {
	for pause := quickest; ; pause = min(2*pause, slowest) {
		r.mu.Lock()
		if len(r.waits) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		waits := slices.Collect(maps.Keys(r.waits))
		if r.fresh {
			pause, r.fresh = quickest, false
		}
		r.mu.Unlock()
		for some := range slices.Chunk(waits, batch) {
			r.look(some)
		}
		// The one place that waits for news. Where the database tells of what settled, it is heard here.
		time.Sleep(pause)
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
	found, err := r.ask(ctx, ids)
	if err != nil && passes(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range waits {
		state, there := found[w.id]
		switch {
		case err != nil:
			w.answer <- answer{err: fmt.Errorf("producer: asking for results: %w", err)}
		case !there:
			w.answer <- answer{err: fmt.Errorf(
				"%w: intent %d is not there; its transaction is open or was rolled back, or this login may not see it", ErrNotCommitted, w.id)}
		case !state.settled:
			continue
		case unfinished[state.Status] != nil:
			w.answer <- answer{state.Result, &NotCompleted{IntentID: w.id, Result: state.Result}}
		default:
			w.answer <- answer{Result: state.Result}
		}
		delete(r.waits, w)
	}
}

type state struct {
	Result
	settled bool
}

func (r *Results) ask(ctx context.Context, ids []int64) (map[int64]state, error) {
	rows, err := r.db.Query(ctx, `SELECT intent_id, status, finished_at IS NOT NULL, coalesce(provider_ref, ''),
		CASE WHEN finished_at IS NOT NULL THEN response::text END, coalesce(last_error, '')
		FROM outbox.status WHERE intent_id = ANY ($1::bigint[])`, ids)
	if err != nil {
		return nil, err
	}
	found := map[int64]state{}
	var id int64
	var s state
	var response *string
	_, err = pgx.ForEachRow(rows, []any{&id, &s.Status, &s.settled, &s.ProviderRef, &response, &s.LastError}, func() error {
		s.Response = nil
		if response != nil {
			s.Response = json.RawMessage(*response)
		}
		found[id] = s
		return nil
	})
	return found, err
}

// passes says whether an error is one of a lost connection, a restart or a
// shortage. A missing right or a wrong password does not pass.
func passes(err error) bool {
	var connect *pgconn.ConnectError
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return slices.Contains([]string{"08", "40", "53", "57", "58"}, server.Code[:2])
	}
	return errors.As(err, &connect) || !errors.Is(err, context.Canceled)
}
