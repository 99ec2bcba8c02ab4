package faults_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

const blocked = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// Somebody has written the attempt that the daemon is about to write, and then
// wants the claim that it has locked. Postgres ends the daemon's turn, as the
// other session asks it to be patient.
func TestATurnThatDeadlocksIsRepeated(t *testing.T) {
	t.Parallel()
	w := world.New(t, dispatchtest.Script(dispatchtest.HangAfter))
	w.Reconfigure(patient)
	daemon := w.Start("PGOPTIONS=-c deadlock_timeout=5s") // it looks once, and that must not be before there is one
	w.Enqueue(world.Keyed, 1)
	w.AwaitEffects(1)
	other := begin(t, w, `SET LOCAL deadlock_timeout = '10min'`)
	if _, err := other.Exec(t.Context(), `
		INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at)
		SELECT intent_ids[1], attempts[1], 'crossed', 'lost', 'pending', now() FROM outbox.claim`); err != nil {
		t.Fatal(err)
	}
	w.Provider.Release()
	drainertest.Eventually(t, "the daemon waits for the attempt", func() bool { return w.Count(blocked) == 1 })
	if _, err := other.Exec(t.Context(), `SELECT FROM outbox.claim FOR UPDATE`); err != nil {
		t.Fatal("the other session was to win: ", err)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.AwaitRest()
	deadlocks := 0
	drainertest.Eventually(t, "Postgres counts the deadlock", func() bool {
		deadlocks = w.Count(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
		return deadlocks > 0
	})
	fault.Injected(t, 25, deadlocks)
	w.Check()
	if log := daemon.Terminate(); strings.Count(log, "turn failed") < deadlocks { // each lane of the turn says so
		t.Errorf("%d deadlocks, and the daemon says:\n%s", deadlocks, log)
	}
}

// conflicting makes Postgres refuse the first three attempts that are written,
// and the first three changes of a saga, as it refuses what it cannot serialize.
const conflicting = `
	CREATE SEQUENCE conflict_attempt;
	CREATE SEQUENCE conflict_saga;
	CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF nextval('conflict_' || TG_TABLE_NAME) <= 3 THEN
			RAISE EXCEPTION 'could not serialize access' USING ERRCODE = 'serialization_failure';
		END IF;
		RETURN NULL;
	END $$;
	CREATE TRIGGER conflict AFTER INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION conflict();
	CREATE TRIGGER conflict AFTER UPDATE ON outbox.saga FOR EACH ROW EXECUTE FUNCTION conflict()`

func TestTurnsAndSagasThatFailToSerializeAreRepeated(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	if _, err := w.DB.Exec(t.Context(), conflicting); err != nil {
		t.Fatal(err)
	}
	w.Start()
	for range 3 {
		run := w.NewRun()
		w.Step(run, 1, world.Order)
		w.Step(run, 2, world.Declined)
	}
	for _, tool := range everyClass {
		w.Enqueue(tool, 5)
	}
	w.AwaitRest()
	fault.Injected(t, 25, w.Count(`SELECT least(a.last_value, 3) + least(s.last_value, 3) FROM conflict_attempt a, conflict_saga s`))
	w.Check()
	if begun := w.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`); begun != 3 {
		t.Errorf("%d of 3 runs went back", begun)
	}
}

// A claim is changed while a turn waits for it. In a transaction as strict as
// the role's default asks for, the turn would fail each time.
func TestARolesStricterIsolationFailsNothing(t *testing.T) {
	t.Parallel()
	w := world.New(t, dispatchtest.Script(dispatchtest.HangAfter))
	w.Reconfigure(patient)
	daemon := w.Start("PGOPTIONS=-c default_transaction_isolation=serializable")
	w.Enqueue(world.Keyed, 1)
	w.AwaitEffects(1)
	other := begin(t, w, `UPDATE outbox.claim SET server = server`)
	w.Provider.Release()
	conflicts := 0
	drainertest.Eventually(t, "the daemon waits for the claim", func() bool {
		conflicts = w.Count(blocked)
		return conflicts > 0
	})
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.AwaitRest()
	fault.Injected(t, 25, conflicts)
	w.Check()
	if log := daemon.Terminate(); strings.Contains(log, "turn failed") {
		t.Errorf("a turn failed:\n%s", log)
	}
}

// begin is somebody else's transaction.
func begin(t *testing.T, w *world.World, sql string) pgx.Tx {
	t.Helper()
	tx, err := w.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return tx
}
