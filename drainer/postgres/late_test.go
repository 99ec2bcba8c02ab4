package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
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
		worker, rows := o.losing(test.onRecord)
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

// What waits to be tried again, or looked up, has not been sent again yet.
func TestAnEffectThatIsKnownBeforeItsRowIsTriedAgainTakesItOutOfTheQueue(t *testing.T) {
	t.Parallel()
	for _, lookup := range []bool{false, true} {
		o := newOutbox(t)
		worker := o.join()
		o.enqueue("run", 0, 1)
		rows := o.claim(worker, 1)
		o.bury(worker)
		o.reap()
		o.exec(`UPDATE outbox.queue SET lookup = $1`, lookup)
		o.turn(o.join(), settling(dispatch.Completed, rows...))
		if got := stored[string](o, `SELECT status || ' ' || history FROM outbox.status, LATERAL (SELECT string_agg(outcome, ' ' ORDER BY attempt) AS history FROM outbox.attempt) a`); got != "completed lost completed" {
			t.Errorf("lookup %t: the intent is %s", lookup, got)
		}
		if waiting := stored[int](o, `SELECT count(*) FROM outbox.queue`); waiting != 0 {
			t.Errorf("lookup %t: it still waits", lookup)
		}
	}
}

// Once it is claimed again it is for whoever did that to say what it came to.
func TestAnEffectThatIsKnownWhileItsRowIsTriedAgainIsLeftToThatAttempt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	lost, other := o.join(), o.join()
	o.enqueue("run", 0, 1)
	rows := o.claim(lost, 1)
	o.bury(lost)
	o.reap()
	again := o.claim(other, 1)
	o.turn(o.join(), settling(dispatch.Completed, rows...))
	if got := stored[string](o, `SELECT status FROM outbox.status`); got != "in_progress" {
		t.Errorf("the intent is %s, want it in progress", got)
	}
	if reply := o.turn(other, settling(dispatch.Completed, again...)); len(reply.Refused) != 0 {
		t.Error("the attempt under way is refused")
	}
}

// The pass that ends a saga has read its steps before: what it cannot have seen
// waits for it, also where the saga was not there yet a moment ago.
func TestAnEffectThatIsKnownWhileItsRunGoesBackIsTold(t *testing.T) {
	t.Parallel()
	for name, begunBefore := range map[string]bool{"the saga was there": true, "the saga was not there": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			worker, rows := o.losing("failed")
			const begin = `INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`
			if begunBefore {
				o.exec(begin)
			}
			pass := o.begin()
			if !begunBefore {
				drainertest.Exec(t, pass, begin)
			}
			drainertest.Exec(t, pass, `SELECT FROM outbox.saga FOR UPDATE`)
			drainertest.Exec(t, pass, holdAll)
			turn := settling(dispatch.Completed, rows...)
			turn.Settle[0].Acts = true
			o.settleBehind(pass, worker, turn, `UPDATE outbox.saga SET state = 'compensated', ended_at = now()`)
			if state := stored[string](o, `SELECT state FROM outbox.saga`); state != "compensation_failed" {
				t.Errorf("the saga is %s although its step is applied", state)
			}
			if !stored[bool](o, `SELECT EXISTS (SELECT FROM outbox.incident WHERE detail = 'late_effect')`) {
				t.Error("nobody is told")
			}
		})
	}
}

// An operator decides that nothing happened while the worker brings its proof.
func TestAnEffectThatIsKnownWhileAnOperatorDeniesItIsRecorded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker, rows := o.losing("unknown")
	operator := o.begin()
	drainertest.Exec(t, operator, holdAll)
	o.settleBehind(operator, worker, settling(dispatch.Completed, rows...), fmt.Sprintf(
		`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (%d, %d, 'operator:ann', 'resolved', 'failed')`,
		rows[0].IntentID, rows[0].Attempt+1))
	o.assertStatuses(map[string]int{"completed": 1})
}

// losing is a worker whose row somebody else has settled like that.
func (o *outbox) losing(onRecord string) (worker string, rows []*drainer.Row) {
	o.t.Helper()
	worker = o.join()
	o.enqueue("run", 0, 1)
	rows = o.claim(worker, 1)
	o.exec(`DELETE FROM outbox.claim`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, $2, 'another', 'lost', $3)`,
		rows[0].IntentID, rows[0].Attempt, onRecord)
	return worker, rows
}

// holdAll is how operators and passes begin.
const holdAll = `SELECT outbox.hold(ARRAY(SELECT id FROM outbox.intent))`

func (o *outbox) begin() pgx.Tx {
	o.t.Helper()
	tx, err := o.db.Begin(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// settleBehind has a turn wait for a transaction, which then does something more
// and commits.
func (o *outbox) settleBehind(first pgx.Tx, worker string, turn drainer.Turn, then string) {
	o.t.Helper()
	settled := o.inBackground(worker, turn)
	o.awaitBlocked(settled)
	drainertest.Exec(o.t, first, then)
	if err := first.Commit(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
	if err := <-settled; err != nil {
		o.t.Fatal(err)
	}
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
