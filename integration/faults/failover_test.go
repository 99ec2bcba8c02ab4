package faults_test

import (
	"maps"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/docblock"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
)

// The standby that takes over has not heard that anything was sent, and of some
// intents nothing at all. What docs/operations.md says is done before anybody
// connects, and agents repeat what is gone.
func TestWhatAPromotedStandbyForgotIsNotDoneTwice(t *testing.T) {
	t.Parallel()
	const each = 10
	primary := cluster.Start(t)
	standby := cluster.Standby(t, primary)
	line := pgproxy.New(t, primary.URL)
	w := world.At(t, line.Behind(t, primary.URL), nil)
	for _, tool := range everyClass {
		w.Enqueue(tool, each)
	}
	// What cannot be asked for waits for a quarter of an hour since it was committed.
	cluster.Exec(t, primary, `SET session_replication_role = replica; UPDATE outbox.intent SET created_at = created_at - interval '20 minutes'`)
	cluster.AwaitCaughtUp(t, primary, standby)
	cluster.Kill(t, standby)
	repeat := func() {
		for number := range each {
			if answer := w.Step("gone", number, world.Keyed); answer != history.Committed {
				t.Fatalf("an agent's commit is %s", answer)
			}
		}
	}
	repeat()
	w.Start()
	w.AwaitRest()
	effects := w.Provider.Ledger.Audit().Effects

	line.TakeDown()
	cluster.Kill(t, primary)
	cluster.Restart(t, standby)
	cluster.Exec(t, standby, `SELECT pg_promote()`)
	forgotten := cluster.Ask[int](t, standby, `SELECT count(*) FROM outbox.queue`)
	cluster.Exec(t, standby, docblock.First(t, "docs/operations.md", "sql"))
	line.LeadTo(t, standby.URL)
	line.BringUp()
	w.DB.Reset()
	repeat()
	w.AwaitRest()

	fault.Injected(t, 18, forgotten+each)
	w.Check()
	if again := w.Provider.Ledger.Audit().Effects; !maps.Equal(effects, again) {
		t.Error("the provider acted again after the failover")
	}
	if unknown := w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'unknown' AND tool_name = $1`, world.Once); unknown != each {
		t.Errorf("%d intents that can neither be repeated nor asked for are unknown, want %d", unknown, each)
	}
	if completed := w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'completed'`); completed != each*len(everyClass) {
		t.Errorf("%d intents are completed, want all %d others", completed, each*len(everyClass))
	}
}

// A proxy or a name leads to a server that only reads, and later to the one that
// writes: what was connected in between must not stay where it is.
func TestADaemonLeavesAServerThatOnlyReads(t *testing.T) {
	t.Parallel()
	primary := cluster.Start(t)
	standby := cluster.Standby(t, primary)
	w := world.At(t, primary.URL, nil)
	line := pgproxy.New(t, primary.URL)
	w.Start("DATABASE_URL=" + line.Behind(t, primary.URL))
	stop := w.Agents(everyClass...)
	w.AwaitMoreEffects(20)

	line.LeadTo(t, standby.URL)
	line.TakeDown()
	line.BringUp()
	refused := 0
	drainertest.Eventually(t, "every pool of the daemon meets the server that only reads", func() bool {
		refused = cluster.Ask[int](t, standby, `SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'`)
		return refused >= 10
	})
	line.LeadTo(t, primary.URL)
	w.AwaitMoreEffects(20)
	stop()
	w.AwaitRest()
	fault.Injected(t, 19, refused)
	w.Check()
}
