package census

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestWhatWaitsIsShownByProvider(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", "sim/act", 0, 5)
	o.enqueue("run", "canary/act", 0, 2)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE intent_id IN (SELECT id FROM outbox.intent WHERE step_id IN ('3', '4'))`)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() - interval '90 seconds' WHERE intent_id = (SELECT min(intent_id) FROM outbox.queue)`)
	p := o.process(sim, Provider{Name: "idle"})
	p.count()
	p.assertShows(map[string]float64{
		"outbox_rows sim pending": 5, "outbox_due_rows sim": 3,
		"outbox_rows unconfigured pending": 2, "outbox_due_rows unconfigured": 2,
		"outbox_rows idle pending": 0, "outbox_rows idle in_progress": 0, "outbox_due_rows idle": 0,
		"outbox_oldest_due_age_seconds idle": 0, "outbox_key_ttl_near_rows idle": 0, "outbox_long_in_progress_rows idle": 0,
	})
	p.assertAge("outbox_oldest_due_age_seconds sim", 90)
	for series := range p.shown() {
		if strings.Contains(series, "canary") {
			t.Errorf("a row made the series %s", series)
		}
	}

	p.Use([]Provider{{Name: "canary"}})
	p.assertShows(map[string]float64{"outbox_rows canary pending": 2, "outbox_rows unconfigured pending": 5})
}

func TestWhatIsInProgressForTooLongIsCountedRowByRow(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", "sim/act", 0, 4)
	for _, claim := range []struct{ steps, ago string }{{"{0,1,2}", "150 seconds"}, {"{3}", "10 seconds"}} {
		o.exec(`WITH taken AS (
				DELETE FROM outbox.queue WHERE intent_id IN (SELECT id FROM outbox.intent WHERE step_id = ANY ($1::text::text[])) RETURNING intent_id)
			INSERT INTO outbox.claim (worker_id, provider, server, claimed_at, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
			SELECT gen_random_uuid(), 'sim', 'sim', now() - $2::text::interval, array_agg(intent_id), array_agg(1), array_agg(1),
				array_agg(NULL::timestamptz), array_agg(false), array_agg(false), array_agg(NULL::text) FROM taken`, claim.steps, claim.ago)
	}
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) SELECT id, 1, 'w', 'completed', 'completed' FROM outbox.intent WHERE step_id = '0'`)
	p := o.process(sim)
	p.count()
	p.assertShows(map[string]float64{"outbox_long_in_progress_rows sim": 2, "outbox_rows sim in_progress": 4})
	p.assertAge("outbox_oldest_in_progress_age_seconds sim", 150)
}

func TestRowsInDoubtAreShownBeforeTheirRetriesEnd(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", "sim/act", 0, 5)
	o.enqueue("run", "sim/endless", 0, 1)
	for step, change := range map[string]string{
		"0": "first_attempt_at = now() - interval '50 minutes', maybe_applied = true",
		"1": "first_attempt_at = now() - interval '50 minutes', maybe_applied = true, lookup = true", // it only asks
		"2": "first_attempt_at = now() - interval '50 minutes'",                                      // it was not sent
		"3": "first_attempt_at = now() - interval '30 minutes', maybe_applied = true",                // it has time
	} {
		o.exec(`UPDATE outbox.queue SET `+change+` WHERE intent_id = (SELECT id FROM outbox.intent WHERE step_id = $1 AND tool_name = 'sim/act')`, step)
	}
	o.exec(`UPDATE outbox.queue SET first_attempt_at = now() - interval '50 days', maybe_applied = true WHERE intent_id = (SELECT id FROM outbox.intent WHERE tool_name = 'sim/endless')`)
	p := o.process(sim)
	p.count()
	p.assertShows(map[string]float64{"outbox_key_ttl_near_rows sim": 1})
}

func TestSagasAndIncidentsThatWaitAreCounted(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, state, begun_at) VALUES
		('a', 'begun', now() - interval '100 seconds'), ('b', 'begun', now()), ('c', 'compensation_failed', now()), ('d', 'compensated', now())`)
	o.enqueue("run", "sim/act", 0, 5)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at, acknowledged_at, resolved_at) VALUES
		('outcome_unknown', 1, 'run', now() - interval '1000 seconds', NULL, NULL),
		('outcome_unknown', 2, 'run', now() - interval '500 seconds', NULL, NULL),
		('outcome_unknown', 3, 'run', now() - interval '1 day', now(), NULL),
		('key_collision', 4, 'run', now() - interval '1 day', NULL, now())`)
	o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told) VALUES (1, 1, 'pager', 'open'), (2, 1, 'pager', NULL)`)
	p := o.process(sim)
	p.count()
	p.assertShows(map[string]float64{
		"sagas begun": 2, "sagas compensation_failed": 1,
		"incidents_open outcome_unknown": 2, "incidents_open key_collision": 0, "incidents_open compensation_failed": 0,
		"incidents_oldest_open_age_seconds key_collision": 0,
	})
	p.assertAge("sagas_oldest_begun_age_seconds", 100)
	p.assertAge("incidents_oldest_open_age_seconds outcome_unknown", 1000)
	p.assertAge("incidents_oldest_untold_age_seconds", 500)
}

func TestEveryKindOfIncidentIsCounted(t *testing.T) {
	t.Parallel()
	var all []string
	for _, kind := range pages.Kinds() {
		all = append(all, string(kind))
	}
	if !slices.Equal(all, kinds) {
		t.Errorf("counted are %v, and there are %v", kinds, all)
	}
}

func TestDeadRowsAndSizesAreThoseOfTheDatabasesStatistics(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", "sim/act", 0, 50)
	o.settle()
	p := o.process(sim)
	drainertest.Eventually(t, "dead rows of the queue", func() bool {
		p.count()
		return p.shown()["postgres_dead_tuples queue"] == 50
	})
	for _, table := range tables {
		if _, shown := p.shown()["postgres_dead_tuples "+table]; !shown || p.shown()["postgres_table_bytes "+table] == 0 {
			t.Errorf("of %s it shows nothing", table)
		}
	}
}

func TestWhoeverPinsDeadRowsIsShownByItsKind(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	p := o.process(sim)
	p.count()
	for _, holder := range holders {
		p.assertShows(map[string]float64{"postgres_oldest_xmin_age_seconds " + holder: 0, "postgres_oldest_xmin_age_transactions " + holder: 0})
	}

	tx, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.queue`); err != nil {
		t.Fatal(err)
	}
	o.enqueue("run", "sim/act", 0, 1)
	o.enqueue("run", "sim/act", 1, 2)
	p.count()
	if behind := p.shown()["postgres_oldest_xmin_age_transactions transaction"]; behind < 2 {
		t.Errorf("%v transactions have begun since, want 2 at least", behind)
	}
	pinned := p.pins["transaction"] // another role's session: the database does not tell since when
	pinned.since = time.Now().Add(-20 * time.Minute)
	p.pins["transaction"] = pinned
	p.count()
	p.assertAge("postgres_oldest_xmin_age_seconds transaction", 20*60)

	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.count()
	p.assertShows(map[string]float64{"postgres_oldest_xmin_age_seconds transaction": 0})
}

func TestRowsOfAProviderThatIsNotConfiguredAreWarnedOfOnceAMinute(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	p := o.process(sim)
	o.enqueue("run", "sim/act", 0, 1)
	p.count()
	if p.said.Len() > 0 {
		t.Errorf("it warns of a provider that is configured: %s", p.said)
	}
	o.enqueue("run", "canary/act", 0, 2)
	for range 3 {
		p.count()
	}
	if said := p.said.String(); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "rows=2") || strings.Contains(said, "canary") {
		t.Errorf("it says %s", said)
	}
	p.reminded = time.Now().Add(-reminderInterval)
	p.count()
	if strings.Count(p.said.String(), "level=WARN") != 2 {
		t.Errorf("a minute later it says %s", p.said)
	}
}
