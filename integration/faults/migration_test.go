package faults_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

// The newest migration is applied while daemons and agents work, and while one
// agent's transaction stays open on a table that it has to change.
func TestAMigrationUnderLoadLetsAgentsPass(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	w.Start()
	w.Start()
	undo := undoNewest(t)
	drainertest.Eventually(t, "the newest migration is undone", func() bool {
		_, err := w.DB.Exec(t.Context(), undo) // it may lose against a daemon's locks
		return err == nil
	})
	w.Program.Run(5, "run", "--config", w.Config) // a program that needs it refuses to start
	stop := w.Agents(everyClass...)
	w.AwaitMoreEffects(20)

	slow := begin(t, w, `LOCK outbox.queue, outbox.incident IN ROW EXCLUSIVE MODE`) // as an enqueue does
	migration := w.Program.Command("migrate", "up")
	if err := migration.Start(); err != nil {
		t.Fatal(err)
	}
	const waits = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ 'CREATE INDEX'`
	drainertest.Eventually(t, "the migration waits, and others behind it", func() bool { return w.Count(waits) > 0 && w.Count(blocked) > 1 })
	drainertest.Eventually(t, "it gives way", func() bool { return w.Count(waits) == 0 })
	w.AwaitMoreEffects(5)
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migration.Wait(); err != nil {
		t.Fatal("the migration failed: ", err)
	}
	w.AwaitMoreEffects(20)
	stop()
	w.AwaitRest()
	fault.Injected(t, 62, 1)
	w.Check()
	w.Start() // it needs the schema as it is now
}

// undoNewest is the SQL that takes the newest migration back.
func undoNewest(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../../migrations/sql/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	text, err := os.ReadFile(slices.Max(files))
	if err != nil {
		t.Fatal(err)
	}
	_, down, _ := strings.Cut(string(text), "-- +goose Down")
	return down + `DELETE FROM outbox.goose_db_version WHERE version_id = (SELECT max(version_id) FROM outbox.goose_db_version)`
}
