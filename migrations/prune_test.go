package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

const day = 24 * 60 * 60

// aged is an outbox in which everything happened a hundred days ago.
type aged struct {
	*audited
	maxRun float64 // in seconds
}

func newAged(t *testing.T) aged {
	t.Helper()
	a := aged{newAudited(t), 365 * day}
	drainertest.Exec(t, a.pool, `INSERT INTO outbox.setting VALUES ('retention_floor/noop/short', '1 day')`)
	return a
}

func (a aged) settled(run, step string) int64 {
	a.t.Helper()
	intent := a.intent(run, step, "noop/x", "{}", "completed")
	a.age(intent)
	return intent
}

func (a aged) age(intent int64) {
	a.t.Helper()
	drainertest.Exec(a.t, a.pool, `UPDATE outbox.intent SET created_at = now() - interval '100 days' WHERE id = $1`, intent)
	drainertest.Exec(a.t, a.pool, `UPDATE outbox.attempt SET finished_at = now() - interval '100 days' WHERE intent_id = $1`, intent)
}

// prune calls outbox.prune until the end, with a retention of ninety days, and returns how many intents it pruned.
func (a aged) prune(looks int) int {
	a.t.Helper()
	total := 0
	for after := new(int64); after != nil; {
		var pruned int
		err := a.pool.QueryRow(a.t.Context(), `SELECT * FROM outbox.prune($1, $2, $3, '{noop/long,noop/short}', ARRAY[$4, $5]::float8[], $6)`,
			*after, looks, 90*day, 3650*day, day, a.maxRun).Scan(&pruned, &after)
		if err != nil {
			a.t.Fatal(err)
		}
		total += pruned
	}
	drainertest.AssertInvariant(a.t, a.pool)
	return total
}

func (a aged) left() []int64 {
	a.t.Helper()
	rows, _ := a.pool.Query(a.t.Context(), `SELECT id FROM outbox.intent ORDER BY id`)
	left, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		a.t.Fatal(err)
	}
	return left
}

// Each case changes an old intent, and says whether the intent must be kept.
func TestOnlyWhatNobodyNeedsAnyMoreIsPruned(t *testing.T) {
	t.Parallel()
	saga := func(state, ended string) func(aged, int64) {
		return func(a aged, _ int64) {
			drainertest.Exec(t, a.pool, `INSERT INTO outbox.saga (agent_run_id, state, begun_at, ended_at) VALUES ('run', $1, now() - interval '100 days', now() - $2::interval)`, state, ended)
		}
	}
	do := func(sql string) func(aged, int64) {
		return func(a aged, intent int64) { drainertest.Exec(a.t, a.pool, sql, intent) }
	}
	for name, c := range map[string]struct {
		change func(aged, int64)
		kept   bool
	}{
		"settled": {change: func(aged, int64) {}},
		"failed":  {change: do(`UPDATE outbox.attempt SET status = 'failed' WHERE intent_id = $1`)},
		"settled again since": {kept: true, change: do(`INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status)
			VALUES ($1, 2, 'operator:on-call', 'resolved', 'completed')`)},
		"pending": {kept: true, change: func(a aged, intent int64) {
			drainertest.Exec(t, a.pool, `DELETE FROM outbox.attempt WHERE intent_id = $1`, intent)
			drainertest.Exec(t, a.pool, `INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id) VALUES ('noop', now(), $1, 'run')`, intent)
		}},
		"to be retried": {kept: true, change: func(a aged, intent int64) {
			drainertest.Exec(t, a.pool, `UPDATE outbox.attempt SET status = 'pending', next_attempt_at = now() WHERE intent_id = $1`, intent)
			drainertest.Exec(t, a.pool, `INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt) VALUES ('noop', now(), $1, 'run', 1)`, intent)
		}},
		"listed in a claim that has not ended": {kept: true, change: do(`INSERT INTO outbox.claim
			(worker_id, provider, server, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
			VALUES (gen_random_uuid(), 'noop', 'noop', ARRAY[$1::bigint], '{1}', '{1}', '{null}', '{f}', '{f}', '{null}')`)},
		"with an open incident": {kept: true, change: do(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', $1, 'run')`)},
		"with an incident that is only acknowledged": {kept: true, change: do(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, acknowledged_at)
			VALUES ('outcome_unknown', $1, 'run', now())`)},
		"with a resolved incident": {change: do(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, resolved_at)
			VALUES ('outcome_unknown', $1, 'run', now())`)},
		"enqueued again":                  {change: do(`INSERT INTO outbox.duplicate (intent_id) VALUES ($1)`)},
		"of a run that is rolled back":    {kept: true, change: saga("begun", "1 day")},
		"of a run that could not":         {kept: true, change: saga("compensation_failed", "95 days")},
		"of a run resolved lately":        {kept: true, change: saga("resolved", "1 day")},
		"of a run resolved long ago":      {change: saga("resolved", "95 days")},
		"of a run compensated long ago":   {change: saga("compensated", "95 days")},
		"of a run cancelled long ago":     {change: saga("cancelled", "95 days")},
		"undone by what is still there":   {kept: true, change: func(a aged, intent int64) { a.undo(intent) }},
		"undone by what is as old":        {change: func(a aged, intent int64) { a.age(a.undo(intent)) }},
		"of a tool that is kept for long": {kept: true, change: do(`UPDATE outbox.intent SET tool_name = 'noop/long' WHERE id = $1`)},
		"lately, of a tool that is kept for a day": {change: func(a aged, intent int64) {
			drainertest.Exec(t, a.pool, `UPDATE outbox.intent SET tool_name = 'noop/short', created_at = now() - interval '2 days' WHERE id = $1`, intent)
			drainertest.Exec(t, a.pool, `UPDATE outbox.attempt SET finished_at = now() - interval '2 days' WHERE intent_id = $1`, intent)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAged(t)
			intent := a.settled("run", "step")
			c.change(a, intent)
			a.prune(1000)
			a.prune(1000) // an undo is pruned before its step
			if kept := slices.Contains(a.left(), intent); kept != c.kept {
				t.Errorf("kept is %t, want %t", kept, c.kept)
			}
			if c.kept {
				return
			}
			for _, table := range []string{"intent", "attempt", "duplicate", "incident", "saga"} {
				if n := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.`+table); n != 0 {
					t.Errorf("%d rows are left in %s", n, table)
				}
			}
		})
	}
}

// undo adds a settled undo of the intent, from now.
func (a aged) undo(intent int64) (undo int64) {
	a.t.Helper()
	err := a.pool.QueryRow(a.t.Context(), `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		VALUES ('run', 'compensate:' || $1::bigint, 'noop/undo', 'scope', '{}', $1::bigint) RETURNING id`, intent).Scan(&undo)
	if err != nil {
		a.t.Fatal(err)
	}
	drainertest.Exec(a.t, a.pool, `DELETE FROM outbox.queue WHERE intent_id = $1`, undo)
	a.append(undo, 1, []string{"completed"})
	return undo
}

func TestARunsSagaGoesWithItsLastIntent(t *testing.T) {
	t.Parallel()
	a := newAged(t)
	a.maxRun = 95 * day
	a.settled("run", "old")
	young := a.intent("run", "young", "noop/x", "{}", "completed")
	drainertest.Exec(t, a.pool, `INSERT INTO outbox.saga (agent_run_id, state, ended_at) VALUES ('run', 'compensated', now() - interval '95 days')`)

	if pruned := a.prune(1000); pruned != 1 {
		t.Fatalf("%d were pruned, want the old one", pruned)
	}
	if n := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.saga`); n != 1 {
		t.Error("the saga went before its run")
	}
	a.age(young)
	a.prune(1000)
	if n := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.saga`); n != 0 {
		t.Error("the saga stayed without its run")
	}
}

func TestPruningGoesOnWhereItLookedLast(t *testing.T) {
	t.Parallel()
	a := newAged(t)
	var kept []int64
	for n := range 10 {
		a.settled(fmt.Sprint("gone-", n), "step")
		intent := a.settled(fmt.Sprint("kept-", n), "step")
		drainertest.Exec(t, a.pool, `UPDATE outbox.intent SET tool_name = 'noop/long' WHERE id = $1`, intent)
		kept = append(kept, intent)
	}
	young := a.intent("run", "young", "noop/x", "{}", "completed")
	if pruned := a.prune(3); pruned != 10 {
		t.Errorf("%d were pruned, want 10", pruned)
	}
	if left := a.left(); !slices.Equal(left, append(kept, young)) {
		t.Errorf("%v are left, want %v", left, append(kept, young))
	}
}

func TestAForgottenKeyIsNew(t *testing.T) {
	t.Parallel()
	a := newAged(t)
	a.settled("run", "step")
	a.prune(1000)
	again, err := enqueue(t, a.pool, "run", "step", "noop/x", "scope", `{"another": "payload"}`)
	if err != nil || !again.Created {
		t.Errorf("got %+v, %v; want a new intent", again, err)
	}
}

func TestPruningNeedsASafeSnapshotAndASaneRetention(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	for name, c := range map[string]struct {
		isolation pgx.TxIsoLevel
		call      string
		wantState string
	}{
		"an old snapshot":             {pgx.RepeatableRead, `SELECT outbox.prune(0, 10, 7776000)`, "25000"},
		"a short retention":           {pgx.ReadCommitted, `SELECT outbox.prune(0, 10, 3599)`, "OB003"},
		"none":                        {pgx.ReadCommitted, `SELECT outbox.prune(0, 10, null)`, "OB003"},
		"a short retention of a tool": {pgx.ReadCommitted, `SELECT outbox.prune(0, 10, 7776000, '{a,b}', '{0,7776000}')`, "OB003"},
		"a short life of a run":       {pgx.ReadCommitted, `SELECT outbox.prune(0, 10, 7776000, '{}', '{}', 3599)`, "OB003"},
		"the usual":                   {pgx.ReadCommitted, `SELECT outbox.prune(0, 10, 7776000)`, ""},
	} {
		err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: c.isolation}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), c.call)
			return err
		})
		if sqlState(err) != c.wantState || (err != nil && c.wantState == "") {
			t.Errorf("%s: got %v, want SQLSTATE %q", name, err, c.wantState)
		}
	}
}

// An attacker with the daemon's login may ask to prune intents that are an hour old.
func TestNoLoginPrunesBelowTheOwnersFloor(t *testing.T) {
	t.Parallel()
	fault.Injected(t, 70, 1)
	for name, c := range map[string]struct {
		settings string
		old      string
		prune    string
		kept     bool
	}{
		"an hour, without a setting":             {"", "89 days", `SELECT outbox.prune(0, 100, 3600)`, true},
		"an hour of a tool, without a setting":   {"", "89 days", `SELECT outbox.prune(0, 100, 7776000, '{noop/x}', '{3600}')`, true},
		"an hour, past the usual floor":          {"", "91 days", `SELECT outbox.prune(0, 100, 3600)`, false},
		"an hour, below a longer floor":          {`('retention_floor', '1 year')`, "364 days", `SELECT outbox.prune(0, 100, 3600)`, true},
		"thirty days, where the owner agrees":    {`('retention_floor', '30 days')`, "31 days", `SELECT outbox.prune(0, 100, 2592000)`, false},
		"an hour, where the owner said thirty":   {`('retention_floor', '30 days')`, "29 days", `SELECT outbox.prune(0, 100, 3600)`, true},
		"a tool's own floor is longer":           {`('retention_floor', '30 days'), ('retention_floor/noop/x', '60 days')`, "59 days", `SELECT outbox.prune(0, 100, 3600)`, true},
		"a tool's own floor is shorter":          {`('retention_floor/noop/x', '2 days')`, "3 days", `SELECT outbox.prune(0, 100, 7776000, '{noop/x}', '{3600}')`, false},
		"ninety days, a tool's floor is shorter": {`('retention_floor/noop/x', '2 days')`, "3 days", `SELECT outbox.prune(0, 100, 7776000)`, true},
		"settled late, and the attempt dated back": {"", "100 days", `WITH forged AS (INSERT INTO outbox.attempt (intent_id, attempt, worker, finished_at, outcome, status)
			SELECT id, 3, 'w', now() - interval '100 days', 'completed', 'completed' FROM outbox.intent) SELECT`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAged(t)
			intent := a.settled("run", "step")
			if c.settings != "" {
				drainertest.Exec(t, a.pool, `INSERT INTO outbox.setting VALUES `+c.settings)
			}
			drainertest.Exec(t, a.pool, `UPDATE outbox.intent SET created_at = now() - $1::interval`, c.old)
			drainertest.Exec(t, a.pool, `UPDATE outbox.attempt SET finished_at = now() - $1::interval`, c.old)
			if strings.HasPrefix(c.prune, "WITH forged") {
				a.append(intent, 2, []string{"completed", "ago=1d"})
				drainertest.Exec(t, a.pool, c.prune)
				c.prune = `SELECT outbox.prune(0, 100, 3600)`
			}
			drainertest.Exec(t, a.pool, c.prune)
			if kept := slices.Contains(a.left(), intent); kept != c.kept {
				t.Errorf("kept is %t, want %t", kept, c.kept)
			}
		})
	}
}

func TestAFloorIsAtLeastAnHourAndAnInterval(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	for value, wantState := range map[string]string{"1 hour": "", "59 minutes": "23514", "soon": "22007"} {
		tx := drainertest.Begin(t, pool)
		if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.setting VALUES ('retention_floor/a/b', $1)`, value); sqlState(err) != wantState {
			t.Errorf("%s: %v, want SQLSTATE %q", value, err, wantState)
		}
	}
}

// A saga that begins now would have to undo the old step too.
func TestARunThatIsInUseKeepsItsOldSteps(t *testing.T) {
	t.Parallel()
	const fresh, pending, retried = "a fresh step", "a pending one", "one tried lately"
	for name, c := range map[string]struct {
		other  string
		age    string // of the old step
		maxRun float64
		kept   bool
	}{
		"alone":                                {"", "100 days", 365 * day, false},
		fresh:                                  {fresh, "100 days", 365 * day, true},
		pending:                                {pending, "100 days", 365 * day, true},
		retried:                                {retried, "100 days", 365 * day, true},
		"a step of a tool that is kept longer": {"noop/long", "100 days", 365 * day, true},
		"a fresh step, past the longest life of a run":    {fresh, "100 days", 99 * day, false},
		"a pending one, past the longest life of a run":   {pending, "100 days", 99 * day, false},
		"a life shorter than the retention, which counts": {fresh, "80 days", day, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAged(t)
			a.maxRun = c.maxRun
			old := a.settled("run", "old")
			switch c.other {
			case "":
			case fresh:
				a.intent("run", "new", "noop/x", "{}", "completed")
			case pending:
				if _, err := enqueue(t, a.pool, "run", "new", "noop/x", "scope", "{}"); err != nil {
					t.Fatal(err)
				}
				drainertest.Exec(t, a.pool, `UPDATE outbox.intent SET created_at = now() - interval '100 days'`)
			case retried:
				a.append(a.settled("run", "new"), 2, []string{"completed"})
			default:
				a.age(a.intent("run", "new", c.other, "{}", "completed"))
			}
			drainertest.Exec(t, a.pool, `UPDATE outbox.intent SET created_at = now() - $1::interval WHERE id = $2`, c.age, old)
			drainertest.Exec(t, a.pool, `UPDATE outbox.attempt SET finished_at = now() - $1::interval WHERE intent_id = $2`, c.age, old)
			fault.Injected(t, 82, 1)
			a.prune(1000)
			if kept := slices.Contains(a.left(), old); kept != c.kept {
				t.Errorf("kept is %t, want %t", kept, c.kept)
			}
		})
	}
}

func TestARunThatLostAStepToPruningSaysSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcome string
		missed  int
	}{"a completed step": {"completed", 1}, "a failed one": {"rejected", 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAged(t)
			a.maxRun = 95 * day
			drainertest.Tenant(t, a.pool) // with tenants, a run has a row
			a.age(a.intent("run", "old", "noop/x", "{}", c.outcome))
			young := a.intent("run", "young", "noop/x", "{}", "completed")
			a.settled("another", "old")
			fault.Injected(t, 82, 1)
			if pruned := a.prune(1000); pruned != 2 {
				t.Fatalf("%d were pruned, want both old ones", pruned)
			}
			if n := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.forgotten WHERE agent_run_id = 'run'`); n != c.missed {
				t.Errorf("%d marks, want %d", n, c.missed)
			}
			if n := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.forgotten WHERE agent_run_id = 'another'`); n != 0 {
				t.Error("a run that is gone as a whole has left a mark")
			}
			if runs := drainertest.Column[string](t, a.pool, `SELECT agent_run_id FROM outbox.run`); !slices.Equal(runs, []string{"run"}) {
				t.Errorf("the runs %q have rows, want the one that is there", runs)
			}
			a.age(young)
			a.prune(1000)
			if n := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.forgotten`); n != 0 {
				t.Error("the mark stayed without its run")
			}
		})
	}
}

// Pruning waits for no lock: rows that are held are left for the next time.
func TestWhatIsHeldIsNotPruned(t *testing.T) {
	t.Parallel()
	a := newAged(t)
	held, free := a.settled("run", "held"), a.settled("run", "free")
	tx := drainertest.Begin(t, a.pool)
	drainertest.Exec(t, tx, `SELECT outbox.hold(ARRAY[$1::bigint])`, held)
	a.prune(1000)
	if left := a.left(); !slices.Equal(left, []int64{held}) {
		t.Errorf("%v are left, want %d and not %d", left, held, free)
	}
}

// An operator who waits for a prune in progress finds no intent to change.
func TestWhatIsBeingPrunedCannotBeHeld(t *testing.T) {
	t.Parallel()
	a := newAged(t)
	intent := a.settled("run", "step")
	tx := drainertest.Begin(t, a.pool)
	drainertest.Exec(t, tx, `SELECT outbox.prune(0, 10, 7776000)`)
	late := make(chan int, 1)
	go func() {
		late <- drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.hold(ARRAY[$1::bigint])`, intent)
	}()
	drainertest.AwaitBlocked(t, a.pool)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held := <-late; held != 0 {
		t.Error("an intent was held that is gone")
	}
}

// An enqueue of a key that is being pruned must not report that the key is still there.
func TestAKeyThatIsBeingForgottenIsNew(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{"enqueue": callEnqueue, "plain insert": plainInsert} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAged(t)
			a.settled("run", "step")
			tx := drainertest.Begin(t, a.pool)
			drainertest.Exec(t, tx, `SELECT outbox.prune(0, 10, 7776000)`)
			late := make(chan error, 1)
			go func() {
				_, err := a.pool.Exec(t.Context(), statement, "run", "step", "noop/x", "scope", "{}")
				late <- err
			}()
			drainertest.AwaitBlocked(t, a.pool)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-late; err != nil {
				t.Fatal(err)
			}
			if n := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.status WHERE status = 'pending'`); n != 1 {
				t.Error("the intent was lost in silence")
			}
			drainertest.AssertInvariant(t, a.pool)
		})
	}
}

func TestEnqueueingAndPruningMayMeetAtAnyMoment(t *testing.T) {
	t.Parallel()
	const rounds, enqueuers, keys = 300, 3, 20
	a := newAged(t)
	drainertest.Exec(t, a.pool, `ALTER TABLE outbox.intent ALTER created_at SET DEFAULT now() - interval '100 days'`)
	var enqueuing, pruning sync.WaitGroup
	done := make(chan struct{})
	pruning.Go(func() {
		for {
			if _, err := a.pool.Exec(t.Context(), `SELECT outbox.prune(0, 100, 7776000)`); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	var created atomic.Int64
	for range enqueuers {
		enqueuing.Go(func() {
			for round := range rounds {
				intent, err := enqueue(t, a.pool, "run", fmt.Sprint(round%keys), "noop/x", "scope", "{}")
				if err != nil {
					t.Error(err)
					return
				}
				if intent.Created {
					created.Add(1)
					if _, err := a.pool.Exec(t.Context(), settleLongAgo, intent.IntentID); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	enqueuing.Wait()
	close(done)
	pruning.Wait()
	drainertest.AssertInvariant(t, a.pool)
	if created.Load() <= keys {
		t.Errorf("only %d intents were created; the two did not meet much", created.Load())
	}
	if orphans := drainertest.Value[int](t, a.pool, `SELECT count(*) FROM outbox.duplicate d WHERE NOT EXISTS (SELECT FROM outbox.intent WHERE id = d.intent_id)`); orphans != 0 {
		t.Errorf("%d duplicates of intents that are gone", orphans)
	}
}

const settleLongAgo = `WITH gone AS (DELETE FROM outbox.queue WHERE intent_id = $1)
	INSERT INTO outbox.attempt (intent_id, attempt, worker, finished_at, outcome, status)
	VALUES ($1, 1, 'w', now() - interval '100 days', 'completed', 'completed')`
