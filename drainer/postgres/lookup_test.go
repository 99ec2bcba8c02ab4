package postgres_test

import (
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

// inDoubt settles a row so that it is looked up next.
func (o *outbox) inDoubt(worker string, row *drainer.Row, reference string) {
	o.t.Helper()
	turn := settling(dispatch.Ambiguous, row)
	turn.Settle[0].Result.ProviderRef = reference
	turn.Settle[0].Decision = dispatch.Decision{Status: dispatch.StatusUnknown, Tries: row.Tries, MaybeApplied: true, Lookup: true}
	o.turn(worker, turn)
}

func (o *outbox) openIncidents() int {
	o.t.Helper()
	return stored[int](o, `SELECT count(*)::int FROM outbox.incident WHERE kind = 'outcome_unknown' AND acknowledged_at IS NULL`)
}

func TestARowInDoubtComesBackToBeLookedUp(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.inDoubt(worker, o.claim(worker, 1)[0], "ch_1")
	o.assertStatuses(map[string]int{"unknown": 1})

	rows := o.claim(worker, 1)
	if len(rows) != 1 || !rows[0].Lookup || rows[0].ProviderRef != "ch_1" {
		t.Fatalf("claimed %+v, want a lookup with the earlier reference", rows)
	}
	o.assertStatuses(map[string]int{"unknown": 1})
	o.settle(worker, dispatch.Completed, rows...)
	o.assertStatuses(map[string]int{"completed": 1})
	if attempts := stored[int](o, `SELECT attempts FROM outbox.status`); attempts != 1 || o.openIncidents() != 0 {
		t.Errorf("%d attempts and %d incidents, want the lookup not to count and nobody to be called", attempts, o.openIncidents())
	}
}

func TestALookupSurvivesItsWorkerAndItsRunsSaga(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.inDoubt(worker, o.claim(worker, 1)[0], "")
	o.exec(`INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('run', 1)`)
	o.claim(worker, 1)
	o.bury(worker)
	lost, err := o.Reap(t.Context(), []string{"sim"}, func(row *drainer.Row) (drainer.Settlement, bool) {
		settlement := ended(row, dispatch.Lost)
		settlement.Decision = dispatch.Decision{Status: dispatch.StatusUnknown, MaybeApplied: true, Lookup: row.Lookup}
		return settlement, true
	})
	if err != nil || len(lost) != 1 {
		t.Fatalf("reaped %d rows: %v", len(lost), err)
	}
	if rows := o.claim(o.join(), 1); len(rows) != 1 || !rows[0].Lookup {
		t.Errorf("claimed %+v, want the lookup again", rows)
	}
}

func TestWhatNobodyCanTellIsAnIncidentInTheSameCommit(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 3)
	rows := o.claim(worker, 3)
	turn := settling(dispatch.Ambiguous, rows...)
	turn.Settle[0].Decision = dispatch.Decision{Status: dispatch.StatusUnknown, MaybeApplied: true}
	turn.Settle[1].Decision = dispatch.Decision{Status: dispatch.StatusFailed}
	o.turn(worker, turn)
	if o.openIncidents() != 1 {
		t.Fatalf("%d incidents are open, want one, for the unknown row", o.openIncidents())
	}
	o.turn(worker, turn)
	if o.openIncidents() != 1 {
		t.Error("settling again opened another incident")
	}
}

func TestAnIncidentThatComesBackIsOpenAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	unknown := func(row *drainer.Row) {
		turn := settling(dispatch.Ambiguous, row)
		turn.Settle[0].Decision = dispatch.Decision{Status: dispatch.StatusUnknown, MaybeApplied: true}
		o.turn(worker, turn)
	}
	row := o.claim(worker, 1)[0]
	unknown(row)
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now(), acknowledged_by = 'on-call'`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at) VALUES ($1, $2, 'operator:on-call', 'retried', 'pending', now())`, row.IntentID, row.Attempt+1)
	o.exec(`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt) VALUES ('sim', now(), $1, $2, $3)`, row.IntentID, row.Tuple.AgentRunID, row.Attempt+1)
	unknown(o.claim(worker, 1)[0])
	if o.openIncidents() != 1 {
		t.Error("the second unknown outcome pages nobody")
	}
}
