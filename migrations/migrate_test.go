package migrations_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/migrations"
)

func TestUpDownUpLeavesAWorkingSchema(t *testing.T) {
	t.Parallel()
	url := drainertest.EmptyDatabase(t)
	pool := connect(t, url)

	for range 2 {
		changed, err := migrations.Up(t.Context(), url)
		if err != nil || len(changed) == 0 {
			t.Fatalf("up changed %v: %v", changed, err)
		}
		if err := migrations.Check(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		execute(t, pool, "SELECT * FROM outbox.enqueue('run', 'step', 'tool', 'scope', '{}')")
		execute(t, pool, "SELECT count(*) FROM outbox.river_job")

		if changed, err = migrations.Down(t.Context(), url); err != nil || len(changed) == 0 {
			t.Fatalf("down changed %v: %v", changed, err)
		}
		if n := count(t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'"); n != 0 {
			t.Fatal("down left the schema")
		}
	}
}

func TestMigratingWhatIsDoneChangesNothing(t *testing.T) {
	t.Parallel()
	if changed, err := migrations.Up(t.Context(), drainertest.Database(t)); err != nil || len(changed) != 0 {
		t.Errorf("up changed %v: %v", changed, err)
	}
	if changed, err := migrations.Down(t.Context(), drainertest.EmptyDatabase(t)); err != nil || len(changed) != 0 {
		t.Errorf("down changed %v: %v", changed, err)
	}
}

func TestReplicasMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := drainertest.EmptyDatabase(t)
	var (
		replicas sync.WaitGroup
		mu       sync.Mutex
		applied  = map[migrations.Migration]int{}
	)
	for range 4 {
		replicas.Go(func() {
			changed, err := migrations.Up(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, m := range changed {
				applied[m]++
			}
		})
	}
	replicas.Wait()

	all, err := migrations.Status(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if applied[m] != 1 || !m.Applied {
			t.Errorf("%+v was applied by %d replicas", m, applied[m])
		}
	}
}

func TestDatabasesOfOneClusterMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	var databases sync.WaitGroup
	for range 3 {
		url := drainertest.EmptyDatabase(t)
		databases.Go(func() {
			for range 2 {
				if _, err := migrations.Up(t.Context(), url); err != nil {
					t.Error(err)
				}
				if _, err := migrations.Down(t.Context(), url); err != nil {
					t.Error(err)
				}
			}
		})
	}
	databases.Wait()
}

func TestCheckTellsThatTheSchemaIsBehind(t *testing.T) {
	t.Parallel()
	url := drainertest.EmptyDatabase(t)
	pool := connect(t, url)
	if err := migrations.Check(t.Context(), pool); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("an empty database: %v", err)
	}
	if n := count(t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'"); n != 0 {
		t.Error("looking created the schema")
	}

	pool = newDatabase(t)
	if err := migrations.Check(t.Context(), pool); err != nil {
		t.Errorf("a migrated database: %v", err)
	}
	execute(t, pool, "DELETE FROM outbox.river_migration WHERE version = (SELECT max(version) FROM outbox.river_migration)")
	if err := migrations.Check(t.Context(), pool); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("River one step behind: %v", err)
	}
}

func TestDownRefusesToDropWhatOthersPutThere(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	pool := connect(t, url)
	execute(t, pool, "CREATE TABLE outbox.theirs AS SELECT 1")

	if _, err := migrations.Down(t.Context(), url); sqlState(err) != "2BP01" {
		t.Errorf("got %v, want a refusal because something depends on the schema", err)
	}
	execute(t, pool, "TABLE outbox.theirs")
}

func TestAnUnreachableDatabaseIsToldWithoutItsPassword(t *testing.T) {
	t.Parallel()
	const url = "postgres://agent:hunter2@127.0.0.1:1/db?sslmode=disable"
	_, err := migrations.Up(t.Context(), url)
	var unreachable *pgconn.ConnectError
	if !errors.As(err, &unreachable) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	if _, err := migrations.Up(t.Context(), "postgres://agent:hunter2@host:port/db?x=y"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a URL that cannot be read: %v", err)
	}
}
