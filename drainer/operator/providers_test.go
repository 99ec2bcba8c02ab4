package operator_test

import (
	"errors"
	"testing"

	"github.com/agentoutbox/drainer/drainer/operator"
)

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
