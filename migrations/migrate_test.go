package migrations_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/migrations"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestUpDownUpLeavesAWorkingSchema(t *testing.T) {
	t.Parallel()
	url := drainertest.EmptyDatabase(t)
	pool := drainertest.Connect(t, url)

	keys := map[string]bool{} // of fingerprints: each outbox has one of its own
	for range 2 {
		changed, err := migrations.Up(t.Context(), url)
		if err != nil || len(changed) == 0 {
			t.Fatalf("up changed %v: %v", changed, err)
		}
		if err := migrations.Check(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		drainertest.Exec(t, pool, "SELECT * FROM outbox.enqueue('run', 'step', 'tool', 'scope', '{}')")
		drainertest.Exec(t, pool, "SELECT count(*) FROM outbox.river_job")
		key := drainertest.Value[string](t, pool, "SELECT key::text FROM outbox.fingerprint_key")
		if keys[key] {
			t.Error("two outboxes have the same key of fingerprints")
		}
		keys[key] = true

		if changed, err = migrations.Down(t.Context(), url); err != nil || len(changed) == 0 {
			t.Fatalf("down changed %v: %v", changed, err)
		}
		if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'"); n != 0 {
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
	pool := drainertest.Connect(t, url)
	if err := migrations.Check(t.Context(), pool); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("an empty database: %v", err)
	}
	if n := drainertest.Value[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'"); n != 0 {
		t.Error("looking created the schema")
	}

	pool = drainertest.Connect(t, drainertest.Database(t))
	if err := migrations.Check(t.Context(), pool); err != nil {
		t.Errorf("a migrated database: %v", err)
	}
	drainertest.Exec(t, pool, "DELETE FROM outbox.river_migration WHERE version = (SELECT max(version) FROM outbox.river_migration)")
	if err := migrations.Check(t.Context(), pool); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("River one step behind: %v", err)
	}
}

func TestDownRefusesToDropWhatOthersPutThere(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	pool := drainertest.Connect(t, url)
	drainertest.Exec(t, pool, "CREATE TABLE outbox.theirs AS SELECT 1")

	if _, err := migrations.Down(t.Context(), url); sqlState(err) != "2BP01" {
		t.Errorf("got %v, want a refusal because something depends on the schema", err)
	}
	drainertest.Exec(t, pool, "TABLE outbox.theirs")
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

// Any login can take an advisory lock, so a migration must not wait for one.
func TestAnAgentHoldsNoMigrationUp(t *testing.T) {
	t.Parallel()
	url := drainertest.EmptyDatabase(t)
	pool := drainertest.Connect(t, url)
	agent, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Release()
	drainertest.Exec(t, agent, "SELECT pg_advisory_lock($1)", 0x6f7574626f78) // "outbox" in ASCII, which migrations took once
	fault.Injected(t, 73, 1)
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	if _, err := migrations.Up(ctx, url); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"outbox_agent", "outbox_drainer"} {
		asRole(t, pool, role, map[string]string{
			"LOCK TABLE outbox.migration_lock IN ACCESS SHARE MODE": forbidden,
			"DROP TABLE outbox.migration_lock":                      forbidden,
		})
	}
}

func TestAMigrationThatWaitsForAnotherSaysWhoThatIs(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	pool := drainertest.Connect(t, url)
	tx := drainertest.Begin(t, pool)
	drainertest.Exec(t, tx, "SET LOCAL application_name = 'the other migration'; LOCK TABLE outbox.migration_lock IN SHARE UPDATE EXCLUSIVE MODE")
	ctx, expire := drainertest.Expiring(t)
	failed := make(chan error, 1)
	go func() {
		_, err := migrations.Up(ctx, url)
		failed <- err
	}()
	first, waits := "", func() string { // it waits in short steps, each a transaction, and one must have ended
		return drainertest.Value[string](t, pool, `SELECT coalesce(max(xact_start)::text, '') FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE 'LOCK TABLE%' AND cardinality(pg_blocking_pids(pid)) > 0`)
	}
	drainertest.Eventually(t, "it waits", func() bool { first = waits(); return first != "" })
	drainertest.Eventually(t, "it waits again", func() bool { now := waits(); return now != "" && now != first })
	expire()
	err := <-failed
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the other migration") || !strings.Contains(err.Error(), "pid ") {
		t.Errorf("got %v, want that it gave up, and who holds the lock", err)
	}
}

// Code that the schema's owner put there would run with the rights of the login that migrates.
func TestASchemaOfSomebodyElseIsNotMigrated(t *testing.T) {
	t.Parallel()
	url := drainertest.EmptyDatabase(t)
	pool := drainertest.Connect(t, url)
	squatter := strings.Replace(drainertest.Value[string](t, pool, "SELECT current_database()"), "drainertest", "squatter", 1)
	drainertest.Exec(t, pool, "CREATE ROLE "+squatter+"; CREATE SCHEMA outbox AUTHORIZATION "+squatter)
	t.Cleanup(func() { drainertest.Exec(t, pool, "DROP OWNED BY "+squatter+"; DROP ROLE "+squatter) })
	if _, err := migrations.Up(t.Context(), url); sqlState(err) != forbidden || !strings.Contains(err.Error(), squatter) {
		t.Errorf("got %v, want that the schema belongs to %s", err, squatter)
	}
}

// A row holds text of agents and providers, in any script. A row that cannot be stored would never settle.
func TestADatabaseThatCannotHoldAllTextIsNotMigrated(t *testing.T) {
	t.Parallel()
	url := drainertest.EmptyDatabase(t)
	pool := drainertest.Connect(t, url)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		name := drainertest.Value[string](t, pool, "SELECT current_database()") + strings.ToLower(encoding)
		drainertest.Exec(t, pool, "CREATE DATABASE "+name+" TEMPLATE template0 LOCALE 'C' ENCODING '"+encoding+"'")
		t.Cleanup(func() { drainertest.Exec(t, pool, "DROP DATABASE "+name+" WITH (FORCE)") })
		_, err := migrations.Up(t.Context(), strings.Replace(url, drainertest.Value[string](t, pool, "SELECT current_database()"), name, 1))
		if err == nil || !strings.Contains(err.Error(), encoding) {
			t.Errorf("%s: got %v, want a refusal that names the encoding", encoding, err)
		}
	}
}

// The statements of each case move an intent, $1, to the status that the view should show.
func TestTheViewTellsWhereAnIntentStands(t *testing.T) {
	t.Parallel()
	const (
		take = `WITH gone AS (DELETE FROM outbox.queue WHERE intent_id = $1 RETURNING *)
			INSERT INTO outbox.claim (worker_id, provider, server, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
			SELECT gen_random_uuid(), provider, provider, ARRAY[intent_id], ARRAY[attempt + 1], ARRAY[tries + 1],
			       ARRAY[first_attempt_at], ARRAY[maybe_applied], ARRAY[lookup], ARRAY[NULL] FROM gone`
		settle = `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'seen', '`
		finish = "DELETE FROM outbox.claim WHERE $1 = ANY (intent_ids)"
		undone = `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 2, 'saga', 'undone', '`
	)
	cases := map[string][]string{
		"pending":             {},
		"in_progress":         {take},
		"completed":           {take, settle + "completed')", finish},
		"failed":              {take, settle + "failed')", finish},
		"unknown":             {take, settle + "unknown')", finish},
		"cancelled":           {take, settle + "cancelled')", finish},
		"compensated":         {take, settle + "completed')", finish, undone + "compensated')"},
		"compensation_failed": {take, settle + "completed')", finish, undone + "compensation_failed')"},
	}
	pool := drainertest.Connect(t, drainertest.Database(t))
	for want, steps := range cases {
		intent, err := enqueue(t, pool, "run", want, "noop/x", "scope", "{}")
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			drainertest.Exec(t, pool, step, intent.IntentID)
		}
		assertStatus(t, pool, intent.IntentID, want)
	}
	drainertest.AssertInvariant(t, pool)
}

func TestARetriedIntentIsPendingWithItsLastOutcome(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	intent, err := enqueue(t, pool, "run", "step", "noop/x", "scope", "{}")
	if err != nil {
		t.Fatal(err)
	}
	// The row was given back unsent first, which is no attempt. Then it was sent.
	drainertest.Exec(t, pool, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, next_attempt_at, http_status, error)
		VALUES ($1, 1, 'w', null, 'released', 'pending', now(), null, null),
		       ($1, 2, 'w', now(), 'throttled', 'pending', now() + interval '1 minute', 429, 'too many')`, intent.IntentID)
	drainertest.Exec(t, pool, "DELETE FROM outbox.queue")
	drainertest.Exec(t, pool, "INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries) SELECT 'noop', next_attempt_at, intent_id, 'run', 2, 1 FROM outbox.attempt WHERE attempt = 2")

	assertStatus(t, pool, intent.IntentID, "pending")
	if n := drainertest.Value[int](t, pool, `SELECT count(*) FROM outbox.status WHERE attempts = 1 AND last_outcome = 'throttled'
		AND last_error = 'too many' AND http_status = 429 AND next_attempt_at > now() AND finished_at IS NULL`); n != 1 {
		t.Error("the view does not tell of the attempt")
	}
}

func TestAnUnknownIntentStaysUnknownWhileItsLookupWaits(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	intent, err := enqueue(t, pool, "run", "step", "noop/x", "scope", "{}")
	if err != nil {
		t.Fatal(err)
	}
	drainertest.Exec(t, pool, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at)
		VALUES ($1, 1, 'w', 'ambiguous', 'unknown', now())`, intent.IntentID)
	assertStatus(t, pool, intent.IntentID, "unknown")
	drainertest.AssertInvariant(t, pool)
}

func TestAnAttemptCannotSettleAsPending(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	_, err := pool.Exec(t.Context(), "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 1, 'w', 'released', 'pending')")
	if sqlState(err) != "23514" {
		t.Errorf("got %v, want a violated check", err)
	}
}

func assertStatus(t *testing.T, pool *pgxpool.Pool, intent int64, want string) {
	t.Helper()
	var got string
	if err := pool.QueryRow(t.Context(), "SELECT status FROM outbox.status WHERE intent_id = $1", intent).Scan(&got); err != nil || got != want {
		t.Errorf("the status is %q (%v), want %q", got, err, want)
	}
}

func TestASchemaIsComparedBothWays(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	missing, newer, err := migrations.Compare(t.Context(), pool)
	if err != nil || len(missing) > 0 || len(newer) > 0 {
		t.Fatalf("of a schema that is current: missing %v, newer %v, %v", missing, newer, err)
	}
	drainertest.Exec(t, pool, "DELETE FROM outbox.goose_db_version WHERE version_id = 3")
	drainertest.Exec(t, pool, "INSERT INTO outbox.goose_db_version (version_id, is_applied) VALUES (901, true), (900, true), (902, false)")
	drainertest.Exec(t, pool, "INSERT INTO outbox.river_migration (line, version) VALUES ('main', 800), ('another', 801)")
	missing, newer, err = migrations.Compare(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if want := []migrations.Migration{{Set: migrations.SetOutbox, Version: 3, Name: "status"}}; !slices.Equal(missing, want) {
		t.Errorf("missing %v, want %v", missing, want)
	}
	want := []migrations.Migration{
		{Set: migrations.SetRiver, Version: 800, Applied: true},
		{Set: migrations.SetOutbox, Version: 900, Applied: true},
		{Set: migrations.SetOutbox, Version: 901, Applied: true},
	}
	if !slices.Equal(newer, want) {
		t.Errorf("newer %v, want %v", newer, want)
	}
}

// A test cannot change embedded files. So it builds the program of a repository in which all of today's migrations are
// released.
func TestAReleasedMigrationThatWasEditedIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	released, err := filepath.Glob("sql/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var sums strings.Builder
	for _, name := range released {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), filepath.Base(name))
	}
	url := drainertest.Database(t)
	for name, c := range map[string]struct {
		replaced map[string]string
		refused  bool
	}{
		"edited":    {map[string]string{"sql/00003_status.sql": "SELECT 1;"}, true},
		"a new one": {replaced: map[string]string{"sql/00900_more.sql": "-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT 1;\n"}},
	} {
		c.replaced["frozen.sha256"] = sums.String()
		program := buildWith(t, c.replaced)
		for _, command := range [][]string{{"migrate", "status"}, {"migrate", "up"}, {"doctor"}} {
			output, err := exec.Command(program, append(command, "--database-url", url)...).CombinedOutput()
			if refused := strings.Contains(string(output), "00003_status.sql"); refused != c.refused || (refused && err == nil) {
				t.Errorf("%s: %v: %v\n%s", name, command, err, output)
			}
		}
	}
}

// buildWith builds drainer with other contents of these files of this folder.
func buildWith(t *testing.T, contents map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	overlay := map[string]map[string]string{"Replace": {}}
	for name, content := range contents {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(folder, filepath.Base(name))
		if err := os.WriteFile(other, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][path] = other
	}
	written, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "overlay.json"), written, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "drainer")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-overlay", filepath.Join(folder, "overlay.json"), "-o", program, "../cmd/drainer")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return program
}

func TestReferencesHaveAnIndexWhereTheOwnerAsksForOne(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	pool := drainertest.Connect(t, url)
	change := func(wanted bool) []migrations.Migration {
		t.Helper()
		changed, err := migrations.References(t.Context(), wanted, url)
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	assertIndex := func(exists, valid bool) {
		t.Helper()
		if e, v, err := migrations.HasReferences(t.Context(), pool); err != nil || e != exists || v != valid {
			t.Errorf("it exists: %t, and is valid: %t (%v); want %t and %t", e, v, err, exists, valid)
		}
		all, err := migrations.Status(t.Context(), url)
		if last := all[len(all)-1]; err != nil || (last.Set == migrations.SetOptional) != exists || exists && last.Applied != valid {
			t.Errorf("the status ends with %+v (%v)", last, err)
		}
		if missing, newer, err := migrations.Compare(t.Context(), pool); err != nil || len(missing)+len(newer) > 0 {
			t.Errorf("missing are %v, newer %v (%v)", missing, newer, err)
		}
	}
	assertIndex(false, false)
	if changed := change(false); len(changed) != 0 {
		t.Errorf("dropping none changed %v", changed)
	}

	// The build waits for an old transaction. The build is interrupted, and leaves half an index.
	old := drainertest.Begin(t, pool)
	drainertest.Exec(t, old, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox.attempt")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() {
		_, err := migrations.References(ctx, true, url)
		ended <- err
	}()
	drainertest.Eventually(t, "the build waits", func() bool {
		return drainertest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_stat_progress_create_index WHERE datname = current_database() AND phase LIKE 'waiting%')")
	})
	// Agents and daemons can write during the build. An operator may give a reference of any length.
	drainertest.Exec(t, pool, "SELECT outbox.enqueue('run', 'step', 'tool', 'scope', '{}')")
	drainertest.Exec(t, pool, "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, provider_ref) SELECT id, 1, 'w', 'completed', 'completed', 'ch_1' FROM outbox.intent")
	drainertest.Exec(t, pool, "INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, provider_ref) SELECT id, 2, 'operator:o', 'resolved', 'completed', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) n) FROM outbox.intent")
	cancel()
	if err := <-ended; err == nil {
		t.Error("an interrupted build reports no error")
	}
	commit(t, old)
	drainertest.Eventually(t, "the server has stopped building", func() bool {
		return !drainertest.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_stat_progress_create_index WHERE datname = current_database())")
	})
	assertIndex(true, false)

	for range 2 { // the first time, the half index is replaced
		if changed := change(true); len(changed) != 1 || !changed[0].Applied {
			t.Errorf("creating it changed %v", changed)
		}
		assertIndex(true, true)
		if changed := change(true); len(changed) != 0 {
			t.Errorf("creating it again changed %v", changed)
		}
		if changed := change(false); len(changed) != 1 || changed[0].Applied {
			t.Errorf("dropping it changed %v", changed)
		}
		assertIndex(false, false)
	}
	change(true)
	if _, err := migrations.Down(t.Context(), url); err != nil {
		t.Error(err)
	}
	if _, err := migrations.References(t.Context(), true, url); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("without the schema: %v", err)
	}
}
