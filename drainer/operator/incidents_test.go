package operator_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func (o *outbox) incidents(filter operator.IncidentFilter) []operator.Incident {
	o.t.Helper()
	filter.Limit = 10
	incidents, err := o.console().Incidents(o.t.Context(), filter)
	if err != nil {
		o.t.Fatal(err)
	}
	return incidents
}

func (o *outbox) acknowledge(ids ...int64) []operator.Acknowledgement {
	o.t.Helper()
	done, err := o.console().Acknowledge(o.t.Context(), onCall, ids)
	if err != nil {
		o.t.Fatal(err)
	}
	return done
}

func TestAnAcknowledgementSaysWhoWhenAndWhy(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 1)
	o.end(once, dispatch.Ambiguous)
	before := o.incidents(operator.IncidentFilter{})
	if len(before) != 1 || before[0].State != "open" || before[0].Kind != "outcome_unknown" || *before[0].ToolName != "sim/act" {
		t.Fatalf("listed %+v, want one that is open", before)
	}

	if done := o.acknowledge(before[0].IncidentID); done[0].State != "acknowledged" || done[0].Refused != "" {
		t.Errorf("got %+v, want it acknowledged", done)
	}
	after := o.incidents(operator.IncidentFilter{})
	if len(after) != 1 || after[0].State != "acknowledged" || *after[0].AcknowledgedBy != "operator:on-call" ||
		*after[0].Reason != "because" || after[0].AcknowledgedAt == nil {
		t.Errorf("listed %+v, want it acknowledged by on-call", after)
	}
}

func TestTheFirstToAcknowledgeHasIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 2)
	o.end(once, dispatch.Ambiguous)
	ids := all[int64](o, `SELECT id FROM outbox.incident ORDER BY id`)
	o.exec(`UPDATE outbox.incident SET resolved_at = now() WHERE id = $1`, ids[1])
	o.acknowledge(ids[0])

	want := []operator.Acknowledgement{
		{IncidentID: ids[0], Kind: "outcome_unknown", State: "acknowledged", Refused: "operator:on-call acknowledged it before"},
		{IncidentID: ids[1], Kind: "outcome_unknown", State: "resolved", Refused: "it is resolved"},
		{IncidentID: 4711, Refused: "there is no such incident"},
	}
	if done := o.acknowledge(ids[0], ids[1], 4711); !slices.Equal(done, want) {
		t.Errorf("got %+v, want %+v", done, want)
	}
}

func TestAnAcknowledgedCollisionIsOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	id := one[int64](o, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 1, 'run') RETURNING id`)
	if done := o.acknowledge(id); done[0].State != "resolved" || done[0].Refused != "" {
		t.Errorf("got %+v, want it resolved", done)
	}
	if listed := o.incidents(operator.IncidentFilter{}); len(listed) != 0 {
		t.Errorf("%+v is still to be looked after", listed)
	}
	if listed := o.incidents(operator.IncidentFilter{All: true}); len(listed) != 1 || listed[0].State != "resolved" || *listed[0].ResolvedBy != "operator:on-call" {
		t.Errorf("listed %+v, want it resolved by on-call", listed)
	}
}

func TestIncidentsAreListedByKind(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 1, 'run'), ('compensation_failed', 1, 'run')`)
	if listed := o.incidents(operator.IncidentFilter{Kind: "compensation_failed"}); len(listed) != 1 || listed[0].Kind != "compensation_failed" {
		t.Errorf("listed %+v", listed)
	}
}

func TestNobodyAcknowledgesAnonymously(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	for _, by := range []operator.Signature{{Operator: "on-call"}, {Reason: "because"}} {
		if _, err := o.console().Acknowledge(t.Context(), by, []int64{1}); !errors.Is(err, operator.ErrUnsigned) {
			t.Errorf("%+v: %v", by, err)
		}
	}
}
