package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
)

// The daemon does not hear of some of its commits, and every fifth agent not of
// its own. Half of those repeat themselves.
func TestALostReplyOfACommitIsNeitherForgottenNorRepeated(t *testing.T) {
	t.Parallel()
	const intents, claims, others = 200, 5, 5
	w := world.New(t, nil)
	daemons, agents := pgproxy.New(t, w.URL), pgproxy.New(t, w.URL)
	daemons.Cuts.Store(claims)
	daemons.LostCommits.Store(others)
	db := drainertest.Connect(t, agents.Behind(t, w.URL))
	enqueue := func(number int) history.Answer {
		intent := dispatch.Tuple{AgentRunID: fmt.Sprint("run-", number), StepID: "step", ToolName: everyClass[number%len(everyClass)], BusinessScope: "order"}
		return w.Clients.Enqueue(context.Background(), db, intent, json.RawMessage(`{"n": 1}`))
	}
	w.Program.Start(patientConfig(t, w), "DATABASE_URL="+daemons.Behind(t, w.URL))
	unheard := 0
	for number := range intents {
		if number%5 == 0 {
			agents.LostCommits.Store(1)
		}
		if enqueue(number) != history.Unheard {
			continue
		}
		unheard++
		if again := number%2 == 0; again && enqueue(number) != history.Committed {
			t.Errorf("agent %d repeats itself and does not hear that the intent is there", number)
		}
	}
	w.AwaitRest()
	missed := claims + others - int(max(0, daemons.Cuts.Load())+max(0, daemons.LostCommits.Load()))
	fault.Injected(t, 20, unheard+missed)
	w.Check()
	if unheard != intents/5 || daemons.Cuts.Load() > 0 {
		t.Errorf("%d agents and %d commits of the daemon were not heard of, want %d and %d", unheard, missed, intents/5, claims+others)
	}
	if given := w.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'released' AND error = 'reply_lost'`); given == 0 {
		t.Error("no claim that nobody heard of was given back")
	}
	if lost := w.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`); lost > 0 {
		t.Errorf("%d rows were lost, though their worker lived", lost)
	}
}
