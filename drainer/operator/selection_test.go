package operator_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func TestASelectionFindsWhatItNames(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	failed := o.enqueue("failed", 3)
	o.end(keyed, dispatch.Rejected)
	unknown := o.enqueue("unknown", 1)
	o.end(once, dispatch.Ambiguous)
	lookedUp := o.enqueue("looked up", 1)
	o.end(asked, dispatch.Ambiguous)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour'`)
	lookedUp = append(lookedUp, o.enqueue("once failed, now looked up", 1)...)
	o.end(keyed, dispatch.Rejected)
	o.mustChange(operator.Retry{}, lookedUp[1])
	o.end(asked, dispatch.Ambiguous)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour'`)
	o.enqueue("completed", 1)
	o.end(keyed, dispatch.Completed)
	again := o.enqueue("failed again", 1)
	o.end(keyed, dispatch.Rejected)
	o.mustChange(operator.Retry{}, again[0])
	pending := append(again, o.enqueue("pending", 1)...)
	elsewhere := all[int64](o, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
		VALUES ('old', 's', 'spare/act', 'b', '{}', now() - interval '2 days') RETURNING id`)

	for name, test := range map[string]struct {
		selection operator.Selection
		want      []int64
		more      bool
	}{
		"failed":            {operator.Selection{Statuses: []string{"failed"}, Limit: 100}, failed, false},
		"of a run":          {operator.Selection{Statuses: []string{"failed", "unknown"}, Run: "unknown", Limit: 100}, unknown, false},
		"unknown":           {operator.Selection{Statuses: []string{"unknown"}, Limit: 100}, slices.Concat(unknown, lookedUp), false},
		"pending":           {operator.Selection{Statuses: []string{"pending"}, Provider: "sim", Limit: 100}, pending, false},
		"older":             {operator.Selection{Statuses: []string{"pending"}, OlderThan: 24 * time.Hour, Limit: 100}, elsewhere, false},
		"up to the limit":   {operator.Selection{Statuses: []string{"failed"}, Limit: 3}, failed, false},
		"beyond the limit":  {operator.Selection{Statuses: []string{"failed"}, Limit: 2}, failed[:2], true},
		"of another status": {operator.Selection{Statuses: []string{"cancelled"}, Limit: 100}, nil, false},
	} {
		got, more, err := o.console().Select(t.Context(), test.selection)
		if err != nil || !slices.Equal(got, test.want) || more != test.more {
			t.Errorf("%s: selected %v (more: %v, %v), want %v", name, got, more, err, test.want)
		}
	}

	dead, err := o.console().List(t.Context(), operator.Filter{Dead: true, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for _, intent := range dead {
		ids = append(ids, intent.IntentID)
	}
	want := slices.Concat(failed, unknown)
	slices.Reverse(want)
	if !slices.Equal(ids, want) {
		t.Errorf("dead are %v, want %v: what nobody will try again", ids, want)
	}
}

// Nobody is to look again at what a run that went back has left behind.
func TestWhatASagaHasSettledNeedsNobody(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state string
		stuck bool // what failed still needs somebody
	}{{"compensation_failed", true}, {"compensated", false}, {"resolved", false}} {
		o := newOutbox(t)
		steps, undo := failedSaga(o, "failed")
		o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 9, 'w', 'ambiguous', 'unknown')`, steps[1])
		o.exec(`UPDATE outbox.saga SET state = $1`, test.state)
		dead, err := o.console().List(t.Context(), operator.Filter{Dead: true, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		chosen, _, err := o.console().Select(t.Context(), operator.Selection{Statuses: []string{"failed", "unknown"}, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		listed := func(intent int64) bool {
			return slices.ContainsFunc(dead, func(i operator.Intent) bool { return i.IntentID == intent })
		}
		if listed(undo) != test.stuck || listed(steps[0]) != test.stuck || slices.Contains(chosen, undo) != test.stuck {
			t.Errorf("%s: dead are %+v, chosen %v", test.state, dead, chosen)
		}
		if !listed(steps[1]) || !slices.Contains(chosen, steps[1]) {
			t.Errorf("%s: a step that nobody can tell of is not listed", test.state)
		}
	}
}
