package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/migrations"
)

const forbidden = "42501"

func TestAnAgentMayOnlyEnqueueAndReadStatus(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	asRole(t, pool, "outbox_agent", map[string]string{
		"SELECT * FROM outbox.enqueue('r', '1', 'noop/x', 'b', '{}')":                                                                                    "",
		"INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', '2', 't', 'b', '{}') ON CONFLICT DO NOTHING": "",
		"SELECT status FROM outbox.status WHERE agent_run_id = 'r'":                                                                                      "",
		"SELECT outbox.idempotency_key('r', 's', 't', 'b')":                                                                                              "",

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
		"SELECT outbox.check_part('x', 'y')":                                                forbidden,
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
	})
}

func TestTheDrainerCannotChangeWhatWasCommittedOrRecorded(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	execute(t, pool, callEnqueue, "r", "s", "noop/x", "b", "{}")
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
		"INSERT INTO outbox.operation (operator, action, provider, reason) VALUES ('o', 'pause', 'p', 'r')": "",
		"UPDATE outbox.operation SET reason = 'another'":                                                    forbidden,
		"DELETE FROM outbox.operation":                                                                      forbidden,

		"UPDATE outbox.intent SET payload = '{}'":                forbidden,
		"DELETE FROM outbox.intent":                              forbidden,
		"TRUNCATE outbox.intent":                                 forbidden,
		"SELECT * FROM outbox.intent FOR UPDATE":                 forbidden,
		"UPDATE outbox.queue SET attempt = 0":                    forbidden,
		"UPDATE outbox.claim SET attempts = '{}'":                forbidden,
		"UPDATE outbox.attempt SET status = 'failed'":            forbidden,
		"DELETE FROM outbox.attempt":                             forbidden,
		"DELETE FROM outbox.duplicate":                           forbidden,
		"DELETE FROM outbox.saga":                                forbidden,
		"DELETE FROM outbox.incident":                            forbidden,
		"DELETE FROM outbox.page":                                forbidden,
		"DELETE FROM outbox.goose_db_version":                    forbidden,
		"SELECT * FROM outbox.enqueue('r', '9', 't', 'b', '{}')": forbidden,
		"CREATE TABLE outbox.mine (x int)":                       forbidden,
	})
}

func TestTheDrainerMayCheckTheSchema(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	execute(t, conn, "SET ROLE outbox_drainer")
	if err := migrations.Check(t.Context(), conn); err != nil {
		t.Error(err)
	}
}

// asRole tries each statement in a transaction that is rolled back.
func asRole(t *testing.T, pool *pgxpool.Pool, role string, statements map[string]string) {
	t.Helper()
	for statement, wantState := range statements {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		execute(t, tx, "SET LOCAL ROLE "+role)
		if _, err := tx.Exec(t.Context(), statement); sqlState(err) != wantState || (err != nil && wantState == "") {
			t.Errorf("%s: %s\n\tgot %v, want SQLSTATE %q", role, statement, err, wantState)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
