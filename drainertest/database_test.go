package drainertest_test

import (
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/migrations"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func TestEachTestHasAMigratedDatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	one, other := drainertest.Connect(t, drainertest.Database(t)), drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, one, "SELECT * FROM outbox.enqueue('run', 'step', 'tool', 'scope', '{}')")

	var intents int
	if err := other.QueryRow(t.Context(), "SELECT count(*) FROM outbox.intent").Scan(&intents); err != nil || intents != 0 {
		t.Errorf("the other database has %d intents (%v)", intents, err)
	}
	if err := migrations.Check(t.Context(), other); err != nil {
		t.Error(err)
	}
	var version string
	if err := one.QueryRow(t.Context(), "SHOW server_version").Scan(&version); err != nil {
		t.Fatal(err)
	}
	t.Logf("PostgreSQL %s", version)
}

func TestTheInvariantIsSeenToBreak(t *testing.T) {
	t.Parallel()
	const claim = `INSERT INTO outbox.claim (worker_id, provider, server, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
		VALUES (gen_random_uuid(), 'tool', 'tool', '{1}', '{1}', '{1}', '{NULL}', '{f}', '{f}', '{NULL}')`
	const settle = "INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 1, 'w', 'completed', 'completed')"
	for name, c := range map[string]struct {
		steps  []string
		broken bool
	}{
		"queued":                   {nil, false},
		"claimed":                  {[]string{"DELETE FROM outbox.queue", claim}, false},
		"settled, its claim there": {[]string{"DELETE FROM outbox.queue", claim, settle}, false},
		"lost":                     {[]string{"DELETE FROM outbox.queue"}, true},
		"queued and claimed":       {[]string{claim}, true},
		"queued and settled":       {[]string{settle}, true},
		"claimed twice":            {[]string{"DELETE FROM outbox.queue", claim, claim}, true},
		"queued from nowhere":      {[]string{"INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id) VALUES ('tool', now(), 99, 'run')"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := drainertest.Connect(t, drainertest.Database(t))
			drainertest.Exec(t, pool, "SELECT * FROM outbox.enqueue('run', 'step', 'tool', 'scope', '{}')")
			for _, step := range c.steps {
				drainertest.Exec(t, pool, step)
			}
			verdict := &recorder{TB: t}
			drainertest.AssertInvariant(verdict, pool)
			if verdict.failed != c.broken {
				t.Errorf("the invariant is called broken: %t, want %t", verdict.failed, c.broken)
			}
		})
	}
}

// recorder is a test whose failure is only recorded.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
