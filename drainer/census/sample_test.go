package census

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"

	"github.com/prometheus/client_golang/prometheus"
)

func TestWhatWaitsIsShownByProvider(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", "sim/act", 0, 5)
	o.enqueue("run", "canary/act", 0, 2)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE intent_id IN (SELECT id FROM outbox.intent WHERE step_id IN ('3', '4'))`)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() - interval '90 seconds' WHERE intent_id = (SELECT min(intent_id) FROM outbox.queue)`)
	p := o.process(sim, dispatch.Provider{Name: "idle"})
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

	p.Use([]dispatch.Provider{{Name: "canary"}})
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
		"1": "first_attempt_at = now() - interval '50 minutes', maybe_applied = true, lookup = true", // it will be looked up
		"2": "first_attempt_at = now() - interval '50 minutes'",                                      // it was not sent
		"3": "first_attempt_at = now() - interval '30 minutes', maybe_applied = true",                // its key's life does not end soon
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
	o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told, newest) VALUES
		(1, 1, 'pager', 'open', now() - interval '900 seconds'), (2, 1, 'pager', NULL, now())`)
	p := o.process(sim)
	p.count()
	p.assertShows(map[string]float64{
		"sagas begun": 2, "sagas compensation_failed": 1,
		"incidents_open outcome_unknown": 2, "incidents_open key_collision": 0, "incidents_open compensation_failed": 0,
		"incidents_oldest_open_age_seconds key_collision": 0,
	})
	p.assertAge("sagas_oldest_begun_age_seconds", 100)
	p.assertAge("incidents_oldest_open_age_seconds outcome_unknown", 1000)
	p.assertAge("incidents_oldest_unpaged_age_seconds", 500)
}

// The census groups incidents as the pages do. A page is about a whole group, not only about the incident that it names.
func TestAnIncidentWasToldOfWithItsGroup(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]string{ // the incident that the page names, and another one of its group
		"of pruned intents":                   `('compensation_failed', 98, 'steps_forgotten'), ('compensation_failed', 99, 'late_effect')`,
		"of a gate that another comes before": `('forbidden', 0, 'mail/send, sim/refund'), ('forbidden', 1, 'sim/act')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.enqueue("run", "sim/act", 0, 1)
			o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail, opened_at)
				SELECT kind, intent_id, 'run', detail, now() - interval '1000 seconds' FROM (VALUES ` + told + `) AS v (kind, intent_id, detail)`)
			o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told, newest) VALUES (1, 1, 'pager', 'open', now())`)
			p := o.process(sim)
			p.count()
			p.assertShows(map[string]float64{"incidents_oldest_unpaged_age_seconds": 0})
		})
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

	tx := drainertest.Begin(t, o.db)
	drainertest.Exec(t, tx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.queue`)
	o.enqueue("run", "sim/act", 0, 1)
	o.enqueue("run", "sim/act", 1, 2)
	p.count()
	if behind := p.shown()["postgres_oldest_xmin_age_transactions transaction"]; behind < 2 {
		t.Errorf("%v transactions have begun since, want 2 at least", behind)
	}
	pinned := p.pins["transaction"] // the database does not show when another role's transaction began
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
	o.enqueue("run", "canary/act", 0, 3)
	o.exec(`WITH taken AS (DELETE FROM outbox.queue WHERE provider = 'canary' AND intent_id = (SELECT max(intent_id) FROM outbox.queue) RETURNING intent_id)
		INSERT INTO outbox.claim (worker_id, provider, server, claimed_at, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
		SELECT gen_random_uuid(), 'canary', 'canary', now() - interval '1 hour', ARRAY[intent_id], '{1}', '{1}', '{now}', '{f}', '{f}', '{NULL}' FROM taken`)
	for range 3 {
		p.count()
	}
	if said := p.said.String(); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "rows=3") || strings.Contains(said, "canary") {
		t.Errorf("it says %s", said)
	}
	p.reminded = time.Now().Add(-reminderInterval)
	p.count()
	if strings.Count(p.said.String(), "level=WARN") != 2 {
		t.Errorf("a minute later it says %s", p.said)
	}
}

// repeat records repeated enqueues of intent 1. They are old enough for every session to see their commit.
func (o *outbox) repeat(times int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.duplicate (intent_id, seen_at) SELECT 1, now() - interval '6 seconds' FROM generate_series(1, $1)`, times)
}

func (o *outbox) collide() {
	o.t.Helper()
	if _, err := o.db.Exec(o.t.Context(), `SELECT outbox.enqueue('run', '0', 'sim/act', 'scope', '{"another": 1}')`); err == nil {
		o.t.Fatal("a collision was not refused")
	}
}

func newCounted(t *testing.T) *outbox {
	t.Helper()
	o := newOutbox(t)
	o.exec(`UPDATE outbox.census SET counted_until = now() - interval '1 minute'`)
	o.enqueue("run", "sim/act", 0, 1)
	return o
}

func TestCountersAreThereAtZeroOnEveryProcess(t *testing.T) {
	t.Parallel()
	newOutbox(t).process(sim).assertShows(map[string]float64{
		"duplicates_total sim": 0, "duplicates_total unconfigured": 0,
		"idempotency_key_collisions_total sim": 0, "idempotency_key_collisions_total unconfigured": 0,
	})
}

// Operators compare the enqueued intents with the settled ones. So each enqueue counts once, in any sample. An enqueue
// from before the first sample does not count.
func TestEnqueuesAreCountedOnceAndNoLaterThanTheSampleAfter(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	first, second := o.process(sim), o.process(sim)
	first.shown()
	second.shown()
	first.count()
	o.enqueue("run", "sim/act", 1, 4)
	o.enqueue("run", "strange/act", 0, 2)
	open := drainertest.Begin(t, o.db)
	drainertest.Exec(t, open, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('slow', '1', 'sim/act', 'scope', '{}')`)
	o.enqueue("run", "sim/act", 4, 5)
	first.count()
	first.assertShows(map[string]float64{"enqueued_total sim": 0, "enqueued_total unconfigured": 0})
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.expire()
	second.count()
	o.enqueue("run", "sim/act", 5, 6)
	second.count()
	second.count()
	first.assertShows(map[string]float64{"enqueued_total sim": 0})
	second.assertShows(map[string]float64{"enqueued_total sim": 6, "enqueued_total unconfigured": 2})
}

// A sample reads only a few of the new intents, however many there are.
func TestManyEnqueuesAreEstimated(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	p := o.process(sim)
	p.shown()
	p.count()
	const of = 4 * enqueueLimit
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'many', n::text, CASE WHEN n % 4 = 0 THEN 'strange/act' ELSE 'sim/act' END, 'scope', '{}' FROM generate_series(1, $1::int) n`, of)
	p.count()
	p.count()
	shown := p.shown()
	known, strange := shown["enqueued_total sim"], shown["enqueued_total unconfigured"]
	if known+strange != of || known < 0.70*of || known > 0.80*of {
		t.Errorf("of %d, three quarters for sim, it counts %v and %v", of, known, strange)
	}
}

func TestNothingIsCountedBeforeSomebodyHasReadTheZero(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	o.repeat(3)
	o.collide()
	p := o.process(sim)
	p.count()
	p.assertShows(map[string]float64{"duplicates_total sim": 0, "idempotency_key_collisions_total sim": 0})
	p.count()
	p.assertShows(map[string]float64{"duplicates_total sim": 3, "idempotency_key_collisions_total sim": 1})
}

func TestASuccessorCountsOnFromWhereTheLeaderWas(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	first, second := o.process(sim), o.process(sim)
	first.shown()
	second.shown()
	o.repeat(3)
	o.collide()
	first.count()
	o.expire()
	second.count()
	o.exec(`UPDATE outbox.census SET counted_until = counted_until - interval '1 second'`) // as if it were a second later
	o.exec(`DELETE FROM outbox.duplicate`)
	o.exec(`INSERT INTO outbox.duplicate (intent_id, seen_at) SELECT 1, counted_until + interval '1 millisecond' FROM outbox.census`)
	o.collide()
	second.count()
	first.assertShows(map[string]float64{"duplicates_total sim": 3, "idempotency_key_collisions_total sim": 1})
	second.assertShows(map[string]float64{"duplicates_total sim": 1, "idempotency_key_collisions_total sim": 1})
}

func TestALeaderThatWasReplacedMeanwhileCountsNothing(t *testing.T) {
	t.Parallel()
	o := newCounted(t)
	slow, heir := o.process(sim), o.process(sim)
	slow.shown()
	heir.shown()
	o.repeat(2)
	window, leads, err := slow.store.lead(t.Context())
	if err != nil || !leads {
		t.Fatal(leads, err)
	}
	o.expire()
	heir.count()
	if err := slow.sample(t.Context(), window); err == nil {
		t.Error("it counts what another one has counted")
	}
	slow.assertShows(map[string]float64{"duplicates_total sim": 0})
	heir.assertShows(map[string]float64{"duplicates_total sim": 2})
}

func TestOneProcessShowsWhatTheTablesHold(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	first, second := o.process(sim), o.process(sim)
	for range 2 {
		first.count()
		second.count()
	}
	first.assertShows(map[string]float64{"census_leader": 1, "outbox_due_rows sim": 0})
	second.assertShows(map[string]float64{"census_leader": 0})
	if !first.counts() || second.counts() {
		t.Error("the wrong one shows what it counted")
	}
}

func TestADeadLeaderIsReplacedWhenItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead, heir := o.process(sim), o.process(sim)
	dead.count()
	heir.count()
	o.expire()
	heir.count()
	dead.count() // it was only suspended
	if dead.counts() || !heir.counts() {
		t.Error("the heir does not count alone")
	}
}

func TestALeaderThatStopsHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	first, second := o.process(sim), o.process(sim)
	stop := first.run()
	drainertest.Eventually(t, "the first one counts", first.counts)
	stop()
	second.count()
	if first.counts() || !second.counts() {
		t.Error("the second one does not count alone")
	}
}

func TestALeaderThatIsKilledIsReplacedWithinSeconds(t *testing.T) {
	t.Parallel()
	for tries := 1; ; tries++ { // a machine that is busy may take longer
		o := newOutbox(t)
		killed, heir := o.process(sim), o.process(sim)
		killed.count() // it leads, and then never counts again
		started := time.Now()
		stop := heir.run()
		drainertest.Eventually(t, "the heir counts", heir.counts)
		took := time.Since(started)
		if stop(); took <= lease+2*renewInterval {
			return
		}
		if tries == 5 {
			t.Fatalf("it took %v, want about %v", took, lease)
		}
	}
}

func TestAnOldSampleIsNotShown(t *testing.T) {
	t.Parallel()
	p := newOutbox(t).process(sim)
	p.count()
	p.board.shownAt = time.Now().Add(-boardLife - time.Second)
	if p.counts() {
		t.Error("it is shown")
	}
}

// plan is a node of EXPLAIN's output.
type plan struct {
	Node      string  `json:"Node Type"`
	Relation  string  `json:"Relation Name"`
	Rows      float64 `json:"Actual Rows"`
	Filtered  float64 `json:"Rows Removed by Filter"`
	Rechecked float64 `json:"Rows Removed by Index Recheck"`
	Loops     float64 `json:"Actual Loops"`
	Plans     []plan
}

// visit calls add with the rows that each node reads of its table.
func (p plan) visit(add func(node, table string, rows float64)) {
	if p.Relation != "" {
		add(p.Node, p.Relation, (p.Rows+p.Filtered+p.Rechecked)*p.Loops)
	}
	for _, below := range p.Plans {
		below.visit(add)
	}
}

// whole has the tables that a statement may read whole. The configuration bounds them, or they are sequences of one row.
var whole = map[string]bool{"claim": true, "tool": true, "collisions": true, "last_collision": true}

func TestNoStatementReadsATableWhole(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	const rows = 3 * countLimit
	o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
	o.enqueue("run", "sim/act", 0, rows)
	o.exec(`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, first_attempt_at, maybe_applied)
		SELECT 'sim', now() + CASE WHEN id % 2 = 0 THEN -1 ELSE 1 END * interval '1 hour', id, agent_run_id, now() - interval '1 day', id % 2 = 0 FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at)
		SELECT id, 1, 'w', 'ambiguous', 'pending', now() FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.duplicate (intent_id, seen_at) SELECT id, now() - interval '1 day' FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) SELECT 'outcome_unknown', id, 'run' FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.saga (agent_run_id) SELECT id::text FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told) SELECT id, 1, 'pager', 'open' FROM outbox.incident`)
	for _, statistics := range []string{"", "VACUUM ANALYZE"} { // a plan must not depend on them
		if statistics != "" {
			o.exec(statistics)
		}
		for table, read := range o.reads() {
			if limit := 2.5 * countLimit; read > limit && !whole[table] {
				t.Errorf("%q: a sample reads %.0f rows of %s, want at most %.0f of %d", statistics, read, table, limit, rows)
			}
		}
	}
}

// reads explains every statement of a sample, and sums the rows that it looks
// at by their table.
func (o *outbox) reads() map[string]float64 {
	o.t.Helper()
	read := map[string]float64{}
	err := pgx.BeginFunc(o.t.Context(), o.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.t.Context(), planningSQL); err != nil {
			return err
		}
		batch, sample := &pgx.Batch{}, &Sample{}
		sample.queue(batch, configurationOf([]dispatch.Provider{sim}))
		sample.queueOnce(batch, window{since: time.Now().Add(-10 * time.Second), until: time.Now()})
		for _, query := range batch.QueuedQueries {
			var explained []byte
			explain := append([]any{pgx.QueryExecModeExec}, query.Arguments...)
			if err := tx.QueryRow(o.t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) `+query.SQL, explain...).Scan(&explained); err != nil {
				return fmt.Errorf("%w in %s", err, query.SQL)
			}
			var plans []struct{ Plan plan }
			if err := json.Unmarshal(explained, &plans); err != nil {
				return err
			}
			plans[0].Plan.visit(func(node, table string, rows float64) {
				read[table] += rows
				if node == "Seq Scan" && !whole[table] {
					o.t.Errorf("%s is scanned whole by\n%s", table, query.SQL)
				}
			})
		}
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return read
}

func TestACensusThatFailsSaysSoAndItsGaugesEnd(t *testing.T) {
	t.Parallel()
	for fails, breaks := range map[string]string{
		"lead the census": `ALTER TABLE outbox.census RENAME TO away`,
		"outbox.queue":    `ALTER TABLE outbox.queue RENAME TO away`,
	} {
		o := newOutbox(t)
		p := o.process(sim)
		p.count()
		o.exec(breaks)
		p.sampled = time.Time{}
		p.round(t.Context())
		if said := p.said.String(); !strings.Contains(said, "cannot count what the tables hold") || !strings.Contains(said, fails) {
			t.Errorf("%s: it says %q", fails, said)
		}
		p.board.shownAt = p.board.shownAt.Add(-boardLife) // time passes
		if p.counts() {
			t.Errorf("%s: it still shows what it counted", fails)
		}
	}
}

func TestALeaderThatCannotResignSaysWhoTakesOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	p := o.process(sim)
	p.count()
	o.exec(`ALTER TABLE outbox.census RENAME TO away`)
	p.resign(context.WithoutCancel(t.Context()))
	if said := p.said.String(); !strings.Contains(said, "another process takes it when the lease is over") || p.counts() {
		t.Errorf("it says %q, and shows what it counted: %v", said, p.counts())
	}
}

func TestAnUnusableURLIsRefusedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	if _, err := OpenPool(t.Context(), pgpool.At("postgres://ann:canary@h:no-port/db")); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("it says %v", err)
	}
}

// Agents may leave out the slash where the provider and its operation have the same name.
func TestAToolOfItsProvidersNameIsLookedForUnderBothNames(t *testing.T) {
	t.Parallel()
	windows := map[string]time.Duration{"sim/sim": time.Hour}
	tools, seconds := (&configuration{windows: windows}).nearEnds()
	if len(tools) != 2 || tools[0] != "sim/sim" || tools[1] != "sim" || seconds[0] != seconds[1] {
		t.Errorf("%v with %v", tools, seconds)
	}
}

func TestWhatWaitsForAShutOperationCountsForItsProvider(t *testing.T) {
	t.Parallel()
	configured := configurationOf([]dispatch.Provider{{Name: "sim", Tools: map[string]dispatch.Policy{"act": {}}}})
	for lane, want := range map[string]string{"sim": "sim", "sim/act": "sim", "sim/typo": unconfigured, "other": unconfigured} {
		if got := configured.label(lane); got != want {
			t.Errorf("%s counts under %s, want %s", lane, got, want)
		}
	}

	o := newOutbox(t)
	o.enqueue("run", "sim/act", 0, 3)
	o.exec(`UPDATE outbox.queue SET provider = 'sim/act', next_attempt_at = now() - interval '1 hour' WHERE intent_id > (SELECT min(intent_id) FROM outbox.queue)`)
	o.exec(`INSERT INTO outbox.tool (name, state) VALUES ('sim/act', 'open') ON CONFLICT (name) DO UPDATE SET state = 'open'`)
	p := o.process(dispatch.Provider{Name: "sim", Tools: map[string]dispatch.Policy{"act": {}}})
	p.count()
	p.assertShows(map[string]float64{"outbox_rows sim pending": 3, "outbox_due_rows sim": 1, "outbox_rows unconfigured pending": 0})
	p.assertAge("outbox_oldest_due_age_seconds sim", 0)
}

// KEDA counts, with the query in the Helm chart, the rows that more daemons could send.
func TestKEDACountsWhatALivingDaemonServes(t *testing.T) {
	t.Parallel()
	template, err := os.ReadFile("../../deploy/helm/drainer/templates/_triggers.tpl")
	if err != nil {
		t.Fatal(err)
	}
	query := regexp.MustCompile(`"(SELECT [^"]*)"`).FindSubmatch(template)
	if query == nil {
		t.Fatal("the chart's query is not where it was")
	}
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.provider (name, paused) VALUES ('sim', false), ('gone', false), ('held', true) ON CONFLICT (name) DO NOTHING`)
	o.exec(`INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{sim, held}')`)
	for n, tool := range []string{"sim/act", "gone/act", "held/act"} {
		o.enqueue(fmt.Sprint(n), tool, 0, 3)
	}
	if got := drainertest.Value[int](t, o.db, fmt.Sprintf(string(query[1]), 1000, 1000)); got != 3 {
		t.Errorf("it counts %d rows, want the 3 of the provider that is served and not paused", got)
	}
}

// The console shows the last hour from outbox.minute. Each process adds the attempts since its last write, and the
// leader adds the greatest age that it saw. Rows older than an hour are deleted.
func TestDaemonsAddTheirAttemptsToTheMinute(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", "sim/act", 0, 1)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() - interval '90 seconds'`)
	o.exec(`INSERT INTO outbox.minute (at, provider) VALUES (now() - interval '2 hours', 'gone')`)
	leads, follows := o.process(sim), o.process(sim)
	for i, p := range []*process{leads, follows} {
		attempts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "attempts"}, []string{"provider", "operation", "outcome"})
		took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "took", Buckets: []float64{0.001, 0.002}}, []string{"provider"})
		counters := prometheus.NewRegistry()
		counters.MustRegister(attempts, took)
		p.Count(counters)
		p.count()
		for range 2 { // the first time there are no attempts yet
			if err := p.write(t.Context()); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				attempts.WithLabelValues("sim", "act", "completed").Add(3)
				attempts.WithLabelValues("sim", "act", "released").Add(7)
			}
			attempts.WithLabelValues("sim", "act", "lost").Inc()
			attempts.WithLabelValues(unconfigured, unconfigured, "lost").Inc()
			took.WithLabelValues("sim").Observe(0.0015)
		}
		p.minutes.written = time.Time{}
		p.round(t.Context())
	}
	var got string
	err := o.db.QueryRow(t.Context(), `SELECT string_agg(provider || ' ' || done || ' ' || doubt || ' ' || took || ' ' || (age BETWEEN 90 AND 200), ';')
		FROM (SELECT provider, sum(completed) AS done, sum(in_doubt) AS doubt, max(oldest) AS age,
			(SELECT array_agg(n ORDER BY i)::text FROM (SELECT i, sum(n) AS n FROM outbox.minute x, unnest(x.took) WITH ORDINALITY AS u (n, i) GROUP BY i) b) AS took
			FROM outbox.minute GROUP BY provider) m`).Scan(&got)
	if err != nil || got != "sim 6 4 {0,4,0} true" {
		t.Errorf("got %q, %v", got, err)
	}
}
