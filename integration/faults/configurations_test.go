package faults_test

import (
	"os"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

// One replica was deployed with a provider and a tool that the other does not
// know yet, and dies of them.
func TestAToolThatAReplicaDoesNotKnowWaitsForOneThatDoes(t *testing.T) {
	t.Parallel()
	const each = 5
	w := world.New(t, nil)
	w.Enqueue(world.Set, each)
	w.Enqueue(world.Order, each)
	newer := w.Start("DRAINER_FAILPOINTS=after_reply=kill")
	<-newer.Ended
	older := w.Program.Start(olderConfig(t, w))
	drainertest.Eventually(t, "the dead replica is buried", func() bool { return w.Count(`SELECT count(*) FROM outbox.worker`) == 1 })
	for _, tool := range everyClass {
		w.Enqueue(tool, each)
	}
	const unknownThere = `tool_name IN ('set/act', 'shop/order') AND status IN ('pending', 'in_progress')`
	drainertest.Eventually(t, "what both know is done, and the rest waits", func() bool {
		return w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'completed'`) == each*(len(everyClass)-2) &&
			w.Count(`SELECT count(DISTINCT intent_id) FROM outbox.attempt WHERE error = 'unconfigured_tool'`) > 0
	})
	waiting := w.Count(`SELECT count(*) FROM outbox.status WHERE ` + unknownThere)
	older.Terminate()
	w.Exec(`UPDATE outbox.queue SET next_attempt_at = now()`) // in a minute they would be
	w.Start()
	w.AwaitRest()
	fault.Injected(t, 61, waiting)
	w.Check()
	if waiting != 4*each {
		t.Errorf("%d rows waited for a replica that knows their tool, want all %d", waiting, 4*each)
	}
}

// olderConfig knows neither the provider set nor the tool shop/order.
func olderConfig(t *testing.T, w *world.World) string {
	t.Helper()
	text, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	return program.WriteConfig(t, strings.NewReplacer("\n  set:\n", "\n  other:\n", "\n      order:\n", "\n      other:\n").Replace(string(text)))
}
