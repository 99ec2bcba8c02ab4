package migrations_test

import (
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/migrations"
)

const (
	forbidden      = "42501"
	checkViolation = "23514"
)

func TestAnAgentMayOnlyEnqueueAndReadStatus(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	asRole(t, pool, "outbox_agent", map[string]string{
		"SELECT * FROM outbox.enqueue('r', '1', 'noop/x', 'b', '{}')":                                                                                    "",
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', '2', 't', 'b', '{}') ON CONFLICT DO NOTHING": "",
		"SELECT status FROM outbox.status WHERE agent_run_id = 'r'":                                                                                      "",
		"SELECT outbox.idempotency_key('r', 's', 't', 'b')":                                                                                              "",
		"SELECT name FROM outbox.tool":                                                                                                                   "",

		"SELECT * FROM outbox.await('{1}')": "",

		"SELECT * FROM outbox.waiter":                         forbidden,
		"INSERT INTO outbox.waiter VALUES ('me', 'infinity')": forbidden,

		"INSERT INTO outbox.tool (name) VALUES ('p/mine')": forbidden,
		"DELETE FROM outbox.tool":                          forbidden,
		"SELECT outbox.refuse_unknown_tool('p/x')":         forbidden,

		"SELECT * FROM outbox.intent":             forbidden,
		"UPDATE outbox.intent SET payload = '{}'": forbidden,
		"DELETE FROM outbox.intent":               forbidden,
		"TRUNCATE outbox.intent":                  forbidden,
		"SELECT * FROM outbox.queue":              forbidden,
		"DELETE FROM outbox.queue":                forbidden,
		"SELECT * FROM outbox.claim":              forbidden,
		"SELECT * FROM outbox.attempt":            forbidden,
		"SELECT * FROM outbox.duplicate":          forbidden,
		"INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{}')": forbidden,
		"UPDATE outbox.provider SET paused = true":                                          forbidden,
		"INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('r', 1)":                     forbidden,
		"SELECT nextval('outbox.collisions')":                                               forbidden,
		"SELECT setval('outbox.collisions', 9)":                                             forbidden,
		"SELECT * FROM outbox.incident":                                                     forbidden,
		"SELECT * FROM outbox.page":                                                         forbidden,
		"SELECT * FROM outbox.river_job":                                                    forbidden,
		"SELECT * FROM outbox.goose_db_version":                                             forbidden,
		"CREATE TABLE outbox.mine (x int)":                                                  forbidden,
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates) VALUES ('r', 'compensate:1', 't', 'b', '{}', 1)": forbidden,
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at) VALUES ('r', '3', 't', 'b', '{}', '-infinity')":   forbidden,
		"SELECT * FROM outbox.prune(0, 10, 7776000)": forbidden,
		"SELECT outbox.hold('{1}')":                  forbidden,
		"SELECT outbox.hold_alone(1)":                forbidden,
		"SELECT * FROM outbox.operation":             forbidden,
		"SELECT * FROM outbox.setting":               forbidden,
		"SELECT * FROM outbox.generation":            forbidden,
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, namespace) VALUES ('r', '4', 't', 'b', '{}', 'another')": forbidden,
		"INSERT INTO outbox.setting VALUES ('namespace', 'mine')":                                                                            forbidden,
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, tenant) VALUES ('r', '5', 't', 'b', '{}', 1)": forbidden,
		"SELECT * FROM outbox.tenant":                  forbidden,
		"SELECT outbox.keep_limits(1::smallint, 1, 1)": forbidden,
		"SELECT outbox.refuse_stranger()":              forbidden,
	})
}

func TestTheDrainerCannotChangeWhatWasCommittedOrRecorded(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, callEnqueue, "r", "s", "noop/x", "b", "{}")
	asRole(t, pool, "outbox_drainer", map[string]string{
		"SELECT * FROM outbox.queue FOR UPDATE SKIP LOCKED":                                                   "",
		"SELECT * FROM outbox.claim FOR UPDATE":                                                               "",
		"DELETE FROM outbox.queue":                                                                            "",
		"INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{}')":                   "",
		"UPDATE outbox.worker SET beat_at = now()":                                                            "",
		"DELETE FROM outbox.worker":                                                                           "",
		"INSERT INTO outbox.provider (name) VALUES ('p') ON CONFLICT (name) DO UPDATE SET idle_until = now()": "",
		"INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('r', 1)":                                       "",
		"INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 1, 'w', 'completed', 'completed') ON CONFLICT DO NOTHING":                                           "",
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates) VALUES ('r', 'compensate:1', 't', 'b', '{}', 1) ON CONFLICT DO NOTHING RETURNING id": "",
		"SELECT last_value FROM outbox.collisions": "",
		"SELECT * FROM outbox.status":              "",
		"DELETE FROM outbox.river_job":             "",
		"INSERT INTO outbox.river_job (kind, args, max_attempts, queue) VALUES ('k', '{}', 1, 'q')": "",

		"INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 1, 'r') ON CONFLICT (kind, intent_id) DO UPDATE SET opened_at = now()":                                                    "",
		"WITH i AS (INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 1, 'r') RETURNING id) INSERT INTO outbox.page (incident_id, generation, channel) SELECT id, 1, 'slack' FROM i": "",
		"INSERT INTO outbox.watermark VALUES ('w', 1) ON CONFLICT (name) DO UPDATE SET value = 2":                                                                                                                       "",
		"SELECT * FROM outbox.prune(0, 10, 7776000)": "",
		"SELECT outbox.hold('{1}')":                  "",
		"SELECT outbox.hold_alone(1)":                "",
		"INSERT INTO outbox.operation (operator, action, provider, reason) VALUES ('operator:o', 'pause', 'p', 'r')": forbidden,
		"UPDATE outbox.operation SET reason = 'another'":                                                             forbidden,
		"DELETE FROM outbox.operation":                                                                               forbidden,

		"UPDATE outbox.intent SET payload = '{}'":                  forbidden,
		"DELETE FROM outbox.intent":                                forbidden,
		"TRUNCATE outbox.intent":                                   forbidden,
		"SELECT * FROM outbox.intent FOR UPDATE":                   forbidden,
		"UPDATE outbox.queue SET attempt = 0":                      forbidden,
		"UPDATE outbox.claim SET attempts = '{}'":                  "",
		"UPDATE outbox.claim SET worker_id = gen_random_uuid()":    forbidden,
		"UPDATE outbox.attempt SET status = 'failed'":              forbidden,
		"DELETE FROM outbox.attempt":                               forbidden,
		"DELETE FROM outbox.duplicate":                             forbidden,
		"SELECT * FROM outbox.setting":                             "",
		"INSERT INTO outbox.setting VALUES ('namespace', 'mine')":  forbidden,
		"UPDATE outbox.setting SET value = '1 hour'":               forbidden,
		"DELETE FROM outbox.setting":                               forbidden,
		"INSERT INTO outbox.tenant (name, role) VALUES ('t', 't')": forbidden,
		"UPDATE outbox.tenant SET weight = 9":                      forbidden,
		"DELETE FROM outbox.saga":                                  forbidden,
		"DELETE FROM outbox.incident":                              forbidden,
		"DELETE FROM outbox.page":                                  forbidden,
		"DELETE FROM outbox.goose_db_version":                      forbidden,
		"SELECT * FROM outbox.enqueue('r', '9', 't', 'b', '{}')":   forbidden,
		"CREATE TABLE outbox.mine (x int)":                         forbidden,
	})
}

// Each statement is an attempt to forge, erase or rewrite history with the login of a daemon.
func TestADaemonCannotForgeOrRewriteHistory(t *testing.T) {
	t.Parallel()
	fault.Injected(t, 70, 1)
	pool := drainertest.Connect(t, drainertest.Database(t))
	seedHistory(t, pool)
	drainertest.Exec(t, pool, `INSERT INTO outbox.history (id, era, doubted_before, table_oid, database_oid, accepted_by)
		VALUES (1, 1, 1, 0, 0, 'operator:bob'), (2, 2, 2, 0, 0, NULL)`)
	asRole(t, pool, "outbox_drainer", map[string]string{
		// as an operator
		"UPDATE outbox.history SET accepted_by = 'operator:alice' WHERE id = 1":                                                               forbidden,
		"UPDATE outbox.history SET accepted_by = 'operator:alice' WHERE id = 2":                                                               forbidden,
		"INSERT INTO outbox.history (id, era, doubted_before, table_oid, database_oid, accepted_by) VALUES (3, 3, 3, 0, 0, 'operator:alice')": forbidden,
		"UPDATE outbox.history SET reason = 'another'":                                                                                        forbidden,
		"SELECT outbox.accept_history(2, false, 'operator:alice', 'r')":                                                                       forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 9, 'operator:alice', 'resolved', 'completed')":   checkViolation,
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status) VALUES (1, 9, 'operator:alice', 'resolved', 'completed')": forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, reason) VALUES (1, 9, 'w', 'resolved', 'completed', 'why')": forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, outcome, status) VALUES (1, 9, 'resolved', 'completed')":                             checkViolation,
		"INSERT INTO outbox.operation (operator, action, provider, reason) VALUES ('operator:alice', 'pause', 'p', 'r')":                      forbidden,
		"SELECT outbox.operate_provider('p', true, 'operator:alice', 'r')":                                                                    forbidden,
		"SELECT outbox.operate_run('failed', 'resolve_saga', 'operator:alice', 'r')":                                                          forbidden,
		"UPDATE outbox.provider SET paused = false":                                                                                           forbidden,
		"DELETE FROM outbox.provider":                                                                                                     forbidden,
		"INSERT INTO outbox.provider (name, paused) VALUES ('q', true)":                                                                   forbidden,
		"UPDATE outbox.saga SET state = 'resolved'":                                                                                       forbidden,
		"UPDATE outbox.saga SET state = 'cancelled'":                                                                                      forbidden,
		"UPDATE outbox.saga SET changed_by = 'operator:alice'":                                                                            forbidden,
		"UPDATE outbox.saga SET reason = 'another'":                                                                                       forbidden,
		"UPDATE outbox.saga SET epoch = 7":                                                                                                forbidden,
		"INSERT INTO outbox.saga (agent_run_id, state) VALUES ('other', 'resolved')":                                                      forbidden,
		"INSERT INTO outbox.saga (agent_run_id, changed_by) VALUES ('other', 'operator:alice')":                                           forbidden,
		"UPDATE outbox.incident SET acknowledged_by = 'operator:alice', acknowledged_at = now()":                                          forbidden,
		"UPDATE outbox.incident SET resolved_by = 'operator:alice', resolved_at = now()":                                                  forbidden,
		"INSERT INTO outbox.incident (kind, intent_id, agent_run_id, acknowledged_by) VALUES ('key_collision', 7, 'r', 'operator:alice')": forbidden,
		"UPDATE outbox.incident SET resolved_at = now()":                                                                                  forbidden,
		// as another login
		"INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, login) VALUES (1, 9, 'w', 'completed', 'completed', 'alice')": forbidden,
		"INSERT INTO outbox.saga (agent_run_id, login) VALUES ('other', 'alice')":                                                               forbidden,
		"UPDATE outbox.saga SET login = 'alice'":     forbidden,
		"UPDATE outbox.incident SET login = 'alice'": forbidden,
		"SET ROLE outbox_operator":                   forbidden,
		// recorded history
		"UPDATE outbox.attempt SET status = 'failed'":                     forbidden,
		"DELETE FROM outbox.attempt":                                      forbidden,
		"TRUNCATE outbox.attempt":                                         forbidden,
		"DELETE FROM outbox.operation":                                    forbidden,
		"DELETE FROM outbox.saga":                                         forbidden,
		"DELETE FROM outbox.incident":                                     forbidden,
		"UPDATE outbox.incident SET kind = 'key_collision'":               forbidden,
		"UPDATE outbox.incident SET reason = 'another'":                   forbidden,
		"INSERT INTO outbox.duplicate (intent_id) VALUES (1)":             forbidden,
		"DELETE FROM outbox.duplicate":                                    forbidden,
		"SELECT setval('outbox.collisions', 0)":                           forbidden,
		"DELETE FROM outbox.forgotten":                                    forbidden,
		"INSERT INTO outbox.forgotten (agent_run_id) VALUES ('other')":    forbidden,
		"INSERT INTO outbox.setting VALUES ('retention_floor', '1 hour')": forbidden,
		"CREATE TRIGGER mine BEFORE INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION outbox.sign_incident()": forbidden,
		"ALTER TABLE outbox.attempt DISABLE TRIGGER ALL":                                                           forbidden,
		// its own work
		"UPDATE outbox.history SET accepted_by = accepted_by, seen_at = now()":     "",
		"UPDATE outbox.history SET accepted_by = 'drainer' WHERE id = 2":           "",
		"UPDATE outbox.saga SET state = 'compensated', ended_at = now()":           "",
		"UPDATE outbox.incident SET resolved_by = 'evidence', resolved_at = now()": "",
		"UPDATE outbox.incident SET opened_at = now()":                             "",
		"UPDATE outbox.tool SET rendered = '{}'":                                   "",
		"UPDATE outbox.provider SET state = 'open', reason = 'overload', open_until = now(), shut_at = now(), refused_at = now(), refused_intent = 1, idle_until = now()": "",
		"UPDATE outbox.tool SET state = 'open', reason = 'failure_rate', open_until = now(), shut_at = now(), refused_at = now(), refused_intent = 1, prober = NULL":      "",
	})
	if login := drainertest.Value[string](t, pool, `SELECT string_agg(DISTINCT login, ',') FROM outbox.attempt`); login != drainertest.Value[string](t, pool, `SELECT session_user::text`) {
		t.Errorf("the login on record is %s", login)
	}
}

// Each statement is an attempt to forge, erase or rewrite history with the login of an operator.
func TestAnOperatorCannotForgeOrRewriteHistory(t *testing.T) {
	t.Parallel()
	fault.Injected(t, 70, 1)
	pool := drainertest.Connect(t, drainertest.Database(t))
	seedHistory(t, pool)
	asRole(t, pool, "outbox_operator", map[string]string{
		// as a daemon
		"INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 9, gen_random_uuid()::text, 'completed', 'completed')":                 forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, outcome, status) VALUES (1, 9, 'completed', 'completed')":                                                  checkViolation,
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, http_status) VALUES (1, 9, 'operator:a', 'completed', 'completed', 200)":        forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, response) VALUES (1, 9, 'operator:a', 'completed', 'completed', '{}')":          forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, started_at) VALUES (1, 9, 'operator:a', 'completed', 'completed', now())":       forbidden,
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, finished_at) VALUES (1, 9, 'operator:a', 'resolved', 'completed', '-infinity')": forbidden,
		"INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{}')":                                                                         forbidden,
		"DELETE FROM outbox.worker": forbidden,
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', '7', 'a/b', 'c', '{}')": forbidden,
		"SELECT * FROM outbox.enqueue('r', '7', 'a/b', 'c', '{}')":                                                                  forbidden,
		"DELETE FROM outbox.claim":                                                forbidden,
		"UPDATE outbox.saga SET state = 'compensated'":                            forbidden,
		"UPDATE outbox.saga SET changed_by = 'operator:bob'":                      forbidden,
		"INSERT INTO outbox.saga (agent_run_id) VALUES ('other')":                 forbidden,
		"SELECT outbox.operate_run('failed', 'compensated', 'operator:a', 'r')":   "20000",
		"SELECT outbox.operate_run('failed', 'resolve_saga', 'drainer', 'r')":     checkViolation,
		"SELECT outbox.operate_run('failed', 'resolve_saga', 'operator:a', NULL)": "23502",
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status) VALUES (1, 9, gen_random_uuid()::text, 'resolved', 'completed')": checkViolation,
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status) VALUES (1, 9, 'operator:a', 'completed', 'completed')":           checkViolation,
		"UPDATE outbox.incident SET acknowledged_by = 'drainer', acknowledged_at = now()":                                                            forbidden,
		"UPDATE outbox.incident SET acknowledged_at = now()":                                                                                         forbidden,
		"UPDATE outbox.incident SET resolved_at = now()":                                                                                             forbidden,
		"UPDATE outbox.incident SET resolved_by = 'evidence', resolved_at = now()":                                                                   forbidden,
		"INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 7, 'r')":                                               forbidden,
		"UPDATE outbox.provider SET paused = true":                                                                                                   forbidden,
		"UPDATE outbox.provider SET state = 'open'":                                                                                                  forbidden,
		"INSERT INTO outbox.river_job (kind, args, max_attempts, queue) VALUES ('k', '{}', 1, 'q')":                                                  forbidden,
		// as another login
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, login) VALUES (1, 9, 'operator:a', 'resolved', 'completed', 'bob')": forbidden,
		"INSERT INTO outbox.operation (operator, action, provider, reason) VALUES ('operator:a', 'pause', 'p', 'r')":                                    forbidden,
		"UPDATE outbox.incident SET login = 'bob'": forbidden,
		"SET ROLE outbox_drainer":                  forbidden,
		// recorded history
		"SELECT * FROM outbox.prune(0, 10, 7776000)":                      forbidden,
		"UPDATE outbox.attempt SET reason = 'another'":                    forbidden,
		"DELETE FROM outbox.attempt":                                      forbidden,
		"UPDATE outbox.operation SET reason = 'another'":                  forbidden,
		"DELETE FROM outbox.operation":                                    forbidden,
		"TRUNCATE outbox.operation":                                       forbidden,
		"DELETE FROM outbox.saga":                                         forbidden,
		"DELETE FROM outbox.incident":                                     forbidden,
		"UPDATE outbox.incident SET opened_at = '-infinity'":              forbidden,
		"DELETE FROM outbox.page":                                         forbidden,
		"UPDATE outbox.page SET told = 'resolved'":                        forbidden,
		"INSERT INTO outbox.setting VALUES ('retention_floor', '1 hour')": forbidden,
		"UPDATE outbox.intent SET payload = '{}'":                         forbidden,
		"UPDATE outbox.queue SET attempt = 0":                             forbidden,
		// its own work
		"INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, reason) VALUES (1, 9, 'operator:a', 'resolved', 'completed', 'why')": "",
		"UPDATE outbox.incident SET resolved_by = 'operator:a', resolved_at = now()":                                                                     "",
		"SELECT outbox.operate_run('failed', 'resolve_saga', 'operator:a', 'why')":                                                                       "",
		"SELECT outbox.operate_run('failed', 'reveal', 'operator:a', 'why')":                                                                             "",
		"SELECT outbox.operate_provider('p', true, 'operator:a', 'why')":                                                                                 "",
		"SELECT version FROM outbox.river_migration":                                                                                                     "",
	})
}

// The operator who decided on an incident is a part of history as well, until the incident opens again.
func TestADecisionOnAnIncidentStandsUntilItOpensAgain(t *testing.T) {
	t.Parallel()
	fault.Injected(t, 70, 1)
	pool := drainertest.Connect(t, drainertest.Database(t))
	seedHistory(t, pool)
	drainertest.Exec(t, pool, "UPDATE outbox.incident SET acknowledged_by = 'operator:ann', acknowledged_at = now(), reason = 'mine'")
	asRole(t, pool, "outbox_operator", map[string]string{
		"UPDATE outbox.incident SET acknowledged_by = 'operator:bob'":                     forbidden,
		"UPDATE outbox.incident SET acknowledged_by = NULL, acknowledged_at = NULL":       forbidden,
		"UPDATE outbox.incident SET reason = 'another'":                                   forbidden,
		"UPDATE outbox.incident SET resolved_by = 'operator:bob', resolved_at = now()":    "",
		"UPDATE outbox.incident SET acknowledged_by = 'operator:ann', reason = 'another'": forbidden,
	})
	drainertest.Exec(t, pool, "UPDATE outbox.incident SET resolved_by = 'operator:ann', resolved_at = now()")
	for role, name := range map[string]string{"outbox_operator": "operator:bob", "outbox_drainer": "evidence"} {
		asRole(t, pool, role, map[string]string{
			"UPDATE outbox.incident SET resolved_by = '" + name + "'":        forbidden,
			"UPDATE outbox.incident SET resolved_by = NULL":                  forbidden,
			"UPDATE outbox.incident SET resolved_at = NULL":                  forbidden,
			"UPDATE outbox.incident SET resolved_at = now() - interval '1d'": forbidden,
		})
	}
	asRole(t, pool, "outbox_drainer", map[string]string{
		"UPDATE outbox.incident SET opened_at = now()": "",
	})
}

// The operator states the name beside a decision, and the login is that of the session.
func TestTheLoginOnRecordIsTheSessions(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	seedHistory(t, pool)
	tx := drainertest.Begin(t, pool)
	drainertest.Exec(t, tx, "SET LOCAL SESSION AUTHORIZATION outbox_operator")
	drainertest.Exec(t, tx, "INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, reason) VALUES (1, 9, 'operator:bob', 'resolved', 'completed', 'why')")
	drainertest.Exec(t, tx, "UPDATE outbox.incident SET acknowledged_by = 'operator:bob'")
	drainertest.Exec(t, tx, "SELECT outbox.operate_run('failed', 'retry_saga', 'operator:bob', 'why')")
	drainertest.Exec(t, tx, "SET LOCAL SESSION AUTHORIZATION outbox_drainer")
	drainertest.Exec(t, tx, "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 10, 'w', 'completed', 'completed')")
	drainertest.Exec(t, tx, "UPDATE outbox.saga SET state = 'compensated', ended_at = now()")
	drainertest.Exec(t, tx, "RESET SESSION AUTHORIZATION")
	for query, want := range map[string]string{
		"SELECT login FROM outbox.attempt WHERE attempt = 9":         "outbox_operator",
		"SELECT login FROM outbox.attempt WHERE attempt = 10":        "outbox_drainer",
		"SELECT login FROM outbox.incident":                          "outbox_operator",
		"SELECT login FROM outbox.operation":                         "outbox_operator",
		"SELECT login FROM outbox.saga WHERE changed_by IS NOT NULL": "outbox_operator", // also after the daemon ended it
	} {
		var login string
		if err := tx.QueryRow(t.Context(), query).Scan(&login); err != nil || login != want {
			t.Errorf("%s: %q, %v; want %s", query, login, err, want)
		}
	}
}

// seedHistory adds a row to each table that the statements try to change.
func seedHistory(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	drainertest.Exec(t, pool, callEnqueue, "failed", "s", "p/x", "b", "{}")
	drainertest.Exec(t, pool, "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 1, 'w', 'completed', 'completed')")
	drainertest.Exec(t, pool, "INSERT INTO outbox.saga (agent_run_id, cause, state) VALUES ('failed', 1, 'compensation_failed')")
	drainertest.Exec(t, pool, "INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('compensation_failed', 1, 'failed')")
	drainertest.Exec(t, pool, "INSERT INTO outbox.provider (name) VALUES ('p')")
}

func TestTheDrainerMayCheckTheSchema(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	drainertest.Exec(t, conn, "SET ROLE outbox_drainer")
	if err := migrations.Check(t.Context(), conn); err != nil {
		t.Error(err)
	}
}

// With the key, a login that reads fingerprints could guess the hashed configuration. No view, no function and no
// statistics show the key either.
func TestOnlyADaemonReadsTheKeyOfFingerprints(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, "ANALYZE outbox.fingerprint_key")
	reads := map[string]string{}
	for _, statement := range []string{
		"SELECT key FROM outbox.fingerprint_key", "SELECT count(*) FROM outbox.fingerprint_key WHERE key < '\\x80'", "SELECT f::text FROM outbox.fingerprint_key f",
		"SELECT * FROM outbox.fingerprint_key FOR SHARE", "COPY outbox.fingerprint_key TO STDOUT", "CREATE TEMP TABLE mine AS TABLE outbox.fingerprint_key",
		"SELECT * FROM pg_statistic", "SELECT * FROM pg_statistic_ext_data",
		"SELECT table_to_xml('outbox.fingerprint_key', true, false, '')",
	} {
		reads[statement] = forbidden
	}
	const statistics = "SELECT 1 / (count(*) = 0)::int FROM pg_stats WHERE schemaname = 'outbox' AND tablename = 'fingerprint_key'"
	reads[statistics] = "" // these roles see no statistics; otherwise the statement divides by zero
	for _, role := range []string{"outbox_agent", "outbox_operator", "outbox_auditor"} {
		asRole(t, pool, role, reads)
	}
	asRole(t, pool, "outbox_drainer", map[string]string{
		"SELECT key FROM outbox.fingerprint_key": "",
		statistics:                               "22012",
		"UPDATE outbox.fingerprint_key SET key = sha256('')":   forbidden,
		"DELETE FROM outbox.fingerprint_key":                   forbidden,
		"INSERT INTO outbox.fingerprint_key (key) VALUES ('')": forbidden,
	})
	if shown := drainertest.Column[string](t, pool, `
		SELECT viewname::text FROM pg_views WHERE definition LIKE '%fingerprint_key%' UNION ALL
		SELECT matviewname::text FROM pg_matviews WHERE definition LIKE '%fingerprint_key%' UNION ALL
		SELECT proname::text FROM pg_proc WHERE prosrc LIKE '%fingerprint_key%'`); len(shown) > 0 {
		t.Errorf("the key is used by %v", shown)
	}
}

// asRole tries each statement in a transaction that is rolled back.
func asRole(t *testing.T, pool *pgxpool.Pool, role string, statements map[string]string) {
	t.Helper()
	for statement, wantState := range statements {
		tx := drainertest.Begin(t, pool)
		drainertest.Exec(t, tx, "SET LOCAL SESSION AUTHORIZATION "+role)
		if _, err := tx.Exec(t.Context(), statement); sqlState(err) != wantState || (err != nil && wantState == "") {
			t.Errorf("%s: %s\n\tgot %v, want SQLSTATE %q", role, statement, err, wantState)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	pinned = `SET search_path = pg_catalog, pg_temp`
	// shadowTypes puts a domain over every type into the attacker's pg_temp.
	shadowTypes = `DO $$
	DECLARE shadowed name;
	BEGIN
	  FOR shadowed IN SELECT typname FROM pg_catalog.pg_type
	    WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typname NOT LIKE '\_%' LOOP
	    EXECUTE format('CREATE DOMAIN pg_temp.%1$I AS pg_catalog.%1$I CHECK (public.attack())', shadowed);
	  END LOOP;
	END $$`
)

func TestEveryFunctionOfTheSchemaNamesItsSearchPath(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	if n := drainertest.Value[int](t, pool, `SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname LIKE 'river\_%'`); n == 0 {
		t.Error("no function of River's was looked at")
	}
	fault.Injected(t, 64, drainertest.Value[int](t, pool, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace"))
	for _, open := range drainertest.Column[string](t, pool, `SELECT oid::regprocedure::text FROM pg_proc
		WHERE pronamespace = 'outbox'::regnamespace AND ('search_path=pg_catalog, pg_temp' = ANY (proconfig)) IS NOT TRUE`) {
		t.Errorf("%s runs with the search_path of its caller, or with pg_temp before pg_catalog", open)
	}
}

// Any login can take any advisory lock and keep it. So a function may try to take one, and must not wait for it.
func TestNoFunctionOfTheSchemaWaitsForALockThatAnyLoginCanHold(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	for _, waits := range drainertest.Column[string](t, pool, `SELECT oid::regprocedure::text FROM pg_proc
		WHERE pronamespace = 'outbox'::regnamespace AND prosrc ~ 'pg_advisory_(xact_)?lock'`) {
		t.Errorf("%s waits for an advisory lock", waits)
	}
	fault.Injected(t, 73, drainertest.Value[int](t, pool, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace"))
}

// An agent shadows the names that the schema's functions use: types in its pg_temp, and functions and operators in
// public. It may create in public, and puts public before pg_catalog on its path. It tries each entry point, with
// tenants and without.
func TestAnAgentCannotRunCodeAsTheSchemaOwner(t *testing.T) {
	t.Parallel()
	database := drainertest.Database(t)
	owner := drainertest.Connect(t, database)
	login := "agent_" + strings.TrimPrefix(drainertest.Value[string](t, owner, "SELECT current_database()"), "drainertest_")
	drainertest.Exec(t, owner, "CREATE ROLE "+login+" LOGIN PASSWORD 'agent' IN ROLE outbox_agent; GRANT CREATE ON SCHEMA public TO "+login)
	t.Cleanup(func() {
		drainertest.Exec(t, owner, "DROP OWNED BY "+login+" CASCADE; DROP ROLE "+login)
	})

	var attacks atomic.Int64
	agent := listenTo(t, database, url.UserPassword(login, "agent"), &attacks)
	drainertest.Exec(t, agent, `CREATE FUNCTION public.attack() RETURNS boolean LANGUAGE plpgsql `+pinned+` AS $$
		BEGIN
		  IF current_user <> '`+login+`' THEN RAISE WARNING 'the attack ran as %', current_user; END IF;
		  RETURN true;
		END $$`)
	drainertest.Exec(t, agent, drainertest.ShadowRoutines)
	drainertest.Exec(t, agent, shadowTypes)
	drainertest.Exec(t, agent, "SET search_path = public, pg_catalog")

	// The attack works against weak functions: one that names no path, and one whose path is empty.
	for name, path := range map[string]string{"the caller's path": "", "an empty path": "SET search_path = ''"} {
		drainertest.Exec(t, owner, `CREATE OR REPLACE FUNCTION outbox.open_to_all() RETURNS text LANGUAGE plpgsql SECURITY DEFINER `+path+`
			AS $$ DECLARE said text := 'a'; BEGIN RETURN said; END $$; GRANT EXECUTE ON FUNCTION outbox.open_to_all TO PUBLIC`)
		before := attacks.Load()
		if drainertest.Exec(t, agent, "SELECT outbox.open_to_all()"); attacks.Load() == before {
			t.Errorf("the attack does not work with %s, so this test shows nothing", name)
		}
	}
	drainertest.Exec(t, owner, "DROP FUNCTION outbox.open_to_all()")
	drainertest.Exec(t, owner, "INSERT INTO outbox.provider (name, idle_until) VALUES ('stripe', 'infinity')")
	fault.Injected(t, 64, int(attacks.Swap(0)))

	const (
		enqueue = "SELECT FROM outbox.enqueue"
		insert  = "INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers, not_before) VALUES "
	)
	type entry struct{ statement, wantState string }
	entries := func(run string, more ...entry) []entry {
		return append([]entry{
			{enqueue + "(" + run + ", '1', 'stripe/charge', 'b', '{}')", ""},
			{enqueue + "(" + run + ", '1', 'stripe/charge', 'b', '{}')", ""},
			{enqueue + "(" + run + `, '1', 'stripe/charge', 'b', '{"other": 1}')`, "OB001"},
			{enqueue + "('', '1', 'stripe/charge', 'b', '{}')", "OB003"},
			{insert + "(" + run + ", '2', 'stripe/charge', 'b', '{}', '{}', NULL), (" + run + ", '3', 'stripe/charge', 'b', '{}', '{}', '2020-01-01')", ""},
			{insert + "(" + run + ", '2', 'stripe/charge', 'b', '{}', '{}', NULL) ON CONFLICT DO NOTHING", ""},
			{insert + "(" + run + `, '2', 'stripe/charge', 'b', '{"other": 1}', '{}', NULL) ON CONFLICT DO NOTHING`, "OB001"},
			{"SELECT outbox.idempotency_key(" + run + ", '1', 'stripe/charge', 'b')", ""},
			{"SELECT * FROM outbox.status", ""},
			{"SELECT * FROM outbox.await('{1}')", ""},
			{"SELECT outbox.arm()", ""},
			{"SELECT outbox.sees_all()", ""},
			{"SELECT outbox.session_tenant()", ""},
		}, more...)
	}
	superuser := listenTo(t, database, nil, &attacks) // with public on the path, as is usual
	for _, phase := range []struct {
		prepare string
		entries []entry
	}{
		{"SELECT", entries("'r'")},
		{
			"INSERT INTO outbox.tenant (name, role, max_due, max_bytes, max_rate) VALUES ('own', '" + login + "', 1000000, 1000000, 1000000)",
			entries("'walled'", entry{enqueue + "('r', '4', 'stripe/charge', 'b', '{}')", "OB005"}, entry{enqueue + "('r', '1', 'stripe/charge', 'b', '{}')", "OB005"}),
		},
		{"UPDATE outbox.tenant SET max_rate = 1", []entry{{insert + "('walled', '4', 'a/b', 'b', '{}', '{}', NULL), ('walled', '5', 'a/b', 'b', '{}', '{}', NULL)", "OB006"}}},
		{"UPDATE outbox.tenant SET max_rate = NULL, max_bytes = 1", []entry{{enqueue + "('walled', '4', 'stripe/charge', 'b', '{}')", "OB006"}}},
		{"INSERT INTO outbox.tenant (name, role) VALUES ('both', 'outbox_agent')", []entry{{"SELECT outbox.session_tenant()", "OB005"}}},
		{"DELETE FROM outbox.tenant", []entry{{enqueue + "('r', '4', 'stripe/charge', 'b', '{}')", ""}}},
	} {
		if drainertest.Exec(t, superuser, phase.prepare); attacks.Swap(0) > 0 {
			t.Errorf("%s: the agent's code ran as the superuser", phase.prepare)
		}
		for _, entry := range phase.entries {
			if _, err := agent.Exec(t.Context(), entry.statement); sqlState(err) != entry.wantState || (err != nil && entry.wantState == "") {
				t.Errorf("%s: got %v, want SQLSTATE %q", entry.statement, err, entry.wantState)
			}
			if attacks.Swap(0) > 0 {
				t.Errorf("%s: the agent's code ran as the schema's owner", entry.statement)
			}
		}
	}

	// A superuser and the daemon's login read with public on their path, as is usual.
	for _, role := range []string{"NONE", "outbox_drainer"} {
		reader := listenTo(t, database, nil, &attacks)
		drainertest.Exec(t, reader, "SET ROLE "+role)
		for _, entry := range drainertest.Column[string](t, owner, `
			SELECT format('SELECT * FROM %s', c.oid::regclass) FROM pg_class c
			WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'
			UNION ALL VALUES ('SELECT outbox.hold(ARRAY[1, 2]::bigint[])'), ('SELECT outbox.hold_alone(1)'),
			  ('SELECT * FROM outbox.prune(0, 100, 7776000)'),
			  ('INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES (''key_collision'', 1, ''r'') ON CONFLICT (kind, intent_id) DO UPDATE SET opened_at = now()'),
			  ('UPDATE outbox.incident SET resolved_at = now()'),
			  ('INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES (''key_collision'', 1, ''r'') ON CONFLICT (kind, intent_id) DO UPDATE SET opened_at = now()')`) {
			before := attacks.Load()
			if drainertest.Exec(t, reader, entry); attacks.Load() != before {
				t.Errorf("%s as %s: the agent's code ran as the reader", entry, role)
			}
		}
	}
}

// listenTo connects, as user if there is one, and counts the warnings of the attack.
func listenTo(t *testing.T, database string, user *url.Userinfo, attacks *atomic.Int64) *pgx.Conn {
	t.Helper()
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	if user != nil {
		address.User = user
	}
	config, err := pgx.ParseConfig(address.String())
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		if strings.HasPrefix(notice.Message, "the attack ran") {
			attacks.Add(1)
		}
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	return conn
}

// Any client can set outbox.enqueueing and outbox.proposed, and can leave them on a pooled connection.
func TestASettingOfTheClientHidesNoCollision(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	if _, err := enqueue(t, pool, charge(`{"cents": 1000}`)...); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"outbox.enqueueing = 'on'", "outbox.proposed = '-5'"} {
		tx := drainertest.Begin(t, pool)
		drainertest.Exec(t, tx, "SET LOCAL ROLE outbox_agent; SET LOCAL "+setting)
		if _, err := tx.Exec(t.Context(), plainInsert, charge(`{"cents": 1001}`)...); sqlState(err) != "OB001" {
			t.Errorf("with %s: got %v, want OB001", setting, err)
		}
		_ = tx.Rollback(t.Context())
	}

	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	drainertest.Exec(t, conn, "SET outbox.proposed = '-5'")
	tx := drainertest.Begin(t, pool)
	drainertest.Exec(t, tx, "SELECT FROM outbox.enqueue('twin', 's', 'stripe/charge', 'b', '{}')")
	inserted := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), plainInsert, "twin", "s", "stripe/charge", "b", `{"other": 1}`)
		inserted <- err
	}()
	drainertest.AwaitBlocked(t, pool)
	commit(t, tx)
	fault.Injected(t, 73, 1)
	if err := <-inserted; sqlState(err) != "40001" {
		t.Errorf("a twin that committed meanwhile, with outbox.proposed left by another client: got %v, want SQLSTATE 40001", err)
	}
}

// A value that another client left in outbox.wakes does not keep a notification from an idle lane.
func TestASettingOfTheClientSilencesNoWakeUp(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, "INSERT INTO outbox.provider (name, idle_until) VALUES ('stripe', 'infinity')")
	heard := drainertest.Listen(t, pool, "outbox")
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	drainertest.Exec(t, conn, "SET outbox.wakes = '{stripe}'")
	drainertest.Exec(t, conn, "SELECT FROM outbox.enqueue('r', 's', 'stripe/charge', 'b', '{}')")
	if got := heard(); len(got) != 1 || got[0] != "stripe" {
		t.Errorf("heard %q, want stripe once", got)
	}
}
