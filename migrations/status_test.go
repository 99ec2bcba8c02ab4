package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
)

// Each case leads an intent, $1, to where the view should find it.
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
	pool := newDatabase(t)
	for want, steps := range cases {
		intent, err := enqueue(t, pool, "run", want, "noop/x", "scope", "{}")
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			execute(t, pool, step, intent.IntentID)
		}
		assertStatus(t, pool, intent.IntentID, want)
	}
	drainertest.AssertInvariant(t, pool)
}

func TestARetriedIntentIsPendingWithItsLastOutcome(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	intent, err := enqueue(t, pool, "run", "step", "noop/x", "scope", "{}")
	if err != nil {
		t.Fatal(err)
	}
	// Given back unsent first, which is no attempt; then sent.
	execute(t, pool, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, next_attempt_at, http_status, error)
		VALUES ($1, 1, 'w', null, 'released', 'pending', now(), null, null),
		       ($1, 2, 'w', now(), 'throttled', 'pending', now() + interval '1 minute', 429, 'too many')`, intent.IntentID)
	execute(t, pool, "DELETE FROM outbox.queue")
	execute(t, pool, "INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries) SELECT 'noop', next_attempt_at, intent_id, 'run', 2, 1 FROM outbox.attempt WHERE attempt = 2")

	assertStatus(t, pool, intent.IntentID, "pending")
	if n := count(t, pool, `SELECT count(*) FROM outbox.status WHERE attempts = 1 AND last_outcome = 'throttled'
		AND last_error = 'too many' AND http_status = 429 AND next_attempt_at > now() AND finished_at IS NULL`); n != 1 {
		t.Error("the view does not tell of the attempt")
	}
}

func TestAnUnknownIntentStaysUnknownWhileItsLookupWaits(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	intent, err := enqueue(t, pool, "run", "step", "noop/x", "scope", "{}")
	if err != nil {
		t.Fatal(err)
	}
	execute(t, pool, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at)
		VALUES ($1, 1, 'w', 'ambiguous', 'unknown', now())`, intent.IntentID)
	assertStatus(t, pool, intent.IntentID, "unknown")
	drainertest.AssertInvariant(t, pool)
}

func TestAnAttemptCannotSettleAsPending(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
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
