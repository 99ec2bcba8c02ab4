package compensations_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
)

// effects is what providers did, by key, as moments of one clock.
type effects struct {
	mu    sync.Mutex
	now   int
	byKey map[string][]int
}

func newEffects() *effects { return &effects{byKey: map[string][]int{}} }

func (e *effects) of(key string) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byKey[key]
}

// have makes the effect, unless the key is one that the provider keeps.
func (e *effects) have(key string, class dispatch.Class) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if class == dispatch.KeyIdempotent && len(e.byKey[key]) > 0 {
		return
	}
	e.now++
	e.byKey[key] = append(e.byKey[key], e.now)
}

// enqueueRun is an agent: it commits step after step, some in one transaction,
// some after a snapshot taken long before, until the run can take no further one.
func (r *race) enqueueRun(random *rand.Rand, number int) {
	forward := []string{"shop/hold", "shop/reserve", "shop/transfer", "shop/wire"}
	run := fmt.Sprintf("run-%d", number)
	for step, steps := 0, 2+random.IntN(5); step < steps; {
		together := 1 + random.IntN(steps-step)
		isolation := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}[random.IntN(2)]
		err := pgx.BeginTxFunc(r.t.Context(), r.db, pgx.TxOptions{IsoLevel: isolation}, func(tx pgx.Tx) error {
			for n := range together {
				r.dawdle(random, tx)
				if _, err := tx.Exec(r.t.Context(), `SELECT outbox.enqueue($1, $2, $3, 'scope', '{}')`,
					run, fmt.Sprintf("step-%d", step+n), forward[random.IntN(len(forward))]); err != nil {
					return err
				}
			}
			r.dawdle(random, tx)
			return nil
		})
		if sqlState(err) == "OB002" {
			return
		}
		if err != nil {
			r.t.Error(err)
			return
		}
		step += together
	}
}

// dawdle lets the others come first, sometimes.
func (r *race) dawdle(random *rand.Rand, tx pgx.Tx) {
	for range random.IntN(6) * random.IntN(3) {
		_, _ = tx.Exec(r.t.Context(), `SELECT`) // the next statement tells of an error
	}
}

// work is the life of a worker, to its death.
func (r *race) work(random *rand.Rand) error {
	store, err := postgres.Open(r.t.Context(), r.url)
	if err != nil {
		return err
	}
	defer store.Close()
	worker := &racer{race: r, Store: store, id: uuid.NewString(), random: random}
	if err := store.Join(r.over, worker.id, []string{"shop"}); err != nil {
		return err
	}
	for r.over.Err() == nil && !r.t.Failed() {
		if _, err := store.Reap(r.over, []string{"shop"}, lost); err != nil {
			return err
		}
		rows, err := worker.claim()
		if err != nil {
			return err
		}
		if random.IntN(25) == 0 {
			return worker.die(worker.attempt(rows[:random.IntN(len(rows)+1)]))
		}
		settlements := worker.attempt(rows)
		if err := worker.settle(settlements); err != nil {
			return err
		}
	}
	return nil
}

// racer is a worker. It does what a lane does with its rows.
type racer struct {
	*race
	*postgres.Store
	id     string
	random *rand.Rand
}

func (w *racer) claim() ([]*drainer.Row, error) {
	reply, err := w.Turn(w.over, w.id, drainer.Turn{Claims: []drainer.Claim{{Provider: "shop", Server: "shop", Limit: 1 + w.random.IntN(8)}}})
	if err != nil || len(reply.Claimed) == 0 {
		return nil, err
	}
	return reply.Claimed[0].Rows, nil
}

// attempt ends the rows, in any order.
func (w *racer) attempt(rows []*drainer.Row) (settlements []drainer.Settlement) {
	for _, row := range rows {
		policy := tools[row.Tuple.Operation()]
		if row.Closed {
			settlements = append(settlements, halted(row, policy))
			continue
		}
		settlements = append(settlements, ended(row, w.send(row, policy)))
	}
	w.random.Shuffle(len(settlements), func(i, j int) { settlements[i], settlements[j] = settlements[j], settlements[i] })
	return settlements
}

// halted is the lane's answer to a row of a run that goes back.
func halted(row *drainer.Row, policy dispatch.Policy) drainer.Settlement {
	history := dispatch.History{Tries: row.Tries, MaybeApplied: row.MaybeApplied}
	return drainer.Settlement{
		Row: row, FinishedAt: time.Now(), Decision: policy.Halt(history),
		Result: dispatch.Result{Outcome: dispatch.Released, ErrorClass: "run_compensating"},
	}
}

func lost(row *drainer.Row) (drainer.Settlement, bool) {
	return ended(row, dispatch.Result{Outcome: dispatch.Lost, ErrorClass: "worker_lost"}), true
}

// send meets a provider that fails in all the ways that matter here.
func (w *racer) send(row *drainer.Row, policy dispatch.Policy) dispatch.Result {
	key, chance := row.Tuple.IdempotencyKey(), w.random.IntN(100)
	happened := len(w.effects.of(key)) > 0
	switch {
	case chance < 5:
		return dispatch.Result{Outcome: dispatch.Throttled}
	case chance < 10:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "before"}
	case row.Lookup && happened:
		return dispatch.Result{Outcome: dispatch.Completed}
	case row.Lookup:
		return dispatch.Result{Outcome: dispatch.Absent}
	case chance < 15:
		return dispatch.Result{Outcome: dispatch.NotSent}
	case !happened && w.refuses(row):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "rejected"}
	}
	w.effects.have(key, policy.Class)
	if chance > 92 {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "after"}
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

// refuses holds for one step in eight, and for one undo in fifty.
func (w *racer) refuses(row *drainer.Row) bool {
	if row.Undoes != nil {
		return w.random.IntN(50) == 0
	}
	return w.random.IntN(8) == 0
}

// settle commits all in one turn, or one by one.
func (w *racer) settle(settlements []drainer.Settlement) error {
	if len(settlements) == 0 {
		return nil
	}
	size := len(settlements)
	if w.random.IntN(2) == 0 {
		size = 1
	}
	for part := range slices.Chunk(settlements, size) {
		if _, err := w.Turn(w.over, w.id, drainer.Turn{Settle: part}); err != nil {
			return err
		}
		for _, settlement := range part {
			if settlement.BeginsSaga {
				if err := w.know(settlement.Row.Tuple.AgentRunID); err != nil {
					return err
				}
			}
		}
	}
	_, err := w.Turn(w.over, w.id, drainer.Turn{Finish: []int64{settlements[0].Row.ClaimID}})
	return err
}

// die loses some outcomes for good. The others come late: whoever recovers the
// rows may have been quicker.
func (w *racer) die(settlements []drainer.Settlement) error {
	if _, err := w.db.Exec(w.over, `DELETE FROM outbox.worker WHERE worker_id = $1`, w.id); err != nil {
		return err
	}
	if w.random.IntN(2) == 0 {
		if _, err := w.Reap(w.over, []string{"shop"}, lost); err != nil {
			return err
		}
	}
	late := settlements[:w.random.IntN(len(settlements)+1)]
	if len(late) == 0 {
		return nil
	}
	_, err := w.Turn(w.over, w.id, drainer.Turn{Settle: late})
	return err
}

// takeBack advances the sagas under way, as one of several processes.
func (r *race) takeBack(random *rand.Rand) error {
	runs := all[string](r.world, `SELECT agent_run_id FROM outbox.saga WHERE state = 'begun'`)
	random.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	for _, run := range runs {
		if err := r.saga.Advance(r.over, run); err != nil {
			return err
		}
	}
	return nil
}

// operate tells the truth of what nobody else can tell.
func (r *race) operate(*rand.Rand) error {
	rows, err := r.db.Query(r.over, `
		SELECT s.intent_id, s.idempotency_key FROM outbox.status s JOIN outbox.intent i ON i.id = s.intent_id
		WHERE s.status = 'unknown' AND s.finished_at IS NOT NULL AND i.compensates IS NULL`)
	if err != nil {
		return err
	}
	type doubt struct {
		Intent int64
		Key    string
	}
	doubts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[doubt])
	if err != nil || len(doubts) == 0 {
		return err
	}
	return withConsole(r.over, r.db, func(console *operator.Console) error {
		for _, d := range doubts {
			as := dispatch.StatusFailed
			if len(r.effects.of(d.Key)) > 0 {
				as = dispatch.StatusCompleted
			}
			signature := operator.Signature{Operator: "ann", Reason: "asked the shop"}
			if _, err := console.Change(r.over, operator.Resolve{As: as}, signature, []int64{d.Intent}); err != nil {
				return err
			}
		}
		return nil
	})
}

func withConsole(ctx context.Context, db *pgxpool.Pool, do func(*operator.Console) error) error {
	conn, err := pgx.ConnectConfig(ctx, db.Config().ConnConfig)
	if err != nil {
		return err
	}
	console := operator.Open(conn)
	return errors.Join(do(console), console.Close(context.WithoutCancel(ctx)))
}
