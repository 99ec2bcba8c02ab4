package operator_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func TestARequestThatDoesNotReachTheDatabaseSaysWhatItWas(t *testing.T) {
	t.Parallel()
	c := newOutbox(t).console()
	c.Close(t.Context())
	ctx := t.Context()
	tuple := dispatch.Tuple{AgentRunID: "run", StepID: "step", ToolName: "sim/act", BusinessScope: "scope"}
	for want, ask := range map[string]func() error{
		"enqueue: ":                      func() error { _, err := c.Enqueue(ctx, tuple, json.RawMessage(`{}`)); return err },
		"list intents: ":                 func() error { _, err := c.List(ctx, operator.Filter{Limit: 1}); return err },
		"show intent: ":                  func() error { _, err := c.Show(ctx, 1); return err },
		"find intent: ":                  func() error { _, err := c.Find(ctx, tuple); return err },
		"find the intent's run: ":        func() error { _, err := c.RunOf(ctx, 1); return err },
		"select intents: ":               func() error { _, _, err := c.Select(ctx, operator.Selection{Limit: 1}); return err },
		"read where the intents stand: ": func() error { _, err := c.Preview(ctx, operator.Cancel{}, []int64{1}); return err },
		"change intents: ":               func() error { _, err := c.Change(ctx, operator.Cancel{}, onCall, []int64{1}); return err },
		"list incidents: ":               func() error { _, err := c.Incidents(ctx, operator.IncidentFilter{Limit: 1}); return err },
		"acknowledge incidents: ":        func() error { _, err := c.Acknowledge(ctx, onCall, []int64{1}); return err },
		"list providers: ":               func() error { _, err := c.Provider(ctx, "sim"); return err },
		"pause or resume a provider: ":   func() error { _, err := c.Pause(ctx, "sim", onCall); return err },
		"read the overview: ":            func() error { _, err := c.Overview(ctx); return err },
		"read the counters: ":            func() error { _, err := c.Counters(ctx); return err },
		"list sagas: ":                   func() error { _, err := c.Sagas(ctx, "", 1); return err },
		"show the saga: ":                func() error { _, err := c.SagaOf(ctx, "run"); return err },
		"change the saga: ":              func() error { return c.Compensate(ctx, "run", onCall) },
	} {
		if err := ask(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("it says %v, want %q", err, want)
		}
	}
}

func TestAChangeThatFailsHalfWayChangesNothing(t *testing.T) {
	t.Parallel()
	for fails, breaks := range map[string]string{
		"hold the intents":             `ALTER FUNCTION outbox.hold RENAME TO away`,
		"read where the intents stand": `ALTER VIEW outbox.status RENAME TO away`,
		"append to the history":        `ALTER TABLE outbox.attempt RENAME reason TO away`,
	} {
		t.Run(fails, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			intents := o.enqueue("run", 2)
			o.exec(breaks)
			if verdicts, err := o.console().Change(t.Context(), operator.Cancel{}, onCall, intents); err == nil || !strings.Contains(err.Error(), ": "+fails+": ") {
				t.Errorf("%v, and it says %v, want that it could not %s", verdicts, err, fails)
			}
			if queued := one[int](o, `SELECT count(*) FROM outbox.queue`); queued != 2 {
				t.Errorf("%d intents are left in the queue, want both", queued)
			}
		})
	}
}

func TestTheRestOfAStoryThatCannotBeReadIsNotLeftOutInSilence(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`)
	o.exec(`ALTER TABLE outbox.attempt RENAME reason TO away`)
	if dossier, err := o.console().Show(t.Context(), intent); err == nil || !strings.HasPrefix(err.Error(), "read the intent's history: ") {
		t.Errorf("%+v, %v", dossier, err)
	}
	if story, err := o.console().SagaOf(t.Context(), "run"); err == nil || story != nil {
		t.Errorf("%+v, %v", story, err)
	}
	o.exec(`ALTER VIEW outbox.status RENAME TO away`)
	if story, err := o.console().SagaOf(t.Context(), "run"); err == nil || story != nil {
		t.Errorf("%+v, %v", story, err)
	}
}

func TestACancelThatClosedTheRunAndGotNoFurtherSaysSo(t *testing.T) {
	t.Parallel()
	for fails, breaks := range map[string]string{
		"the run is closed, but take what waits out of the queue: ": `ALTER TABLE outbox.queue RENAME TO away`,
		"the run is closed, but read where it stands: ":             `ALTER VIEW outbox.status RENAME TO away`,
	} {
		o := newOutbox(t)
		o.enqueue("run", 1)
		o.exec(breaks)
		if _, err := o.console().CancelRun(t.Context(), "run", false, onCall); err == nil || !strings.HasPrefix(err.Error(), fails) {
			t.Errorf("it says %v, want %q", err, fails)
		}
		if state := one[string](o, `SELECT state FROM outbox.saga WHERE agent_run_id = 'run'`); state != "cancelled" {
			t.Errorf("the run is %s", state)
		}
	}
}

func TestASagaThatCannotGoOnStaysAsItWas(t *testing.T) {
	t.Parallel()
	retry := func(ctx context.Context, c *operator.Console) error { return c.RetrySaga(ctx, "run", nil, onCall) }
	resolve := func(ctx context.Context, c *operator.Console) error { return c.ResolveSaga(ctx, "run", onCall) }
	for _, test := range []struct {
		fails, breaks string
		do            func(context.Context, *operator.Console) error
	}{
		{"open its steps again: ", `ALTER TABLE outbox.attempt RENAME reason TO away`, retry},
		{"find undos that ended badly: ", `ALTER TABLE outbox.intent RENAME compensates TO away`, retry},
		{"look for an undo that is under way: ", `ALTER VIEW outbox.status RENAME finished_at TO away`, resolve},
	} {
		o := newOutbox(t)
		o.enqueue("run", 1)
		o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('run', 'compensation_failed')`)
		o.exec(test.breaks)
		if err := test.do(t.Context(), o.console()); err == nil || !strings.Contains(err.Error(), test.fails) {
			t.Errorf("it says %v, want %q", err, test.fails)
		}
		if state := one[string](o, `SELECT state FROM outbox.saga WHERE agent_run_id = 'run'`); state != "compensation_failed" {
			t.Errorf("%s: the saga is %s", test.fails, state)
		}
	}
}

func TestAnOverviewIsWholeOrAnError(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"worker", "collisions", "incident"} {
		o := newOutbox(t)
		kind := "TABLE"
		if missing == "collisions" {
			kind = "SEQUENCE"
		}
		o.exec(`ALTER ` + kind + ` outbox.` + missing + ` RENAME TO away`)
		if overview, err := o.console().Overview(t.Context()); err == nil {
			t.Errorf("without %s it is %+v", missing, overview)
		}
	}
}
