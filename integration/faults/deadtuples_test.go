package faults_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

const deadRows = 100_000

// A snapshot that somebody holds keeps every row of the queue that was claimed
// since. A lane that looked at them all with each claim would be slower with each.
func TestClaimsPassByTheDeadRowsThatASnapshotHolds(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	holder, err := w.DB.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	if _, err := holder.Exec(t.Context(), `SELECT count(*) FROM outbox.queue`); err != nil {
		t.Fatal(err)
	}
	// As if this many had been claimed before.
	if _, err := w.DB.Exec(t.Context(), `
		BEGIN;
		SET LOCAL session_replication_role = replica;
		INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id)
		SELECT 'keyed', now() - interval '1 hour' + n * interval '1 millisecond', -n, 'run' FROM generate_series(1, 100000) n;
		DELETE FROM outbox.queue;
		COMMIT`); err != nil {
		t.Fatal(err)
	}
	const looked = `SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelid = 'outbox.queue_pkey'::regclass`
	const read = `SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelid = 'outbox.queue_pkey'::regclass`
	looks, entries := w.Count(looked), w.Count(read)
	daemon := w.Start()
	stop := w.Agents(world.Keyed, world.Keyed, world.Keyed, world.Keyed)
	w.AwaitMoreEffects(300)
	stop()
	w.AwaitRest()
	drainertest.Eventually(t, "the dead rows are still there", func() bool {
		return w.Count(`SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox.queue'::regclass`) >= deadRows
	})
	fault.Injected(t, 27, deadRows)
	w.Check()

	daemon.Terminate() // its sessions report what they read when they end
	drainertest.Eventually(t, "the sessions have reported their first look of all", func() bool { return w.Count(read) >= entries+deadRows })
	looks, entries = w.Count(looked)-looks, w.Count(read)-entries
	t.Logf("%d looks read %d entries of the queue's index", looks, entries)
	if entries/looks > deadRows/10 {
		t.Errorf("a look reads %d entries, beside %d dead ones", entries/looks, deadRows)
	}
}
