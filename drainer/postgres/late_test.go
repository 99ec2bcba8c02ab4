package postgres_test

import (
	"context"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

// A worker that lost its row may still learn that the effect happened.
func TestAnEffectThatIsKnownLateIsRecorded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		onRecord  string // what was settled meanwhile
		saga      string // of the run; empty for none
		acts      bool
		status    string
		sagaAfter string
		pages     bool
	}{
		{"on record as failed", "failed", "", true, "completed", "", false},
		{"on record as unknown", "unknown", "", true, "completed", "", false},
		{"while its run goes back, which undoes it", "failed", "begun", true, "completed", "begun", false},
		{"after its run went back", "failed", "compensated", true, "completed", "compensation_failed", true},
		{"after people settled its run", "cancelled", "resolved", true, "completed", "compensation_failed", true},
		{"of a tool that only reads", "failed", "compensated", false, "completed", "compensated", false},
		{"on record as completed", "completed", "compensated", true, "completed", "compensated", false},
		{"undone already", "compensated", "compensated", true, "compensated", "compensated", false},
	} {
		o := newOutbox(t)
		worker := o.join()
		o.enqueue("run", 0, 1)
		rows := o.claim(worker, 1)
		o.exec(`DELETE FROM outbox.claim`)
		o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, $2, 'another', 'lost', $3)`,
			rows[0].IntentID, rows[0].Attempt, test.onRecord)
		if test.saga != "" {
			o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('run', $1)`, test.saga)
		}
		turn := settling(dispatch.Completed, rows...)
		turn.Settle[0].Acts, turn.Settle[0].Result.ProviderRef = test.acts, "ch_1"
		for range 2 { // a lane repeats itself until the database has heard it
			o.turn(worker, turn)
		}
		if got := stored[string](o, `SELECT status FROM outbox.status`); got != test.status {
			t.Errorf("%s: the intent is %s, want %s", test.name, got, test.status)
		}
		if got := stored[string](o, `SELECT coalesce((SELECT state FROM outbox.saga), '')`); got != test.sagaAfter {
			t.Errorf("%s: the saga is %q, want %q", test.name, got, test.sagaAfter)
		}
		if got := stored[bool](o, `SELECT EXISTS (SELECT FROM outbox.incident WHERE detail = 'late_effect')`); got != test.pages {
			t.Errorf("%s: it pages %v, want %v", test.name, got, test.pages)
		}
	}
}

// The pass that ends a saga has read its steps before: what it cannot have seen
// must wait for it.
func TestAnEffectThatIsKnownWhileItsSagaEndsIsTold(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	rows := o.claim(worker, 1)
	o.exec(`DELETE FROM outbox.claim`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, $2, 'operator:ann', 'resolved', 'failed')`,
		rows[0].IntentID, rows[0].Attempt)
	o.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`)

	pass, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pass.Rollback(context.Background()) })
	if _, err := pass.Exec(t.Context(), `SELECT FROM outbox.saga WHERE agent_run_id = 'run' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	turn := settling(dispatch.Completed, rows...)
	turn.Settle[0].Acts = true
	settled := o.inBackground(worker, turn)
	o.awaitBlocked(settled)
	if _, err := pass.Exec(t.Context(), `UPDATE outbox.saga SET state = 'compensated', ended_at = now()`); err != nil {
		t.Fatal(err)
	}
	if err := pass.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if state := stored[string](o, `SELECT state FROM outbox.saga`); state != "compensation_failed" {
		t.Errorf("the saga is %s although its step is applied", state)
	}
	if !stored[bool](o, `SELECT EXISTS (SELECT FROM outbox.incident WHERE detail = 'late_effect')`) {
		t.Error("nobody is told")
	}
}

// An operator decides that nothing happened while the worker brings its proof.
func TestAnEffectThatIsKnownWhileAnOperatorDeniesItIsRecorded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	rows := o.claim(worker, 1)
	const history = `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, $2, $3, $4, $5)`
	o.exec(`DELETE FROM outbox.claim`)
	o.exec(history, rows[0].IntentID, rows[0].Attempt, "another", "lost", "unknown")

	operator, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { operator.Rollback(context.Background()) })
	if _, err := operator.Exec(t.Context(), history, rows[0].IntentID, rows[0].Attempt+1, "operator:ann", "resolved", "failed"); err != nil {
		t.Fatal(err)
	}
	settled := o.inBackground(worker, settling(dispatch.Completed, rows...))
	o.awaitBlocked(settled)
	if err := operator.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	o.assertStatuses(map[string]int{"completed": 1})
}

// awaitBlocked returns once a session waits for another one's lock.
func (o *outbox) awaitBlocked(settled <-chan error) {
	o.t.Helper()
	for !stored[bool](o, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`) {
		select {
		case err := <-settled:
			o.t.Fatalf("the turn waited for nobody: %v", err)
		default:
		}
	}
}

func (o *outbox) inBackground(worker string, turn drainer.Turn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := o.Turn(o.t.Context(), worker, turn)
		done <- err
	}()
	return done
}
