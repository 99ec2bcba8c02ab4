package postgres_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

// withFallback is what a worker's two lanes claim, each for its server.
func (o *outbox) withFallback(worker string) []*drainer.Row {
	o.t.Helper()
	reply := o.turn(worker, drainer.Turn{Claims: []drainer.Claim{
		{Provider: "sim", Server: "sim", Fallback: "backup", Limit: 10},
		{Provider: "sim", Server: "backup", Fallback: "backup", Limit: 10},
	}})
	return append(reply.Claimed[0].Rows, reply.Claimed[1].Rows...)
}

func (o *outbox) shutOff(provider string) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.provider (name, state, open_until) VALUES ($1, 'open', now() + interval '1 hour')
		ON CONFLICT (name) DO UPDATE SET state = excluded.state, open_until = excluded.open_until`, provider)
}

func (o *outbox) open(provider string) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.provider (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET state = 'closed', open_until = NULL`, provider)
}

func TestAFallbackServesOnlyWhileTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(*outbox)
		via     string
		claimed int
	}{
		{"the provider is well", func(*outbox) {}, "", 1},
		{"its breaker is open", func(o *outbox) { o.shutOff("sim") }, "backup", 1},
		{"both are open", func(o *outbox) { o.shutOff("sim"); o.shutOff("backup") }, "", 0},
		{"the fallback is paused", func(o *outbox) {
			o.shutOff("sim")
			o.exec(`UPDATE outbox.provider SET paused = true WHERE name = 'backup'`)
		}, "", 0},
		{"the provider is paused", func(o *outbox) {
			o.shutOff("sim")
			o.exec(`UPDATE outbox.provider SET paused = true WHERE name = 'sim'`)
		}, "", 0},
	} {
		o := newOutbox(t)
		worker := o.join()
		o.open("backup")
		o.enqueue("run", 0, 1)
		test.prepare(o)
		rows := o.withFallback(worker)
		if len(rows) != test.claimed || (len(rows) > 0 && rows[0].Via != test.via) {
			t.Errorf("%s: claimed %d rows, %+v", test.name, len(rows), rows)
		}
	}
}

func TestWhatMayHaveBeenAppliedDoesNotChangeHands(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.open("backup")
	o.enqueue("own", 0, 1)
	o.settle(worker, dispatch.Ambiguous, o.claim(worker, 1)...)
	o.shutOff("sim")
	o.enqueue("fallen", 0, 1)
	fallen := o.withFallback(worker)
	if len(fallen) != 1 || fallen[0].Tuple.AgentRunID != "fallen" {
		t.Fatalf("the fallback got intents %v, want only the one that nobody may have applied", ids(fallen))
	}
	o.settle(worker, dispatch.Ambiguous, fallen...)

	o.open("sim")
	o.shutOff("backup")
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "" || rows[0].Tuple.AgentRunID != "own" {
		t.Errorf("its own provider got %+v, want what it may have applied itself", rows)
	}
	o.open("backup")
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "backup" || rows[0].Tuple.AgentRunID != "fallen" {
		t.Errorf("the fallback got %+v, want what it may have applied, although its own provider is well", rows)
	}
	if by := stored[string](o, `SELECT served_by FROM outbox.attempt WHERE served_by IS NOT NULL`); by != "backup" {
		t.Errorf("the attempt says that %q served it", by)
	}
}

func TestALostWorkerLeavesNoDoubtWhoServed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.open("backup")
	o.shutOff("sim")
	o.enqueue("run", 0, 1)
	o.withFallback(worker)
	o.bury(worker)
	o.successor()
	if lost := o.reap(); len(lost) != 1 || lost[0].Row.Via != "backup" {
		t.Fatalf("reaped %+v", lost)
	}
	o.open("sim")
	if rows := o.withFallback(o.successor()); len(rows) != 1 || rows[0].Via != "backup" || !rows[0].MaybeApplied {
		t.Errorf("claimed %+v, want the row back at the fallback", rows)
	}
}

func TestAFallbackOfItsOwnIsProbedWithWhatItIsToServe(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.shutOff("sim")
	o.open("backup")
	o.exec(`UPDATE outbox.provider SET state = 'open', open_until = now() WHERE name = 'backup'`)
	o.enqueue("run", 0, 3)
	reply := o.turn(worker, drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "backup", Fallback: "backup", Limit: 1, ProbeFor: time.Hour}}})
	if rows := reply.Claimed[0].Rows; len(rows) != 1 || !rows[0].Probe || rows[0].Via != "backup" {
		t.Errorf("claimed %+v, want one row to try the fallback with", rows)
	}
}

func TestWhatAForgottenFallbackMayHaveAppliedIsNotLeftLying(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.exec(`UPDATE outbox.queue SET via = 'removed', maybe_applied = true`)
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "removed" {
		t.Errorf("claimed %+v, want the row, for the provider's own lane to say what is missing", rows)
	}
}

func TestAnUndoGoesToWhoeverHadTheEffect(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.open("backup")
	o.shutOff("sim")
	o.enqueue("run", 0, 1)
	o.settle(worker, dispatch.Completed, o.withFallback(worker)...)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		VALUES ('run', 'compensate:1', 'sim/undo', 'scope', '{}', 1)`)
	if rows := o.withFallback(worker); len(rows) != 0 {
		t.Errorf("claimed %+v, want the undo to wait for its own provider", rows)
	}
	o.open("sim")
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "" {
		t.Errorf("claimed %+v, want the undo at its own provider", rows)
	}
}
