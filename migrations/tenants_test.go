package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// tenant adds a tenant with a role of its own. It returns a login that is a member of that role through another role.
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

const insertInto = "INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES "

// A pooler may have one login for all clients, and take on a role for each transaction. The login decides.
func TestTheTenantStaysThatOfTheLoginWhateverRoleItTakesOn(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	w := newWalledAt(t, url)
	team := func(tenant string) string {
		return drainertest.Value[string](t, w.owner, "SELECT 'team_' || role FROM outbox.tenant WHERE name = $1", tenant)
	}
	acme, globex := team("acme"), team("globex")
	both := drainertest.Connect(t, drainertest.Login(t, url, acme, globex))
	takesOn := func(login *pgxpool.Pool, role, want string) {
		t.Helper()
		for how, statement := range map[string]string{"called": callEnqueue, "inserted": plainInsert} {
			run := fmt.Sprintf("%s by %s as %s", how, want, role)
			tx := drainertest.Begin(t, login)
			drainertest.Exec(t, tx, "SET LOCAL ROLE "+role)
			if _, err := tx.Exec(t.Context(), statement, run, "s", "noop/x", "b", "{}"); err != nil {
				if sqlState(err) != want {
					t.Errorf("%s: got %v", run, err)
				}
				_ = tx.Rollback(t.Context())
				continue
			}
			commit(t, tx)
			if got := drainertest.Value[string](t, w.owner, `SELECT coalesce(t.name, 'none') FROM outbox.intent i
				LEFT JOIN outbox.tenant t ON t.tenant_id = i.tenant WHERE agent_run_id = $1`, run); got != want {
				t.Errorf("%s: the tenant is %s", run, got)
			}
		}
	}
	takesOn(w.acme, acme, "acme")
	takesOn(both, acme, "OB005")
	takesOn(both, globex, "OB005")
	if seen, state := w.try(both, "SET LOCAL ROLE "+acme+"; SELECT * FROM outbox.status"); seen > 0 || state != "OB005" {
		t.Errorf("a login of both that took on acme's role reads %d intents (SQLSTATE %q)", seen, state)
	}
	takesOn(w.owner, globex, "none") // a superuser takes on every role
	drainertest.Exec(t, w.owner, "GRANT "+acme+" TO CURRENT_USER")
	takesOn(w.owner, globex, "acme")
}

// strange has every statement that an agent can make about another tenant's run, with the SQLSTATE in which it ends. A
// query must find nothing.
var strange = map[string]string{
	"SELECT * FROM outbox.enqueue('acme-run', 'new', 'noop/x', 'b', '{}')":                                                                               "OB005",
	"SELECT * FROM outbox.enqueue('acme-run', 'paid', 'noop/x', 'b', '{}')":                                                                              "OB005",
	"SELECT * FROM outbox.enqueue('acme-run', 'paid', 'noop/x', 'b', '{\"other\": 1}')":                                                                  "OB005",
	"SELECT * FROM outbox.enqueue('acme-closed', 'paid', 'noop/x', 'b', '{}')":                                                                           "OB005",
	"SELECT * FROM outbox.enqueue('acme-closed', 'new', 'noop/x', 'b', '{}')":                                                                            "OB005",
	insertInto + "('acme-run', 'new', 'noop/x', 'b', '{}')":                                                                                              "OB005",
	insertInto + "('acme-run', 'paid', 'noop/x', 'b', '{}') ON CONFLICT DO NOTHING":                                                                      "OB005",
	insertInto + "('acme-run', 'paid', 'noop/x', 'b', '{\"o\": 1}') ON CONFLICT DO NOTHING":                                                              "OB005",
	insertInto + "('acme-closed', 'new', 'noop/x', 'b', '{}')":                                                                                           "OB005",
	insertInto + "('mine', 's', 'noop/x', 'b', '{}'), ('acme-run', 'new', 'noop/x', 'b', '{}')":                                                          "OB005",
	insertInto + "('r', 's', 'noop/x', 'b', '{}') RETURNING id":                                                                                          forbidden,
	insertInto + "('acme-run', 'paid', 'noop/x', 'b', '{}') ON CONFLICT (agent_run_id, step_id, tool_name, business_scope) DO UPDATE SET payload = '{}'": forbidden,
	insertInto + "('acme-run', 'paid', 'noop/x', 'b', '{}') ON CONFLICT (agent_run_id, step_id, tool_name, business_scope) DO NOTHING":                   forbidden,
	// the setting with which enqueue() looks after its own duplicates
	"SET LOCAL outbox.enqueueing = 'on'; " + insertInto + "('acme-run', 'new', 'noop/x', 'b', '{}')":                                 "OB005",
	"SET LOCAL outbox.enqueueing = 'on'; " + insertInto + "('acme-run', 'paid', 'noop/x', 'b', '{}') ON CONFLICT DO NOTHING":         "OB005",
	"SET LOCAL outbox.enqueueing = 'on'; SELECT * FROM outbox.enqueue('acme-run', 'paid', 'noop/x', 'b', '{}')":                      "OB005",
	"COPY outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) FROM STDIN\nacme-run\tnew\tnoop/x\tb\t{}\n":      "OB005",
	"COPY outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) FROM STDIN\nacme-run\tpaid\tnoop/x\tb\t{}\n":     "OB005",
	"COPY outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, tenant) FROM STDIN\nmine\ts\tnoop/x\tb\t{}\t1\n": forbidden,
	"COPY outbox.intent TO STDOUT": forbidden,
	`MERGE INTO outbox.intent USING (VALUES (1)) v ON false
		WHEN NOT MATCHED THEN INSERT (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('acme-run', 'new', 'noop/x', 'b', '{}')`: "OB005",
	"MERGE INTO outbox.intent USING (VALUES (1)) v ON true WHEN MATCHED THEN UPDATE SET payload = '{}'":                 forbidden,
	"MERGE INTO outbox.intent i USING (VALUES ('acme-run')) v (run) ON i.agent_run_id = v.run WHEN MATCHED THEN DELETE": forbidden,
	"SELECT * FROM outbox.status":                                                                                   "",
	"SELECT * FROM outbox.status WHERE agent_run_id LIKE 'acme%'":                                                   "",
	"SELECT * FROM outbox.status WHERE intent_id = ANY ('{1,2,3,4}')":                                               "",
	"SELECT * FROM outbox.status WHERE pg_temp.leak(agent_run_id)":                                                  "",
	"SELECT s.* FROM outbox.status s JOIN (VALUES (1), (2)) v (id) ON v.id = s.intent_id":                           "",
	"SELECT * FROM outbox.status WHERE idempotency_key = outbox.idempotency_key('acme-run', 'paid', 'noop/x', 'b')": "",
	"SELECT * FROM outbox.await('{1,2,3,4}') WHERE status IS NOT NULL":                                              "",
	"SELECT WHERE (SELECT count(*) FROM outbox.await('{1,2,3,4,99}') WHERE status IS NULL) <> 5":                    "", // as of 99, which is not there
	"DO 'BEGIN PERFORM outbox.arm(); END'":                                                                          "",
	"SELECT WHERE outbox.sees_all()":                                                                                "",
	"SELECT * FROM outbox.tool WHERE tool::text LIKE '%acme%'":                                                      "",
	"INSERT INTO outbox.tool (name) VALUES ('noop/y')":                                                              forbidden,
	"UPDATE outbox.tool SET state = 'open'":                                                                         forbidden,
	"DELETE FROM outbox.tool":                                                                                       forbidden,
	"SELECT * FROM outbox.waiter":                                                                                   forbidden,
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

// moved returns a hash that shows any change of a table or a counter, except the numbers that a stranger's own
// transaction may take from a sequence.
const moved = `SELECT md5(string_agg(t, ',' ORDER BY t)) FROM (
	SELECT i::text FROM outbox.intent i UNION ALL SELECT q::text FROM outbox.queue q UNION ALL SELECT d::text FROM outbox.duplicate d
	UNION ALL SELECT s::text FROM outbox.saga s UNION ALL SELECT a::text FROM outbox.attempt a UNION ALL SELECT r::text FROM outbox.run r
	UNION ALL SELECT n::text FROM outbox.incident n UNION ALL SELECT o::text FROM outbox.tool o UNION ALL SELECT last_value::text FROM outbox.collisions
	UNION ALL (SELECT w::text FROM outbox.waiter w ORDER BY until LIMIT 1) -- which is acme's: a stranger may have one as well
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
	drainertest.Exec(t, w.owner, `INSERT INTO outbox.tool (name) VALUES ('noop/x')`)
	drainertest.Exec(t, w.owner, `WITH gone AS (DELETE FROM outbox.queue WHERE intent_id = 1 RETURNING intent_id)
		INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) SELECT intent_id, 1, 'w', 'completed', 'completed' FROM gone`)
	for statement, wantState := range strange {
		if wantState != "" || !strings.Contains(statement, "status") {
			continue
		}
		if seen, state := w.try(w.acme, statement); seen == 0 && state != "P0001" {
			t.Errorf("acme: %s\n\tshows nothing of its own (SQLSTATE %q)", statement, state)
		}
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
	fault.Injected(t, 92, 2*len(strange))
}

// try executes statements and commits, and returns how many rows they returned. The function leak raises P0001 for each
// row that it is called with.
func (w *walled) try(agent *pgxpool.Pool, statements string) (seen int, state string) {
	w.t.Helper()
	conn, err := agent.Acquire(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Release()
	drainertest.Exec(w.t, conn, `CREATE OR REPLACE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001
		AS 'BEGIN RAISE ''%'', $1; END'`)
	if copied, rows, isCopy := strings.Cut(statements, " FROM STDIN\n"); isCopy {
		_, err = conn.Conn().PgConn().CopyFrom(w.t.Context(), strings.NewReader(rows), copied+" FROM STDIN")
		return 0, sqlState(err)
	}
	results, err := conn.Conn().PgConn().Exec(w.t.Context(), statements).ReadAll()
	for _, result := range results {
		seen += len(result.Rows)
	}
	return seen, sqlState(err)
}

func TestARunBelongsToTheTenantThatBeganIt(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	// Two tenants begin one run at the same moment. The second one waits for the first.
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
	// The row of the run may be pruned when its next step comes. A run that is older than the tenants has no row.
	drainertest.Exec(t, w.owner, "DELETE FROM outbox.run")
	if _, err := w.globex.Exec(t.Context(), callEnqueue, "shared", "2", "noop/x", "b", "{}"); sqlState(err) != "OB005" {
		t.Errorf("after the row of the run was pruned: %v, want OB005", err)
	}
	drainertest.Exec(t, w.acme, callEnqueue, "shared", "3", "noop/x", "b", "{}")
}

// A prune between a step and its commit does not see that step.
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

// A prune deletes the row of a run while the run's next step waits for the row. The step then inserts it again.
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

// At REPEATABLE READ, the step's transaction still sees the row of the run that a prune has deleted. It fails and has to
// run again, also where the prune ends only while the step waits.
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
			if err := w.meets(t, step, "2", prune, waits); sqlState(err) != "40001" {
				t.Errorf("%v, want 40001", err)
			}
			drainertest.Exec(t, w.globex, callEnqueue, "run", "2", "noop/x", "b", "{}") // the run is gone, so any tenant can begin it
		})
	}
}

// meets returns the error of a step if the owner's transaction commits while the step waits, or before it begins.
func (w *walled) meets(t *testing.T, producer pgx.Tx, step string, owner pgx.Tx, waits bool) error {
	t.Helper()
	ended := make(chan error, 1)
	enqueue := func() {
		_, err := producer.Exec(t.Context(), callEnqueue, "run", step, "noop/x", "b", "{}")
		ended <- err
	}
	if waits {
		go enqueue()
		drainertest.AwaitBlocked(t, w.owner)
	}
	commit(t, owner)
	if !waits {
		enqueue()
	}
	err := <-ended
	if err := producer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return err
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

// limit sets a limit of acme's. The next enqueue measures the tenant's queue again.
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
			// A claimed row makes room as soon as the queue is measured.
			drainertest.Exec(t, w.owner, "DELETE FROM outbox.queue WHERE agent_run_id = 'first' AND intent_id % 2 = 0")
			w.measureAnew()
			drainertest.Exec(t, w.acme, bulk, "second", c.fits/2)
			if _, err := w.acme.Exec(t.Context(), bulk, "third", 1); sqlState(err) != "OB006" {
				t.Errorf("%v, want OB006", err)
			}
		})
	}
}

// The clock of the database may begin a new second at any moment of the test. So the test enqueues more than two seconds
// accept.
func TestATenantEnqueuesSoManyIntentsASecond(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	const most, statement = 50, 5
	w.limit("max_rate", most)
	if _, err := w.acme.Exec(t.Context(), bulk, "many", most+1); sqlState(err) != "OB006" || !strings.Contains(err.Error(), "its limit is 50") {
		t.Errorf("%v, want OB006 for more than a second's in one statement", err)
	}
	drainertest.Eventually(t, "a second later 50 are taken", func() bool {
		_, err := w.acme.Exec(t.Context(), bulk, "few", most)
		return err == nil
	})
	for n := range 80 {
		_, _ = w.acme.Exec(t.Context(), bulk, "some "+strconv.Itoa(n), statement) // refused or not
	}
	rows, _ := w.owner.Query(t.Context(), `SELECT floor(extract(epoch FROM created_at))::bigint, count(*) FROM outbox.intent GROUP BY 1`)
	seconds, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ At, Intents int64 }])
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range seconds {
		if s.Intents > most+statement { // a statement at a second's end may count in the next second
			t.Errorf("%d intents were enqueued in one second, with a limit of %d", s.Intents, most)
		}
	}
}

// race lets four producers of acme enqueue one intent after the other, refused or not, until the query returns true.
func (w *walled) race(what, until string, args ...any) {
	w.t.Helper()
	var racers sync.WaitGroup
	over := make(chan struct{})
	defer racers.Wait()
	defer close(over)
	for racer := range 4 {
		racers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				_, err := w.acme.Exec(w.t.Context(), callEnqueue, fmt.Sprintf("%d-%d", racer, n), "s", "noop/x", "b", `{"n": 1}`)
				if err != nil && sqlState(err) != "OB006" {
					w.t.Error(err)
					return
				}
			}
		})
	}
	drainertest.Eventually(w.t, what, func() bool { return drainertest.Value[bool](w.t, w.owner, until, args...) })
}

// Two producers that set a counter at once lose some of its count. The next measurement of the queue, a second later,
// finds it. So producers can enqueue beyond the limit by more than 10 % for a second at most. The test tolerates five
// seconds more, because on a busy machine the producer that measures waits for a processor, and a slow measurement is
// made less often.
func TestProducersThatRaceKeepTheLimitsOfTheQueue(t *testing.T) {
	t.Parallel()
	const fits = 200
	for column, most := range map[string]int{"max_due": fits, "max_bytes": 8 * fits} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			w := newWalled(t)
			w.limit(column, most)
			w.race("the queue is measured seven seconds after it was full", `SELECT coalesce((SELECT pg_sequence_last_value('outbox.tenant_' || tenant_id || '_measure') / 1000
				> (SELECT extract(epoch FROM created_at) + 8 FROM outbox.intent ORDER BY created_at OFFSET $1::int - 1 LIMIT 1)
				FROM outbox.tenant WHERE name = 'acme'), false)`, fits)
			if late := drainertest.Value[int](t, w.owner, `SELECT count(*) FROM outbox.intent WHERE created_at >
				(SELECT created_at + interval '6 seconds' FROM outbox.intent ORDER BY created_at OFFSET $1::int LIMIT 1)`, fits*11/10); late > 0 {
				t.Errorf("%d intents were enqueued later than six seconds after the queue had exceeded its limit by 10 %%", late)
			}
			fault.Injected(t, 93, 1)
		})
	}
}

// Producers that begin a new second at once may set its counter twice, and intents at a second's end may count in the
// next second. So the test tolerates twice as many. Without a limit, that number would be enqueued in a moment.
func TestProducersThatRaceKeepTheRate(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	const most = 50
	w.limit("max_rate", most)
	w.race("intents of four seconds", `SELECT count(DISTINCT floor(extract(epoch FROM created_at))::bigint) >= 4 FROM outbox.intent`)
	if beyond := drainertest.Value[int](t, w.owner, `SELECT count(*) - 2 * $1::int * (1 + max(second) - min(second))
		FROM (SELECT floor(extract(epoch FROM created_at))::bigint AS second FROM outbox.intent) _`, most); beyond > 0 {
		t.Errorf("%d more intents were enqueued than twice the limit of %d a second", beyond, most)
	}
	fault.Injected(t, 93, 1)
}

// A late producer finds the counter of the next second. After the clock was set back, all counters are ahead.
func TestACounterThatIsAheadOfTheClockRefusesNothing(t *testing.T) {
	t.Parallel()
	const ahead = `SELECT setval('outbox.tenant_' || tenant_id || '_' || $1, (floor(extract(epoch FROM clock_timestamp()))::bigint + $2) * $3) FROM outbox.tenant WHERE name = 'acme'`
	for name, c := range map[string]struct {
		column, counter  string
		seconds, ofThese int
	}{
		"the rate, late":           {"max_rate", "rate", 1, 1 << 24},
		"the rate, set back":       {"max_rate", "rate", 3600, 1 << 24},
		"what is queued, set back": {"max_due", "measure", 3600, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWalled(t)
			w.limit(c.column, 1)
			if c.counter == "measure" {
				drainertest.Exec(t, w.acme, bulk, "first", 1)
				drainertest.Exec(t, w.owner, "DELETE FROM outbox.queue")
			}
			drainertest.Exec(t, w.owner, ahead, c.counter, c.seconds, c.ofThese)
			if _, err := w.acme.Exec(t.Context(), bulk, "run", 1); err != nil {
				t.Error(err)
			}
			fault.Injected(t, 93, 1)
		})
	}
}

// A producer that has not committed does not make another producer of its tenant wait.
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

// An owner has lifted the limits, and has not committed yet.
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

// A producer finds the counters of a tenant that is being deleted, or, with an older snapshot, the tenant without its
// counters. When the producer runs again, its login belongs to no tenant.
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
			if err := w.meets(t, producer, "1", owner, waits); sqlState(err) != "40001" {
				t.Errorf("%v, want 40001", err)
			}
			drainertest.Exec(t, w.acme, callEnqueue, "run", "1", "noop/x", "b", "{}")
		})
	}
}

func TestARepetitionIsAnsweredWhileItsTenantIsBeingDeleted(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"it is gone": false, "it is going": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWalled(t)
			w.limit("max_rate", 1000)
			drainertest.Exec(t, w.acme, callEnqueue, "run", "1", "noop/x", "b", "{}")
			producer := drainertest.Begin(t, w.acme)
			if !waits {
				drainertest.Exec(t, producer, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
			}
			drainertest.Exec(t, producer, "SELECT count(*) FROM outbox.status")
			owner := drainertest.Begin(t, w.owner)
			drainertest.Exec(t, owner, "DELETE FROM outbox.tenant WHERE name = 'acme'")
			if err := w.meets(t, producer, "1", owner, waits); err != nil {
				t.Error(err)
			}
		})
	}
}

// Any login can take any advisory lock, and keep it.
func TestAnAgentsLockKeepsNoOwnerFromItsTenants(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	w := newWalledAt(t, url)
	agent, err := w.nomad.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Release()
	drainertest.Exec(t, agent, "SELECT pg_advisory_lock(hashtextextended('outbox/walls', 0))") // which the triggers took once
	for _, change := range []string{
		"INSERT INTO outbox.tenant (name, role) VALUES ('new', 'new')",
		"UPDATE outbox.tenant SET max_rate = 1 WHERE name = 'acme'",
		"DELETE FROM outbox.tenant WHERE name = 'globex'",
	} {
		if _, err := w.owner.Exec(t.Context(), change); err != nil {
			t.Errorf("%s: %v", change, err)
		}
	}
	fault.Injected(t, 73, 1)
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	if _, err := migrations.Down(ctx, url); err != nil {
		t.Error(err)
	}
}

// Each owner sees the tenant that the other one deletes, until the other one has committed.
func TestOwnersWhoDeleteTheLastTenantsAtOnceTakeTheWallsDown(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	tx := drainertest.Begin(t, w.owner)
	drainertest.Exec(t, tx, "DELETE FROM outbox.tenant WHERE name = 'acme'")
	deleted := make(chan error, 1)
	go func() {
		_, err := w.owner.Exec(t.Context(), "DELETE FROM outbox.tenant WHERE name = 'globex'")
		deleted <- err
	}()
	drainertest.AwaitBlocked(t, w.owner)
	commit(t, tx)
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if up := drainertest.Value[int](t, w.owner, `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'outbox.intent'::regclass
		AND tgname IN ('set_tenant', 'keep_walls') AND tgenabled <> 'D'`); up > 0 {
		t.Errorf("%d of 2 triggers are enabled, and there is no tenant", up)
	}
}

// An agent whose reply was lost must get the answer, however much it repeats at once. So a repetition is never refused.
func TestATenantThatRepeatsItselfIsAnsweredAndFillsNoDisk(t *testing.T) {
	t.Parallel()
	const most = 5
	for how, statement := range map[string]string{"called": callEnqueue, "inserted": plainInsert} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWalled(t)
			drainertest.Exec(t, w.acme, bulk, "bulk", 4*most)
			drainertest.Exec(t, w.globex, callEnqueue, "other", "s", "noop/x", "b", "{}")
			w.limit("max_rate", most)
			drainertest.Exec(t, w.acme, bulk, "bulk", 4*most) // more than a second's
			for range 20 * most {
				drainertest.Exec(t, w.acme, statement, "bulk", "step-1", "noop/x", "b", `{"n": 1}`)
				drainertest.Exec(t, w.globex, statement, "other", "s", "noop/x", "b", "{}")
			}
			drainertest.Exec(t, w.acme, callEnqueue, "new", "s", "noop/x", "b", "{}") // repetitions do not count as new intents
			recorded := func(tenant string) string {
				return drainertest.Value[string](t, w.owner, `SELECT string_agg(n::text, ' ' ORDER BY n DESC) FROM (
					SELECT count(*) n FROM outbox.duplicate d JOIN outbox.intent i ON i.id = d.intent_id JOIN outbox.tenant t ON t.tenant_id = i.tenant
					WHERE t.name = $1 GROUP BY date_trunc('second', seen_at)) _`, tenant)
			}
			if got := recorded("acme"); drainertest.Value[int](t, w.owner, "SELECT split_part($1, ' ', 1)::int", got) > most+1 { // one may count in the next second
				t.Errorf("in each second %s repetitions were recorded, with a limit of %d", got, most)
			}
			if n := drainertest.Value[int](t, w.owner, `SELECT count(*) FROM outbox.duplicate d JOIN outbox.intent i ON i.id = d.intent_id
				WHERE agent_run_id = 'other'`); n != 20*most {
				t.Errorf("%d of the %d repetitions of a tenant without a limit were recorded", n, 20*most)
			}
		})
	}
}

// From PostgreSQL 16 on, a login that created roles is a member of them, but only to administer them.
func TestALoginThatMadeATenantsRoleIsNotItsAgent(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner := drainertest.Connect(t, url)
	maker := drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	name := drainertest.Value[string](t, maker, "SELECT session_user::text")
	drainertest.Exec(t, owner, "ALTER ROLE "+name+" CREATEROLE")
	for n := range 2 {
		role := fmt.Sprintf("%s_%d", name, n)
		drainertest.Exec(t, maker, "CREATE ROLE "+role)
		t.Cleanup(func() { drainertest.Exec(t, drainertest.Connect(t, url), "DROP ROLE "+role) })
		drainertest.Exec(t, owner, "INSERT INTO outbox.tenant (name, role) VALUES ($1::text, $1::text::name)", role)
		if _, err := maker.Exec(t.Context(), callEnqueue, role, "s", "noop/x", "b", "{}"); err != nil {
			t.Errorf("with %d tenants: %v", n+1, err)
		}
	}
	drainertest.Exec(t, maker, "GRANT "+name+"_0 TO "+name)
	drainertest.Exec(t, maker, callEnqueue, "granted", "s", "noop/x", "b", "{}")
	if got := drainertest.Column[string](t, owner, `SELECT agent_run_id FROM outbox.intent WHERE tenant IS NOT NULL`); len(got) != 1 || got[0] != "granted" {
		t.Errorf("a tenant's are the intents of %q, want only the one since the grant", got)
	}
}

func TestATenantsCountersGoWithIt(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	const counters = `SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relname ~ '^tenant_[0-9]+_(rate|repeats|due|bytes|measure)$'`
	w.limit("max_due", 10)
	if n := drainertest.Value[int](t, w.owner, counters); n != 5 {
		t.Errorf("%d counters, want 5", n)
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
