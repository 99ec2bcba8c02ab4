package compensations_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// finished makes runs of completed steps with sagas that have begun, without a worker.
func (w *world) finished(runs, steps int, payload string) {
	w.t.Helper()
	w.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-' || r, 'step-' || s, 'shop/reserve', 'order-1', `+payload+` FROM generate_series(1, $1::int) r, generate_series(1, $2::int) s`, runs, steps)
	w.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status)
		SELECT id, 1, 'w', now(), now() + id * interval '1 us', 'completed', 'completed' FROM outbox.intent WHERE step_id LIKE 'step-%' ON CONFLICT DO NOTHING`)
	w.exec(`DELETE FROM outbox.queue WHERE intent_id IN (SELECT intent_id FROM outbox.attempt)`)
	w.exec(`INSERT INTO outbox.saga (agent_run_id) SELECT 'run-' || r FROM generate_series(1, $1::int) r`, runs)
}

// settleUndos ends all undos that wait as completed.
func (w *world) settleUndos(store interface {
	Commit(context.Context, string, drainer.Batch) (drainer.BatchReply, error)
}, worker string,
) (undone int) {
	w.t.Helper()
	for {
		reply, err := store.Commit(w.t.Context(), worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "shop", Server: "shop", Limit: 1000}}})
		if err != nil {
			w.t.Fatal(err)
		}
		rows := reply.Claimed[0].Rows
		if len(rows) == 0 {
			return undone
		}
		settle := drainer.Batch{Finish: []int64{rows[0].ClaimID}}
		for _, row := range rows {
			settle.Settle = append(settle.Settle, ended(row, dispatch.Result{Outcome: dispatch.Completed}))
		}
		if _, err := store.Commit(w.t.Context(), worker, settle); err != nil {
			w.t.Fatal(err)
		}
		undone += len(rows)
	}
}

// A pass allocates memory for the step that it undoes, not for the whole run.
func TestAPassOfALargeRunReadsOneStep(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	w := newWorld(t)
	const steps, size = 40, 1 << 20
	w.finished(1, steps, `jsonb_build_object('large', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 32000) n))`)
	fault.Injected(t, 74, steps)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nothing that is allocated goes unseen
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(512 << 20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.advance()
	runtime.ReadMemStats(&after)
	if undos := stored[int](w, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`); undos != 1 {
		t.Fatalf("%d undos, want one", undos)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 24*size {
		t.Errorf("a pass over %d MB allocated %d MB", steps, allocated>>20)
	}
}

// A few bytes of jsonb can become a megabyte of text, and a pass reads text. Without the bound, a pass would hold the
// text of all these steps at once.
func TestNumbersThatAreLongOnlyAsTextDoNotGrowAPass(t *testing.T) {
	const runs, steps, most = 30, 4, 80 << 20
	w := newWorld(t)
	w.finished(runs, steps, `jsonb_build_object('n', (SELECT jsonb_agg('1e131071'::numeric) FROM generate_series(1, 7)))`)
	if text := stored[int64](w, `SELECT sum(payload_bytes) FROM outbox.intent`); text < most {
		t.Fatalf("the payloads are %d MB of text, which shows nothing", text>>20)
	}
	fault.Injected(t, 74, runs)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(48 << 20)) // garbage is collected, and memory in use stays
	grown := watchHeap(t)
	if err := w.saga.Advance(t.Context()); err != nil {
		t.Error(err)
	}
	if grew := grown(); grew > most {
		t.Errorf("a pass over %d runs grew the heap by %d MB", runs, grew>>20)
	}
	if undos := stored[int](w, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`); undos != runs {
		t.Errorf("%d undos, want one of each of %d runs", undos, runs)
	}
}

// watchHeap observes the heap until the returned function is called. That function returns the largest growth.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	heap := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	before, most := heap(), uint64(0)
	ctx, stop := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		for ticks := time.Tick(time.Millisecond); ctx.Err() == nil; <-ticks {
			most = max(most, heap())
		}
	})
	return func() uint64 {
		stop()
		looking.Wait()
		return max(most, before) - before
	}
}

// The plan is made once in a thousand steps. Between two plans, an undo reads a few rows, whatever the run's size.
func TestAnUndoOfALongRunCostsAsMuchAsOfAShortOne(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	const long = 3000
	read := func(steps int) int64 {
		w := newWorld(t)
		w.finished(1, steps, `'{}'`)
		w.exec(`ANALYZE outbox.intent, outbox.attempt`)
		store := w.store
		worker, _ := w.claim(store)
		w.advance() // makes the plan
		w.settleUndos(store, worker)
		rows := func() int64 {
			// statistics are sent when a session ends
			w.db.Reset()
			return stored[int64](w, `SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::bigint FROM pg_stat_user_tables
				WHERE schemaname = 'outbox' AND relname IN ('intent', 'attempt')`)
		}
		before := drainertest.Value[int64](t, w.db, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`)
		start := rows()
		for range 10 {
			if err := w.saga.Advance(t.Context(), "run-1"); err != nil {
				t.Fatal(err)
			}
			w.settleUndos(store, worker)
		}
		undos := drainertest.Value[int64](t, w.db, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`) - before
		if undos < 10 {
			t.Fatalf("%d undos in ten passes", undos)
		}
		return (rows() - start) / undos
	}
	fault.Injected(t, 74, long)
	short, more := read(150), read(long)
	if more > 3*short+100 {
		t.Errorf("an undo read %d rows of a run of 150 steps, and %d of one of %d", short, more, long)
	}
}

// A failed undo's settlement does not wait for a pass in progress. Here the pass waits
// for a table that it reads after it has taken the saga.
func TestASettlementDoesNotWaitForAPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.finished(1, 2, `'{}'`)
	lock := func(statement string) pgx.Tx {
		t.Helper()
		tx := drainertest.Begin(t, w.db)
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
		return tx
	}
	history := lock(`LOCK TABLE outbox.attempt IN ACCESS EXCLUSIVE MODE`)
	done := make(chan error, 1)
	go func() { done <- w.saga.Advance(t.Context(), "run-1") }()
	drainertest.Eventually(t, "the pass has taken the saga", func() bool {
		return stored[int](w, `SELECT passes FROM outbox.saga`) == 1
	})
	fault.Injected(t, 75, 1)
	settling := lock(`SELECT FROM outbox.saga WHERE agent_run_id = 'run-1' FOR UPDATE NOWAIT`)
	select {
	case err := <-done:
		t.Errorf("the pass ended before it was looked at (%v)", err)
	default:
	}
	for _, tx := range []pgx.Tx{settling, history} {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A pass does not read sagas that wait for a human. It moves the others together, with statements for many sagas.
func TestManySagasAreMovedTogetherAndThoseThatWaitNotAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const waiting, runs = 300, 400
	w.finished(runs, 2, `'{}'`)
	w.exec(`INSERT INTO outbox.saga (agent_run_id, moves_at) SELECT 'human-' || n, 'infinity' FROM generate_series(1, $1::int) n`, waiting)
	fault.Injected(t, 76, runs)
	store := w.store
	worker, _ := w.claim(store)
	versions := func() []string { return all[string](w, `SELECT DISTINCT xmin::text FROM outbox.saga ORDER BY 1`) }
	untouched := stored[string](w, `SELECT DISTINCT xmin::text FROM outbox.saga WHERE moves_at = 'infinity'`)
	if err := w.saga.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	if undos := stored[int](w, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`); undos != runs {
		t.Fatalf("%d undos, want one of each of %d runs", undos, runs)
	}
	// Each part of a pass writes its sagas in one transaction, which is their version.
	if parts := len(versions()); parts > 2 {
		t.Errorf("%d sagas were written in %d transactions", runs, parts-1)
	}
	if got := stored[string](w, `SELECT DISTINCT xmin::text FROM outbox.saga WHERE agent_run_id LIKE 'human-%'`); got != untouched {
		t.Error("sagas that wait were written")
	}
	for w.settleUndos(store, worker) > 0 {
		if err := w.saga.Advance(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left := stored[int](w, `SELECT count(*) FROM outbox.saga WHERE state <> 'compensated' AND agent_run_id LIKE 'run-%'`); left != 0 {
		t.Errorf("%d sagas are not compensated", left)
	}
	if jobs := stored[int](w, `SELECT count(*) FROM outbox.river_job`); jobs != 0 {
		t.Errorf("%d jobs were made", jobs)
	}
}

// The process of each pass dies, so no process gives the saga back.
func TestASagaWhosePassesDieIsLeftToAHumanAndItsNeighboursAreNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.finished(2, 1, `'{}'`)
	step := stored[int64](w, `SELECT id FROM outbox.intent WHERE agent_run_id = 'run-1'`)
	// Both were taken together when the process died. One of them was taken twice more, alone.
	w.exec(`UPDATE outbox.saga SET passes = CASE agent_run_id WHEN 'run-1' THEN 3 ELSE 1 END`)
	fault.Injected(t, 74, 3)
	if err := w.saga.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.assertSaga("compensation_failed")
	w.assertIncidents(incident{"saga_stalled", step, "passes_died"})
	if undone := all[string](w, `SELECT agent_run_id FROM outbox.intent WHERE compensates IS NOT NULL`); len(undone) != 1 || undone[0] != "run-2" {
		t.Errorf("undos of %v, want one of run-2", undone)
	}
}

// An undo that the database refuses would be refused at every pass.
func TestASagaThatTheDatabaseRefusesIsLeftToAHumanAndItsNeighboursAreNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.finished(2, 1, `'{}'`)
	step := stored[int64](w, `SELECT id FROM outbox.intent WHERE agent_run_id = 'run-1'`)
	w.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '22023'; END $$`)
	w.exec(`CREATE TRIGGER refuse BEFORE INSERT ON outbox.intent FOR EACH ROW
		WHEN (NEW.compensates IS NOT NULL AND NEW.agent_run_id = 'run-1') EXECUTE FUNCTION refuse()`)
	for pass := range 3 {
		if err := w.saga.Advance(t.Context()); err == nil {
			t.Errorf("pass %d reported no error", pass+1)
		}
		w.assertSaga("begun")
		w.exec(`UPDATE outbox.saga SET leased_until = now() WHERE agent_run_id = 'run-1'`) // its lease is over
	}
	if err := w.saga.Advance(t.Context()); err != nil {
		t.Error(err)
	}
	w.assertSaga("compensation_failed")
	w.assertIncidents(incident{"saga_stalled", step, "passes_died"})
	if undone := all[string](w, `SELECT agent_run_id FROM outbox.intent WHERE compensates IS NOT NULL`); len(undone) != 1 || undone[0] != "run-2" {
		t.Errorf("undos of %v, want one of run-2", undone)
	}
}

// The test executes the real prune. A step of the run is older than the retention, and the run is still in use.
func TestARunThatLostAStepToPruningIsNotCalledCompensated(t *testing.T) {
	t.Parallel()
	for name, forgets := range map[string]bool{"a step was pruned": true, "all steps are there": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			steps := w.completed("shop/hold", 2)
			if forgets {
				w.exec(`UPDATE outbox.intent SET created_at = now() - interval '400 days' WHERE id = $1`, steps[0])
				w.exec(`UPDATE outbox.attempt SET started_at = now() - interval '400 days', finished_at = now() - interval '400 days' WHERE intent_id = $1`, steps[0])
			}
			w.exec(`SELECT outbox.prune(0, 10, 7776000)`)
			cause := w.rejected()
			w.goBack()
			if !forgets {
				w.assertSaga("compensated")
				w.assertIncidents()
				return
			}
			fault.Injected(t, 82, 1)
			w.assertSaga("compensation_failed")
			w.assertUndone("shop/release", steps[1])
			w.assertIncidents(incident{"compensation_failed", cause, "steps_forgotten"})
		})
	}
}

// The statement was planned when there was no saga. That is usual until very many runs fail at once.
func TestAFewUndosReadNoOtherSagas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`ANALYZE outbox.saga`)
	store := w.store
	w.enqueue("first", "shop/order")
	worker, first := w.claim(store)
	w.batch(store, worker, settling(first, dispatch.Completed))
	const runs = 3000
	w.finished(runs, 1, `'{}'`)
	fault.Injected(t, 76, runs)
	if err := w.saga.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	undos := w.batch(store, worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "shop", Server: "shop", Limit: 20}}}).Claimed[0].Rows
	read := func() int64 {
		w.db.Reset() // statistics are sent when a session ends
		return stored[int64](w, `SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname = 'saga'`)
	}
	settle := drainer.Batch{Finish: []int64{undos[0].ClaimID}}
	for _, undo := range undos {
		settle.Settle = append(settle.Settle, ended(undo, dispatch.Result{Outcome: dispatch.Completed}))
	}
	before := read()
	if _, err := store.Commit(t.Context(), worker, settle); err != nil {
		t.Fatal(err)
	}
	store.Close() // its session has read the sagas
	drainertest.Eventually(t, "the store's statistics are there", func() bool { return read() > before })
	if rows := read() - before; rows > runs/10 {
		t.Errorf("the end of %d undos read %d rows of sagas", len(undos), rows)
	}
}
