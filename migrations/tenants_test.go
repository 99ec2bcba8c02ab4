package migrations_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
)

// walled is an outbox with two tenants, each with a login of its own, and a login that is no tenant's.
type walled struct {
	t                   *testing.T
	owner               *pgxpool.Pool
	acme, globex, nomad *pgxpool.Pool
}

func newWalled(t *testing.T) *walled {
	t.Helper()
	return newWalledAt(t, drainertest.Database(t))
}

func newWalledAt(t *testing.T, url string) *walled {
	t.Helper()
	w := &walled{t: t, owner: drainertest.Connect(t, url)}
	w.acme, w.globex = w.tenant(url, "acme"), w.tenant(url, "globex")
	w.nomad = drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	return w
}

// tenant has a role of its own, and a login that is its member through another role.
func (w *walled) tenant(url, name string) *pgxpool.Pool {
	w.t.Helper()
	role := name + "_" + drainertest.Value[string](w.t, w.owner, "SELECT current_database()")
	drainertest.Exec(w.t, w.owner, "CREATE ROLE "+role+" NOLOGIN; CREATE ROLE team_"+role+" NOLOGIN IN ROLE "+role+", outbox_agent")
	w.t.Cleanup(func() {
		drainertest.Exec(w.t, drainertest.Connect(w.t, url), "DROP ROLE team_"+role+"; DROP ROLE "+role)
	})
	drainertest.Exec(w.t, w.owner, "INSERT INTO outbox.tenant (name, role) VALUES ($1, $2)", name, role)
	return drainertest.Connect(w.t, drainertest.Login(w.t, url, "team_"+role))
}

func TestAnIntentHasTheTenantOfItsLogin(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	const find = `SELECT coalesce(t.name, 'none') FROM outbox.intent i JOIN outbox.queue q ON q.intent_id = i.id AND q.tenant = coalesce(i.tenant, 0)
		LEFT JOIN outbox.tenant t ON t.tenant_id = i.tenant WHERE i.agent_run_id = $1`
	for tenant, agent := range map[string]*pgxpool.Pool{"acme": w.acme, "globex": w.globex, "none": w.nomad, "the superuser": w.owner} {
		want := tenant
		if agent == w.owner {
			want = "none" // a superuser is a member of every role, but no tenant's role was granted to it
		}
		for how, statement := range map[string]string{"called": callEnqueue, "inserted": plainInsert} {
			run := how + " by " + tenant
			drainertest.Exec(t, agent, statement, run, "s", "noop/x", "b", "{}")
			if got := drainertest.Column[string](t, w.owner, find, run); len(got) != 1 || got[0] != want {
				t.Errorf("%s: the tenant is %q, want %q", run, got, want)
			}
		}
	}
}

func TestALoginOfTwoTenantsIsRefused(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.owner, `DO $$ BEGIN EXECUTE format('GRANT %I TO %I', (SELECT role FROM outbox.tenant WHERE name = 'globex'),
		(SELECT 'team_' || role FROM outbox.tenant WHERE name = 'acme')); END $$`)
	for _, statement := range []string{callEnqueue, plainInsert} {
		if _, err := w.acme.Exec(t.Context(), statement, "r", "s", "noop/x", "b", "{}"); sqlState(err) != "OB005" {
			t.Errorf("%s: got %v, want OB005", statement, err)
		}
	}
}

const multiRow = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
	VALUES ('mine', 's', 'noop/x', 'b', '{}'), ('acme-run', 'new', 'noop/x', 'b', '{}')`

// strange is every statement that an agent can make about another tenant's run, with the SQLSTATE that it ends in. A query
// must find nothing.
var strange = map[string]string{
	"SELECT * FROM outbox.enqueue('acme-run', 'new', 'noop/x', 'b', '{}')":                                                                                                      "OB005",
	"SELECT * FROM outbox.enqueue('acme-run', 'paid', 'noop/x', 'b', '{}')":                                                                                                     "OB005",
	"SELECT * FROM outbox.enqueue('acme-run', 'paid', 'noop/x', 'b', '{\"other\": 1}')":                                                                                         "OB005",
	"SELECT * FROM outbox.enqueue('acme-closed', 'paid', 'noop/x', 'b', '{}')":                                                                                                  "OB005",
	"SELECT * FROM outbox.enqueue('acme-closed', 'new', 'noop/x', 'b', '{}')":                                                                                                   "OB005",
	"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('acme-run', 'new', 'noop/x', 'b', '{}')":                                     "OB005",
	"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('acme-run', 'paid', 'noop/x', 'b', '{}') ON CONFLICT DO NOTHING":             "OB005",
	"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('acme-run', 'paid', 'noop/x', 'b', '{\"o\": 1}') ON CONFLICT DO NOTHING":     "OB005",
	"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('acme-closed', 'new', 'noop/x', 'b', '{}')":                                  "OB005",
	"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', 's', 'noop/x', 'b', '{}') RETURNING id":                                 forbidden,
	"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('acme-run', 'paid', 'noop/x', 'b', '{}') ON CONFLICT DO UPDATE SET tenant=1": "42601",
	multiRow:                      "OB005",
	"SELECT * FROM outbox.status": "",
	"SELECT * FROM outbox.status WHERE agent_run_id LIKE 'acme%'":                                                   "",
	"SELECT * FROM outbox.status WHERE intent_id = ANY ('{1,2,3,4}')":                                               "",
	"SELECT * FROM outbox.status WHERE pg_temp.leak(agent_run_id)":                                                  "",
	"SELECT s.* FROM outbox.status s JOIN (VALUES (1), (2)) v (id) ON v.id = s.intent_id":                           "",
	"SELECT * FROM outbox.status WHERE idempotency_key = outbox.idempotency_key('acme-run', 'paid', 'noop/x', 'b')": "",
	"SELECT * FROM outbox.await('{1,2,3,4}') WHERE status IS NOT NULL":                                              "",
	"SELECT * FROM outbox.status FOR UPDATE":                                                                        forbidden,
	"SELECT * FROM outbox.standing":                                                                                 forbidden,
	"SELECT * FROM outbox.run":                                                                                      forbidden,
	"SELECT * FROM outbox.tenant":                                                                                   forbidden,
	"INSERT INTO outbox.tenant (name, role) VALUES ('mine', session_user)":                                          forbidden,
	"INSERT INTO outbox.run VALUES ('acme-next', NULL)":                                                             forbidden,
	"SELECT outbox.refuse_stranger()":                                                                               forbidden,
	"SET ROLE outbox_operator":                                                                                      forbidden,
	"SET SESSION AUTHORIZATION postgres":                                                                            forbidden,
	"ALTER TABLE outbox.intent DISABLE TRIGGER keep_walls":                                                          forbidden,
	"SET session_replication_role = replica":                                                                        forbidden,
}

// moved tells of any change of a table or a counter, without what a stranger's own transaction may add to a sequence.
const moved = `SELECT md5(string_agg(t, ',' ORDER BY t)) FROM (
	SELECT i::text FROM outbox.intent i UNION ALL SELECT q::text FROM outbox.queue q UNION ALL SELECT d::text FROM outbox.duplicate d
	UNION ALL SELECT s::text FROM outbox.saga s UNION ALL SELECT a::text FROM outbox.attempt a UNION ALL SELECT r::text FROM outbox.run r
	UNION ALL SELECT n::text FROM outbox.incident n UNION ALL SELECT last_value::text FROM outbox.collisions
	UNION ALL SELECT last_value::text FROM outbox.last_collision) _ (t)`

func TestAStrangerSeesNothingAndMovesNothing(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	for _, run := range []string{"acme-run", "acme-closed"} {
		for _, step := range []string{"paid", "sent"} {
			drainertest.Exec(t, w.acme, callEnqueue, run, step, "noop/x", "b", "{}")
		}
	}
	drainertest.Exec(t, w.owner, `INSERT INTO outbox.saga (agent_run_id, state) VALUES ('acme-closed', 'cancelled')`)
	if seen := drainertest.Value[int](t, w.acme, "SELECT count(*) FROM outbox.status WHERE agent_run_id LIKE 'acme%'"); seen != 4 {
		t.Errorf("acme sees %d of its 4 intents", seen)
	}
	before := drainertest.Value[string](t, w.owner, moved)
	for who, stranger := range map[string]*pgxpool.Pool{"globex": w.globex, "a login of no tenant": w.nomad} {
		for statement, wantState := range strange {
			if seen, state := w.try(stranger, statement); state != wantState || seen != 0 {
				t.Errorf("%s: %s\n\tSQLSTATE %q, want %q; %d rows", who, statement, state, wantState, seen)
			}
			if after := drainertest.Value[string](t, w.owner, moved); after != before {
				t.Fatalf("%s: %s\n\tchanged another tenant's rows, or a count", who, statement)
			}
		}
	}
}

// try makes a statement and commits, and returns how many rows it returned. A row that is shown to the function raises P0001.
func (w *walled) try(agent *pgxpool.Pool, statement string) (seen int, state string) {
	w.t.Helper()
	conn, err := agent.Acquire(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Release()
	drainertest.Exec(w.t, conn, `CREATE OR REPLACE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001
		AS 'BEGIN RAISE ''%'', $1; END'`)
	rows, err := conn.Query(w.t.Context(), statement)
	if err == nil {
		for rows.Next() {
			seen++
		}
		err = rows.Err()
	}
	return seen, sqlState(err)
}

func TestARunBelongsToTheTenantThatBeganIt(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	// Two begin one run at the same moment: the second waits for the first.
	tx := drainertest.Begin(t, w.acme)
	drainertest.Exec(t, tx, callEnqueue, "shared", "1", "noop/x", "b", "{}")
	refused := make(chan error, 1)
	go func() {
		_, err := w.globex.Exec(t.Context(), callEnqueue, "shared", "2", "noop/x", "b", "{}")
		refused <- err
	}()
	drainertest.AwaitBlocked(t, w.owner)
	commit(t, tx)
	if err := <-refused; sqlState(err) != "OB005" {
		t.Errorf("the second tenant: %v, want OB005", err)
	}
	// The row of the run may be pruned as its next step comes; and runs are older than the tenants.
	drainertest.Exec(t, w.owner, "DELETE FROM outbox.run")
	if _, err := w.globex.Exec(t.Context(), callEnqueue, "shared", "2", "noop/x", "b", "{}"); sqlState(err) != "OB005" {
		t.Errorf("after the row of the run was pruned: %v, want OB005", err)
	}
	drainertest.Exec(t, w.acme, callEnqueue, "shared", "3", "noop/x", "b", "{}")
}

// A prune that comes between a step and its commit sees none of the run's intents.
func TestARunWithAnUncommittedStepStaysItsTenants(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.acme, callEnqueue, "run", "1", "noop/x", "b", "{}")
	drainertest.Exec(t, w.owner, `WITH gone AS (DELETE FROM outbox.queue RETURNING intent_id)
		INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, finished_at)
		SELECT intent_id, 1, 'w', 'completed', 'completed', now() - interval '100 days' FROM gone`)
	drainertest.Exec(t, w.owner, `UPDATE outbox.intent SET created_at = now() - interval '100 days'`)
	tx := drainertest.Begin(t, w.acme)
	drainertest.Exec(t, tx, callEnqueue, "run", "2", "noop/x", "b", "{}")
	if pruned := drainertest.Value[int](t, w.owner, `SELECT pruned FROM outbox.prune(0, 10, 7776000)`); pruned != 1 {
		t.Fatalf("pruned %d intents, want the one of the run that is committed", pruned)
	}
	if _, err := w.globex.Exec(t.Context(), callEnqueue, "run", "3", "noop/x", "b", "{}"); sqlState(err) != "OB005" {
		t.Errorf("another tenant: %v, want OB005", err)
	}
	commit(t, tx)
	if tenants := drainertest.Value[int](t, w.owner, `SELECT count(DISTINCT tenant) FROM outbox.intent`); tenants != 1 {
		t.Errorf("the run has intents of %d tenants", tenants)
	}
}

// The row of a run goes while its next step waits for it, and comes again with that step.
func TestAStepThatMeetsThePruneOfItsRunIsTaken(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.acme, callEnqueue, "run", "1", "noop/x", "b", "{}")
	prune := drainertest.Begin(t, w.owner)
	drainertest.Exec(t, prune, `SELECT FROM outbox.run FOR UPDATE`) // so that the step finds the row, and then waits
	taken := make(chan error, 1)
	go func() {
		_, err := w.acme.Exec(t.Context(), callEnqueue, "run", "2", "noop/x", "b", "{}")
		taken <- err
	}()
	drainertest.AwaitBlocked(t, w.owner)
	drainertest.Exec(t, prune, `DELETE FROM outbox.run`)
	commit(t, prune)
	if err := <-taken; err != nil {
		t.Errorf("its own tenant: %v", err)
	}
	if runs := drainertest.Value[int](t, w.owner, `SELECT count(*) FROM outbox.run`); runs != 1 {
		t.Errorf("outbox.run has %d rows, want 1", runs)
	}
}

// At REPEATABLE READ the step's transaction still sees the row of the run that a prune has taken away. It is told to run
// again, also where the prune ends only while it waits.
func TestAStepWithAnOldSnapshotOfAPrunedRunRunsAgain(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"the prune is over": false, "the prune is under way": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWalled(t)
			drainertest.Exec(t, w.acme, callEnqueue, "run", "1", "noop/x", "b", "{}")
			drainertest.Exec(t, w.owner, `WITH gone AS (DELETE FROM outbox.queue RETURNING intent_id)
				INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, finished_at)
				SELECT intent_id, 1, 'w', 'completed', 'completed', now() - interval '100 days' FROM gone`)
			drainertest.Exec(t, w.owner, `UPDATE outbox.intent SET created_at = now() - interval '100 days'`)
			step := drainertest.Begin(t, w.acme)
			drainertest.Exec(t, step, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
			drainertest.Exec(t, step, "SELECT count(*) FROM outbox.status") // it has its snapshot
			prune := drainertest.Begin(t, w.owner)
			if pruned := drainertest.Value[int](t, prune, `SELECT pruned FROM outbox.prune(0, 10, 7776000)`); pruned != 1 {
				t.Fatalf("pruned %d intents, want 1", pruned)
			}
			w.runsAgain(t, step, "2", prune, waits)
			drainertest.Exec(t, w.globex, callEnqueue, "run", "2", "noop/x", "b", "{}") // nothing is left of the run: anyone can begin it
		})
	}
}

// runsAgain asserts that a step is refused, to be run again, though the owner's transaction commits while it waits or before it
// begins.
func (w *walled) runsAgain(t *testing.T, producer pgx.Tx, step string, owner pgx.Tx, waits bool) {
	t.Helper()
	refused := make(chan error, 1)
	enqueue := func() {
		_, err := producer.Exec(t.Context(), callEnqueue, "run", step, "noop/x", "b", "{}")
		refused <- err
	}
	if waits {
		go enqueue()
		drainertest.AwaitBlocked(t, w.owner)
	}
	commit(t, owner)
	if !waits {
		enqueue()
	}
	if err := <-refused; sqlState(err) != "40001" {
		t.Errorf("%v, want 40001", err)
	}
	if err := producer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutTenantsThereAreNoWalls(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.acme, callEnqueue, "r", "1", "noop/x", "b", "{}")
	drainertest.Exec(t, w.owner, "DELETE FROM outbox.tenant")
	drainertest.Exec(t, w.globex, callEnqueue, "r", "2", "noop/x", "b", "{}")
	drainertest.Exec(t, w.globex, callEnqueue, "r", "1", "noop/x", "b", "{}")
	if seen := drainertest.Value[int](t, w.nomad, "SELECT count(*) FROM outbox.status"); seen != 2 {
		t.Errorf("%d of 2 intents are seen", seen)
	}
}

func TestThoseWhoLookAfterTheOutboxSeeEveryTenant(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	w := newWalledAt(t, url)
	drainertest.Exec(t, w.acme, callEnqueue, "r", "1", "noop/x", "b", "{}")
	drainertest.Exec(t, w.globex, callEnqueue, "q", "1", "noop/x", "b", "{}")
	for _, role := range []string{"outbox_drainer", "outbox_operator", "outbox_auditor"} {
		if seen := drainertest.Value[int](t, drainertest.Connect(t, drainertest.Login(t, url, role)), "SELECT count(*) FROM outbox.status"); seen != 2 {
			t.Errorf("%s sees %d of 2 intents", role, seen)
		}
	}
	asRole(t, w.owner, "outbox_auditor", map[string]string{
		"SELECT * FROM outbox.intent":                            "",
		"SELECT * FROM outbox.audit_conflicting_refs":            "",
		"SELECT * FROM outbox.operation":                         "",
		"SELECT * FROM outbox.enqueue('r', '9', 't', 'b', '{}')": forbidden,
		"DELETE FROM outbox.queue":                               forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status) VALUES (1, 9, 'operator:a', 'resolved', 'completed')": forbidden,
	})
}

func TestATenantsNamespaceEntersItsKeys(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.owner, "INSERT INTO outbox.setting VALUES ('namespace', 'prod')")
	drainertest.Exec(t, w.owner, "UPDATE outbox.tenant SET namespace = 'prod/acme' WHERE name = 'acme'")
	for agent, namespace := range map[*pgxpool.Pool]string{w.acme: "prod/acme", w.globex: "prod"} {
		got, err := enqueue(t, agent, namespace, "1", "noop/x", "b", "{}")
		want := drainertest.Value[string](t, w.owner, "SELECT outbox.idempotency_key($1, '1', 'noop/x', 'b', $1)", namespace)
		if err != nil || got.IdempotencyKey != want {
			t.Errorf("%s: the key is %s (%v), want %s", namespace, got.IdempotencyKey, err, want)
		}
	}
}

// limit sets a limit of acme's, and has the tenant's queue measured again before what comes next.
func (w *walled) limit(column string, most int) {
	w.t.Helper()
	drainertest.Exec(w.t, w.owner, "UPDATE outbox.tenant SET "+column+" = $1 WHERE name = 'acme'", most)
}

func (w *walled) measureAnew() {
	w.t.Helper()
	drainertest.Exec(w.t, w.owner, "SELECT setval('outbox.tenant_' || tenant_id || '_measure', 0) FROM outbox.tenant WHERE name = 'acme'")
}

const bulk = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
	SELECT $1, 'step-' || n, 'noop/x', 'b', '{"n": 1}' FROM generate_series(1, $2::int) n`

func TestATenantsLimitsAreKept(t *testing.T) {
	t.Parallel()
	for column, c := range map[string]struct {
		most, fits int
		figure     string
	}{
		"max_due":   {100, 100, "101 intents that are due"},
		"max_bytes": {805, 100, "808 bytes in the queue"}, // of eight each
	} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			w := newWalled(t)
			w.limit(column, c.most)
			drainertest.Exec(t, w.acme, bulk, "first", c.fits)
			for _, statement := range []string{callEnqueue, plainInsert} {
				_, err := w.acme.Exec(t.Context(), statement, "r", statement, "noop/x", "b", `{"n": 1}`)
				if sqlState(err) != "OB006" || !strings.Contains(err.Error(), c.figure) || !strings.Contains(hint(err), "Try again in ") {
					t.Errorf("%v (%s), want OB006 with %q, and when to come back", err, hint(err), c.figure)
				}
			}
			drainertest.Exec(t, w.globex, bulk, "other", 2*c.fits) // another tenant has limits of its own
			// What is claimed makes room, as soon as the queue is measured.
			drainertest.Exec(t, w.owner, "DELETE FROM outbox.queue WHERE agent_run_id = 'first' AND intent_id % 2 = 0")
			w.measureAnew()
			drainertest.Exec(t, w.acme, bulk, "second", c.fits/2)
			if _, err := w.acme.Exec(t.Context(), bulk, "third", 1); sqlState(err) != "OB006" {
				t.Errorf("%v, want OB006", err)
			}
		})
	}
}

// The clock of the database may begin a new second at any moment of the test: so much comes that no two seconds take it.
func TestATenantEnqueuesSoManyIntentsASecond(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	w.limit("max_rate", 50)
	if _, err := w.acme.Exec(t.Context(), bulk, "many", 51); sqlState(err) != "OB006" || !strings.Contains(err.Error(), "its limit is 50") {
		t.Errorf("%v, want OB006 for more than a second's in one statement", err)
	}
	drainertest.Eventually(t, "a second later 50 are taken", func() bool {
		_, err := w.acme.Exec(t.Context(), bulk, "few", 50)
		return err == nil
	})
	for n := range 400 {
		_, _ = w.acme.Exec(t.Context(), bulk, "one by one "+strconv.Itoa(n), 1) // refused or not
	}
	rows, _ := w.owner.Query(t.Context(), `SELECT extract(epoch FROM created_at)::bigint, count(*) FROM outbox.intent GROUP BY 1`)
	seconds, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ At, Intents int64 }])
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range seconds {
		if s.Intents > 100 { // a step at the second's end is counted in the next one
			t.Errorf("%d intents were enqueued in one second, with a limit of 50", s.Intents)
		}
	}
}

// A producer that has not committed keeps no other of its tenant waiting.
func TestProducersOfALimitedTenantDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	for _, column := range []string{"max_due", "max_bytes", "max_rate"} {
		w.limit(column, 1000)
	}
	tx := drainertest.Begin(t, w.acme)
	drainertest.Exec(t, tx, callEnqueue, "one", "1", "noop/x", "b", "{}")
	other := drainertest.Begin(t, w.acme)
	drainertest.Exec(t, other, "SET LOCAL lock_timeout = '1min'")
	drainertest.Exec(t, other, callEnqueue, "two", "1", "noop/x", "b", "{}")
}

// An owner who lifts limits has not committed yet, or has just done so.
func TestAProducerMeetsNoLimitThatIsBeingLifted(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	w.limit("max_rate", 1000)
	owner := drainertest.Begin(t, w.owner)
	drainertest.Exec(t, owner, "UPDATE outbox.tenant SET max_rate = NULL")
	producer := drainertest.Begin(t, w.acme)
	drainertest.Exec(t, producer, "SET LOCAL lock_timeout = '1min'")
	drainertest.Exec(t, producer, callEnqueue, "run", "1", "noop/x", "b", "{}")
}

// A producer finds the counters of a tenant that is just being deleted, or, with an older snapshot, the tenant without
// them. Once it runs again, its login is no tenant's.
func TestAProducerWhoseTenantIsBeingDeletedRunsAgain(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"it is gone": false, "it is going": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWalled(t)
			w.limit("max_rate", 1000)
			producer := drainertest.Begin(t, w.acme)
			if !waits {
				drainertest.Exec(t, producer, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
			}
			drainertest.Exec(t, producer, "SELECT count(*) FROM outbox.status")
			owner := drainertest.Begin(t, w.owner)
			drainertest.Exec(t, owner, "DELETE FROM outbox.tenant WHERE name = 'acme'")
			w.runsAgain(t, producer, "1", owner, waits)
			drainertest.Exec(t, w.acme, callEnqueue, "run", "1", "noop/x", "b", "{}")
		})
	}
}

func TestATenantsCountersGoWithIt(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	const counters = `SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relname ~ '^tenant_[0-9]+_(rate|due|bytes|measure)$'`
	w.limit("max_due", 10)
	if n := drainertest.Value[int](t, w.owner, counters); n != 4 {
		t.Errorf("%d counters, want 4", n)
	}
	drainertest.Exec(t, w.owner, "DELETE FROM outbox.tenant WHERE name = 'acme'")
	if n := drainertest.Value[int](t, w.owner, counters); n != 0 {
		t.Errorf("%d counters stay", n)
	}
}

func hint(err error) string {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) {
		return refusal.Hint
	}
	return ""
}
