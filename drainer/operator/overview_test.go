package operator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func TestTheOverviewTellsWhyAProviderIsNotSentTo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.provider (name, paused, state, open_until) VALUES
		('half', false, 'half_open', now() - interval '1 second'), ('open', false, 'open', now() + interval '1 hour'), ('paused', true, 'closed', NULL)`)
	o.exec(`UPDATE outbox.worker SET providers = '{sim,spare,half,open}'`)
	o.exec(`SELECT FROM outbox.enqueue('run', 'step', 'unserved/act', 'scope', '{}')`)

	overview, err := o.console().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]operator.ProviderOverview{}
	for _, provider := range overview.Providers {
		found[provider.Provider] = provider
	}
	for provider, want := range map[string]struct {
		paused  bool
		breaker string
		least   float64 // seconds
		most    float64
		served  bool
		why     string
	}{
		"sim":      {false, "closed", -1, -1, true, ""},
		"paused":   {true, "closed", -1, -1, false, "it is paused"},
		"open":     {false, "open", 3500, 3600, true, "its circuit breaker is open"},
		"half":     {false, "half_open", 0, 0, true, "its circuit breaker lets one row try"},
		"unserved": {false, "", -1, -1, false, "no living worker serves it"},
	} {
		got := found[provider]
		breaker, openFor := "", -1.0
		if got.Breaker != nil {
			breaker = *got.Breaker
		}
		if got.OpenForSeconds != nil {
			openFor = *got.OpenForSeconds
		}
		if got.Provider == "" || got.Paused != want.paused || breaker != want.breaker || openFor < want.least || openFor > want.most || got.Served != want.served || got.Why() != want.why {
			t.Errorf("%s: %+v, breaker %q, open for %.1f s; want %+v", provider, got, breaker, openFor, want)
		}
	}
}

func TestAProviderIsServedByAWorkerThatLives(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 1)
	o.exec(`UPDATE outbox.worker SET tools = '{shut/act}'`)
	o.exec(`INSERT INTO outbox.tool (name, state) VALUES ('shut/act', 'open')`)
	for silent, lives := range map[string]bool{"20 s": true, "70 s": false} {
		o.exec(`UPDATE outbox.worker SET beat_at = now() - $1::interval`, silent)
		overview, err := o.console().Overview(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if workers := overview.Living(); overview.Workers[0].Lives != lives || (workers == 1) != lives {
			t.Errorf("after %s, %d workers live", silent, workers)
		}
		for _, p := range overview.Providers {
			if p.Served != lives {
				t.Errorf("after %s, %s is served: %t", silent, p.Provider, p.Served)
			}
			if unserved := p.Why() == "no living worker serves it"; unserved != (!lives && p.Provider == "sim") {
				t.Errorf("after %s, %s needs a look: %q", silent, p.Provider, p.Why())
			}
		}
	}
}

func TestALaneWithoutProgressNeedsALook(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		due, attempt float64 // seconds
		why          string
	}{
		"as usual":             {29, 299, ""},
		"rows are not taken":   {31, 0, "rows are due and not taken: its workers are at their limits, or stand still"},
		"an attempt is so old": {31, 301, "an attempt does not end: its worker hangs, or is gone"},
	} {
		closed := "closed"
		if why := (operator.ProviderOverview{Breaker: &closed, Served: true, OldestDueAgeSeconds: test.due, OldestInProgressAgeSeconds: test.attempt}).Why(); why != test.why {
			t.Errorf("%s: %q, want %q", name, why, test.why)
		}
	}
}

// A row that waits for a shut gate has the same status as any other pending row.
func TestAnIntentTellsWhichGateKeepsItWaiting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ shut, place, status, why string }{
		"its operation, which it is parked under": {`INSERT INTO outbox.tool (name, state, reason, open_until) VALUES ('sim/act', 'open', 'failure_rate', now() + interval '8 seconds')`, "sim/act", "pending", "sim/act: its circuit breaker is open: failure_rate"},
		"its operation, before it is parked":      {`INSERT INTO outbox.tool (name, state, reason) VALUES ('sim/act', 'half_open', 'forbidden')`, "sim", "pending", "sim/act: one row is trying it now: forbidden"},
		"its provider":                            {`UPDATE outbox.provider SET state = 'open', reason = 'overload' WHERE name = 'sim'`, "sim", "pending", "sim: its circuit breaker is open: overload"},
		"a pause":                                 {`SELECT outbox.operate_provider('sim', true, 'operator:ann', 'ticket 7')`, "sim", "pending", "sim is paused: ticket 7"},
		"its lookup's operation":                  {`INSERT INTO outbox.tool (name, state, reason) VALUES ('sim/find', 'open', 'failure_rate'), ('sim/act', 'open', 'forbidden')`, "sim/find", "unknown", "sim/find: its circuit breaker is open: failure_rate"},
		"nothing for a lookup if its act is shut": {`INSERT INTO outbox.tool (name, state, reason) VALUES ('sim/act', 'open', 'forbidden')`, "sim", "unknown", ""},
		"nothing": {`INSERT INTO outbox.tool (name, state, reason) VALUES ('sim/other', 'open', 'forbidden')`, "sim", "pending", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			id := o.enqueue("run", 1)[0]
			o.exec(test.shut)
			if test.status == "unknown" {
				o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, finished_at, outcome, status, next_attempt_at) VALUES ($1, 1, 'w', now(), 'ambiguous', 'unknown', now())`, id)
			}
			o.exec(`UPDATE outbox.queue SET provider = $1`, test.place)
			dossier, err := o.console().Show(t.Context(), id)
			if err != nil || dossier.Status != test.status {
				t.Fatalf("%+v, %v", dossier, err)
			}
			why := ""
			if dossier.Gate != nil {
				why = dossier.Gate.Why()
			}
			if why != test.why {
				t.Errorf("it waits for %q, want %q", why, test.why)
			}
		})
	}
}

// If a claim is far older than any dispatch, there is no process left that would recover it.
func TestTheOverviewTellsHowLongTheOldestClaimHasBeenInProgress(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 1)
	o.claim()
	o.exec(`UPDATE outbox.claim SET claimed_at = now() - interval '1 hour'`)
	overview, err := o.console().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range overview.Providers {
		if hours := int(p.OldestInProgressAgeSeconds / 3600); (p.Provider == "sim") != (hours == 1) {
			t.Errorf("%s: the oldest claim is %v s old", p.Provider, p.OldestInProgressAgeSeconds)
		}
	}
}

func TestTheOverviewCountsWhatGoesBackAndWhatWantsAHuman(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, _ := failedSaga(o, "failed")
	o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('1', 'begun'), ('2', 'begun'), ('3', 'compensated'), ('4', 'resolved'), ('5', 'cancelled')`)
	// The failed saga now has two incidents, and one of them is acknowledged. One incident is resolved, and one is of
	// another run.
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, acknowledged_at, resolved_at) VALUES
		('reversal_window_expired', $1, 'doomed', now(), NULL), ('outcome_unknown', $1, '4', NULL, now()), ('key_collision', $1, '9', NULL, NULL)`, steps[0])
	overview, err := o.console().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (operator.Attention{SagasBegun: 2, SagasFailed: 1, IncidentsOpen: 2}); overview.Attention != want {
		t.Errorf("%+v, want %+v", overview.Attention, want)
	}
}

func (o *outbox) incidents(filter operator.IncidentFilter) []operator.Incident {
	o.t.Helper()
	filter.Limit = 10
	page, err := o.console().Incidents(o.t.Context(), filter)
	if err != nil {
		o.t.Fatal(err)
	}
	return page.Incidents
}

func (o *outbox) acknowledge(ids ...int64) []operator.Acknowledgement {
	o.t.Helper()
	done, err := o.console().Acknowledge(o.t.Context(), onCall, ids, time.Time{})
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

func TestAPreviewSaysWhatAnAcknowledgementDoes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 1)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, acknowledged_at, acknowledged_by, resolved_at)
		SELECT kind, 1, 'run', a, CASE WHEN a IS NOT NULL THEN 'operator:ann' END, r FROM (VALUES
		('outcome_unknown', NULL, NULL), ('saga_stalled', now(), NULL), ('forbidden', now(), now()), ('credentials_refused', NULL, now()),
		('key_collision', NULL::timestamptz, NULL::timestamptz), ('refused_intent', NULL, NULL), ('first_replay', NULL, NULL)) v (kind, a, r)`)
	ids := append(all[int64](o, `SELECT id FROM outbox.incident ORDER BY id`), 4711)
	would, err := o.console().PreviewAcknowledge(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	if open := one[int](o, `SELECT count(*)::int FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL`); open != 4 {
		t.Errorf("%d are open after a preview, want 4", open)
	}
	done := o.acknowledge(ids...)
	if len(would) != len(ids) || len(done) != len(ids) {
		t.Fatalf("%d are previewed and %d acknowledged, want %d", len(would), len(done), len(ids))
	}
	for i, d := range done {
		if w := would[i]; w.IncidentID != d.IncidentID || w.Kind != d.Kind || w.After != d.State || w.Refused != d.Refused || (w.ToolName == nil) != (d.Kind == "") {
			t.Errorf("the preview is %+v, and what happened %+v", w, d)
		}
	}
}

// A saga whose step was undone twice continues and is never retried. So its incident ends when a human acknowledges it.
func TestAnAcknowledgedIncidentOfASagaThatDidNotFailIsOver(t *testing.T) {
	t.Parallel()
	for saga, state := range map[string]string{"begun": "resolved", "compensated": "resolved", "compensation_failed": "acknowledged"} {
		o := newOutbox(t)
		failedSaga(o, "failed")
		o.exec(`UPDATE outbox.saga SET state = $1`, saga)
		id := one[int64](o, `SELECT id FROM outbox.incident`)
		would, err := o.console().PreviewAcknowledge(t.Context(), []int64{id})
		if err != nil {
			t.Fatal(err)
		}
		if done := o.acknowledge(id); done[0].State != state || would[0].After != state {
			t.Errorf("%s: it would be %s and is %s, want %s", saga, would[0].After, done[0].State, state)
		}
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
		if _, err := o.console().Acknowledge(t.Context(), by, []int64{1}, time.Time{}); !errors.Is(err, operator.ErrUnsigned) {
			t.Errorf("%+v: %v", by, err)
		}
	}
}

func TestAPausedProviderIsNotClaimedUntilItIsResumed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 1)
	console := o.console()
	for _, step := range []struct {
		name    string
		act     func() (bool, error)
		changes bool
		rows    int
	}{
		{"pause", func() (bool, error) { return console.Pause(t.Context(), "sim", onCall) }, true, 0},
		{"pause again", func() (bool, error) { return console.Pause(t.Context(), "sim", onCall) }, false, 0},
		{"resume", func() (bool, error) { return console.Resume(t.Context(), "sim", onCall) }, true, 1},
		{"resume again", func() (bool, error) { return console.Resume(t.Context(), "sim", onCall) }, false, 0},
	} {
		changed, err := step.act()
		if err != nil || changed != step.changes {
			t.Errorf("%s: changed %t, %v; want %t", step.name, changed, err, step.changes)
		}
		if rows := o.claim(); len(rows) != step.rows {
			t.Errorf("after %s %d rows were claimed, want %d", step.name, len(rows), step.rows)
		}
	}
}

func TestWhoPausedAProviderAndWhyIsListedAndKept(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.console()
	if _, err := console.Pause(t.Context(), "sim", operator.Signature{Operator: "second", Reason: "sends twice"}); err != nil {
		t.Fatal(err)
	}
	providers, err := console.Providers(t.Context())
	if err != nil || len(providers) != 2 {
		t.Fatalf("%+v, %v; want the two that were announced", providers, err)
	}
	sim, spare := providers[0], providers[1]
	if !sim.Paused || *sim.ChangedBy != "operator:second" || *sim.Reason != "sends twice" || sim.ChangedAt == nil {
		t.Errorf("the paused one is listed as %+v", sim)
	}
	if spare.Paused || spare.ChangedBy != nil {
		t.Errorf("the other one is listed as %+v", spare)
	}
	if _, err := console.Resume(t.Context(), "sim", onCall); err != nil {
		t.Fatal(err)
	}
	if kept := all[string](o, `SELECT action || ' ' || operator || ': ' || reason FROM outbox.operation ORDER BY id`); len(kept) != 2 ||
		kept[0] != "pause operator:second: sends twice" || kept[1] != "resume operator:on-call: because" {
		t.Errorf("kept is %q", kept)
	}
}

func TestAProviderThatNobodyKnowsIsNotPaused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.console()
	acts := map[string]func(name string) error{
		"pause":  func(name string) error { _, err := console.Pause(t.Context(), name, onCall); return err },
		"resume": func(name string) error { _, err := console.Resume(t.Context(), name, onCall); return err },
		"show":   func(name string) error { _, err := console.Provider(t.Context(), name); return err },
	}
	for verb, act := range acts {
		for name, want := range map[string]string{
			"simm": `there is no provider "simm"; did you mean "sim"?`,
			"bank": `there is no provider "bank"; known here: sim, spare`,
		} {
			var unknown *operator.UnknownProviderError
			if err := act(name); !errors.As(err, &unknown) || err.Error() != want {
				t.Errorf("%s: got %v, want %s", verb, err, want)
			}
		}
	}
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', 's', 'coming/x', 'b', '{}')`)
	if changed, err := console.Pause(t.Context(), "coming", onCall); err != nil || !changed {
		t.Errorf("one that rows wait for: changed %t, %v", changed, err)
	}
}

func TestAPauseWithoutAReasonIsRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	if _, err := o.console().Pause(t.Context(), "sim", operator.Signature{Operator: "second"}); !errors.Is(err, operator.ErrUnsigned) {
		t.Errorf("got %v", err)
	}
}

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
	for _, intent := range dead.Intents {
		ids = append(ids, intent.IntentID)
	}
	want := slices.Concat(failed, unknown)
	slices.Reverse(want)
	if !slices.Equal(ids, want) {
		t.Errorf("dead are %v, want %v: what is not tried again", ids, want)
	}
}

// The failed intents of a run need no human after the run was rolled back. An unknown outcome still does.
func TestWhatASagaHasSettledNeedsNobody(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state string
		stuck bool // the failed intents still need a human
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
			return slices.ContainsFunc(dead.Intents, func(i operator.Intent) bool { return i.IntentID == intent })
		}
		if listed(undo) != test.stuck || listed(steps[0]) != test.stuck || slices.Contains(chosen, undo) != test.stuck {
			t.Errorf("%s: dead are %+v, chosen %v", test.state, dead, chosen)
		}
		if !listed(steps[1]) || !slices.Contains(chosen, steps[1]) {
			t.Errorf("%s: a step of unknown outcome is not listed", test.state)
		}
	}
}
