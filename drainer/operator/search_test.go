package operator_test

import (
	"slices"
	"testing"
)

func TestASearchFindsWhereATextStands(t *testing.T) {
	t.Parallel()
	o := listed(t)
	o.exec(`UPDATE outbox.attempt SET provider_ref = 'ch_3' WHERE intent_id = 3`)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('3', 's', 'sim/act', 'invoice_442', '{}')`)
	key := one[string](o, `SELECT idempotency_key FROM outbox.status WHERE intent_id = 2`)
	for text, want := range map[string]struct {
		runs    []string
		intents []int64
	}{
		"ch_3":        {nil, []int64{3}},
		"invoice_442": {nil, []int64{7}},
		"3":           {[]string{"3"}, []int64{3}},
		"run-":        {[]string{"run-0", "run-1"}, nil},
		key:           {nil, []int64{2}},
		"ch_":         {nil, nil},
		"%":           {nil, nil},
	} {
		found, err := o.console().Search(t.Context(), text, 10)
		if err != nil {
			t.Fatal(err)
		}
		var intents []int64
		for _, intent := range found.Intents {
			intents = append(intents, intent.IntentID)
		}
		if !slices.Equal(found.Runs, want.runs) || !slices.Equal(intents, want.intents) || found.Bounded || found.More {
			t.Errorf("%q: got runs %q and intents %v (%+v), want %+v", text, found.Runs, intents, found, want)
		}
	}
	if found, err := o.console().Search(t.Context(), "scope", 5); err != nil || len(found.Intents) != 5 || !found.More {
		t.Errorf("more than the limit: %d intents, more is %t (%v)", len(found.Intents), found.More, err)
	}
	console := o.console()
	console.LookAtMost(2)
	if found, err := console.Search(t.Context(), "ch_3", 5); err != nil || len(found.Intents) != 0 || !found.Bounded {
		t.Errorf("an intent that was not looked at: %+v (%v)", found, err)
	}
}
