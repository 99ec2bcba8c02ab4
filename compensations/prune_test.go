package compensations_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
)

// An undo of a step that is gone could never tell it how it ended.
func TestAStepThatIsBeingPrunedIsNotUndone(t *testing.T) {
	t.Parallel()
	db := drainertest.Connect(t, drainertest.Database(t))
	for _, statement := range []string{
		`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
		 VALUES ('run', 'step', 'sim/act', 'scope', '{}', now() - interval '100 days')`,
		`INSERT INTO outbox.attempt (intent_id, attempt, worker, finished_at, outcome, status)
		 SELECT id, 1, 'w', now() - interval '100 days', 'completed', 'completed' FROM outbox.intent`,
		`DELETE FROM outbox.queue`,
	} {
		if _, err := db.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	undoable := compensations.Policies{"sim": {"act": dispatch.Policy{Reversal: dispatch.Reversal{Tool: "sim/undo"}}}}
	saga, err := compensations.New(db, undoable, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}

	pruning, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pruning.Rollback(context.WithoutCancel(t.Context()))
	if _, err := pruning.Exec(t.Context(), `SELECT outbox.prune(0, 10, 7776000)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`); err != nil {
		t.Fatal(err)
	}
	advanced := make(chan error, 1)
	go func() { advanced <- saga.Advance(t.Context(), "run") }()
	awaitBlocked(t, db)
	if err := pruning.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-advanced; err != nil {
		t.Fatal(err)
	}
	drainertest.AssertInvariant(t, db)
	var undos int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.intent`).Scan(&undos); err != nil || undos != 0 {
		t.Errorf("%d undos of a step that is gone (%v)", undos, err)
	}
}

// awaitBlocked returns once a session waits for another one's lock.
func awaitBlocked(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for blocked := false; !blocked; {
		err := db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`).Scan(&blocked)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("nobody waits for the lock (%v)", err)
		}
	}
}
