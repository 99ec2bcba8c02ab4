package bench_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	failingRuns = 10_000
	stepsOfRun  = 3
	waitingRuns = 3_000 // each has a step that only a human can resolve
)

// BenchmarkRollback fails the last step of many runs at once. The daemon then undoes the steps before it. The ratio
// is to a plain drain of as many intents as there are undos. Only the time of the rollback includes the refusals.
func BenchmarkRollback(b *testing.B) {
	runs := rows(b, failingRuns)
	for b.Loop() {
		var begun series
		rates := race(rounds,
			func() float64 { return drain(b, runs*stepsOfRun, noop("sim")).rate },
			func() float64 {
				r := rollBack(b, runs, 0)
				begun = append(begun, r.lastBegun)
				return r.rate
			},
			func() float64 { return rollBack(b, runs, rows(b, waitingRuns)).rate },
		)
		b.ReportMetric(rates[0].median(), "plain-rows/s")
		b.ReportMetric(rates[1].median(), "undos/s")
		reportRatio(b, "x-plain", rates[1].times(rates[0]))
		reportRatio(b, "x-none-waiting", rates[2].times(rates[1]))
		b.ReportMetric(begun.median(), "last-begun-s")
	}
	b.ReportMetric(0, "ns/op")
}

// rolledBack holds the figures of the rollback of many runs.
type rolledBack struct {
	rate      float64 // undos a second, from the first refusal on
	lastBegun float64 // seconds from the first refusal to the first undo of the last run
}

func rollBack(b testing.TB, runs, waiting int) rolledBack {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	doer, refuser, undoer := noop("sim"), noop("refuser"), noop("undoer")
	doer.undoneBy, refuser.undoneBy, refuser.settings = undoer.act(), undoer.act(), "refuses: true"
	outbox.enqueueLast(runs, doer, refuser)
	outbox.awaitHumans(waiting, doer)
	outbox.exec(`ANALYZE`)
	daemon := startDaemon(b, outbox.url, doer, refuser, undoer)
	daemon.await("undone all runs", func() bool {
		return read[int](outbox.database, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`) >= runs
	})
	daemon.end()
	undos := read[int](outbox.database, `SELECT count(*) FROM outbox.intent i JOIN outbox.attempt a ON a.intent_id = i.id AND a.outcome = 'completed' WHERE i.compensates IS NOT NULL`)
	if undos != runs*stepsOfRun {
		b.Fatalf("%d undos, want %d", undos, runs*stepsOfRun)
	}
	const refused = `SELECT min(started_at) FROM outbox.attempt WHERE outcome = 'rejected'`
	return rolledBack{
		rate: read[float64](outbox.database, `
			SELECT $1::int / extract(epoch FROM max(a.finished_at) - (`+refused+`))::float8
			FROM outbox.intent i JOIN outbox.attempt a ON a.intent_id = i.id WHERE i.compensates IS NOT NULL`, undos),
		lastBegun: read[float64](outbox.database, `
			SELECT extract(epoch FROM max(first) - (`+refused+`))::float8 FROM (
			  SELECT min(a.started_at) AS first
			  FROM outbox.intent i JOIN outbox.attempt a ON a.intent_id = i.id WHERE i.compensates IS NOT NULL
			  GROUP BY i.agent_run_id) run`),
	}
}

// enqueueLast writes runs whose steps are completed, except for the last step, which is due.
func (o *outbox) enqueueLast(runs int, doer, refuser provider) {
	o.b.Helper()
	o.exec(`CHECKPOINT`)
	o.direct(func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'run-' || r, 'step-' || s, CASE WHEN s <= $2::int THEN $3::text ELSE $4::text END, 'order-' || r, `+payload+`
			FROM (SELECT r, s, r AS n FROM generate_series(1, $1::int) r, generate_series(1, $2::int + 1) s) steps`,
			runs, stepsOfRun, doer.act(), refuser.act()); err != nil {
			return err
		}
		if _, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, provider_ref)
			SELECT id, 1, 'w', created_at, created_at + id * interval '1 us', 'completed', 'completed', 'eff_1'
			FROM outbox.intent WHERE provider = $1`, doer.name); err != nil {
			return err
		}
		_, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id)
			SELECT provider, created_at, id, agent_run_id FROM outbox.intent WHERE provider = $1`, refuser.name)
		return err
	})
}

// awaitHumans writes sagas that wait. Each has a step that only a human can resolve.
func (o *outbox) awaitHumans(runs int, doer provider) {
	o.b.Helper()
	o.direct(func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'human-' || n, 'step-1', $2::text, 'order-' || n, `+payload+` FROM generate_series(1, $1::int) n`, runs, doer.act()); err != nil {
			return err
		}
		if _, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status)
			SELECT id, 1, 'w', created_at, created_at, 'ambiguous', 'unknown' FROM outbox.intent WHERE agent_run_id LIKE 'human-%'`); err != nil {
			return err
		}
		// For its first minute a saga is also checked by the clock, so these sagas are older.
		_, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.saga (agent_run_id, cause, begun_at)
			SELECT agent_run_id, id, now() - interval '1 hour' FROM outbox.intent WHERE agent_run_id LIKE 'human-%'`)
		return err
	})
}
