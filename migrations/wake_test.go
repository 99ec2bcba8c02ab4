package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestOnlyAnIdleProviderIsNotified(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	drainertest.Exec(t, pool, "INSERT INTO outbox.provider (name, idle_until) VALUES ('busy', '-infinity')")
	notified := drainertest.Listen(t, pool, "outbox")
	for _, tool := range []string{"unknown/x", "busy/x", "idle/x"} {
		drainertest.Exec(t, pool, callEnqueue, "r", "s", tool, "b", "{}")
	}
	if got := notified(); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("notified %q, want the idle provider alone", got)
	}
}

func TestALaneHearsOnlyOfWhatIsDue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		notBefore string
		want      []string
	}{
		"later": {"now() + interval '1 hour'", nil},
		"now, in a transaction that began before": {"clock_timestamp()", []string{"idle"}},
		"long ago": {"'-infinity'", []string{"idle"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := withIdleLanes(t)
			notified := drainertest.Listen(t, pool, "outbox")
			drainertest.Exec(t, pool, "SELECT outbox.enqueue($1, $2, $3, $4, $5, "+test.notBefore+")", "r", "s", "idle/x", "b", "{}")
			if got := notified(); !slices.Equal(got, test.want) {
				t.Errorf("notified %q, want %q", got, test.want)
			}
		})
	}
}

func TestATransactionWakesEachLaneOnce(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified := drainertest.Listen(t, pool, "outbox")
	tx := drainertest.Begin(t, pool)
	for step, tool := range []string{"idle/x", "other/x", "idle/y", "idle/x"} {
		drainertest.Exec(t, tx, callEnqueue, "r", fmt.Sprint(step), tool, "b", "{}")
	}
	const added = "SELECT n_tup_ins FROM pg_stat_xact_user_tables WHERE relid = 'outbox.wake_up'::regclass"
	if got := drainertest.Value[int](t, tx, added); got != 2 {
		t.Errorf("%d checks wait for the commit, want one for each lane", got)
	}
	commit(t, tx)
	if got := notified(); !slices.Equal(got, []string{"idle", "other"}) {
		t.Errorf("notified %q, want both lanes", got)
	}
}

func TestWhatIsRolledBackKeepsNothingFromWakingTheLane(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified := drainertest.Listen(t, pool, "outbox")
	tx := drainertest.Begin(t, pool)
	drainertest.Exec(t, tx, "SAVEPOINT before")
	drainertest.Exec(t, tx, callEnqueue, "r", "s1", "idle/x", "b", "{}")
	drainertest.Exec(t, tx, "ROLLBACK TO before")
	drainertest.Exec(t, tx, callEnqueue, "r", "s2", "idle/x", "b", "{}")
	commit(t, tx)
	if got := notified(); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("notified %q, want the lane to hear of what is left", got)
	}
}

// slowDisk delays the commit of each transaction that inserts into the table commits.
type slowDisk struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func newSlowDisk(t *testing.T, pool *pgxpool.Pool) slowDisk {
	t.Helper()
	drainertest.Exec(t, pool, `
		CREATE TABLE disk (); CREATE TABLE commits ();
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN LOCK disk; RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON commits DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	return slowDisk{t, pool}
}

// enqueue returns while its commit is in progress. letGo lets the commit end.
func (d slowDisk) enqueue(step, tool string) (letGo func()) {
	d.t.Helper()
	disk, tx := drainertest.Begin(d.t, d.pool), drainertest.Begin(d.t, d.pool)
	drainertest.Exec(d.t, disk, "LOCK disk")
	drainertest.Exec(d.t, tx, callEnqueue, "r", step, tool, "b", "{}")
	drainertest.Exec(d.t, tx, "INSERT INTO commits DEFAULT VALUES")
	committed := make(chan error)
	go func() { committed <- tx.Commit(d.t.Context()) }()
	drainertest.AwaitBlocked(d.t, d.pool)
	return func() {
		d.t.Helper()
		commit(d.t, disk)
		if err := <-committed; err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestOfProducersThatCommitAtOnceOneNotifies(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified, disk := drainertest.Listen(t, pool, "outbox"), newSlowDisk(t, pool)
	moment := func() int64 {
		return drainertest.Value[int64](t, pool, "SELECT floor(20 * extract(epoch FROM clock_timestamp()))::bigint")
	}
	step := 0
	drainertest.Eventually(t, "two commit within the same 50 ms", func() bool {
		step++
		began := moment()
		letGo := disk.enqueue(fmt.Sprint("first", step), "idle/x")
		drainertest.Exec(t, pool, callEnqueue, "r", fmt.Sprint("second", step), "idle/x", "b", "{}")
		atOnce := moment() == began
		drainertest.Exec(t, pool, callEnqueue, "r", fmt.Sprint("third", step), "other/x", "b", "{}")
		if got := notified(); atOnce && !slices.Equal(got, []string{"other"}) {
			t.Errorf("notified %q beside a commit that is to notify the idle lane, want the other one alone", got)
		}
		letGo()
		if got := notified(); !slices.Equal(got, []string{"idle"}) {
			t.Errorf("notified %q, want the idle lane", got)
		}
		return atOnce
	})
}

func TestACommitThatTakesLongSilencesNobodyForLong(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified, disk := drainertest.Listen(t, pool, "outbox"), newSlowDisk(t, pool)
	letGo := disk.enqueue("first", "idle/x")
	step := 0
	drainertest.Eventually(t, "the lane hears of those who commit meanwhile", func() bool {
		step++
		drainertest.Exec(t, pool, callEnqueue, "r", fmt.Sprint(step), "idle/x", "b", "{}")
		return slices.Equal(notified(), []string{"idle"})
	})
	letGo()
}

func TestATransactionThatStaysOpenSilencesNobody(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified := drainertest.Listen(t, pool, "outbox")
	open := drainertest.Begin(t, pool)
	drainertest.Exec(t, open, callEnqueue, "r", "s1", "idle/x", "b", "{}")
	drainertest.Exec(t, pool, callEnqueue, "r", "s2", "idle/x", "b", "{}")
	if got := notified(); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("notified %q, want the lane to hear of what was committed", got)
	}
}

func TestWakingALaneLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	drainertest.Exec(t, pool, callEnqueue, "r", "s", "idle/x", "b", "{}")
	if left := drainertest.Value[int](t, pool, "SELECT count(*) FROM outbox.wake_up"); left != 0 {
		t.Errorf("%d rows are left", left)
	}
}

// outbox.enqueue forbids sequential scans. Without the index, its session would compile this query (JIT) each time,
// which takes longer than all the rest.
func TestWhetherALaneWaitsIsReadFromAnIndex(t *testing.T) {
	t.Parallel()
	tx := drainertest.Begin(t, withIdleLanes(t))
	drainertest.Exec(t, tx, "SET LOCAL enable_seqscan = off")
	plan := strings.Join(drainertest.Column[string](t, tx, "EXPLAIN SELECT FROM outbox.provider WHERE idle_until > now()"), "\n")
	if !strings.Contains(plan, "provider_idle_until") || strings.Contains(plan, "JIT") {
		t.Error(plan)
	}
}

func withIdleLanes(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, "INSERT INTO outbox.provider (name, idle_until) SELECT unnest('{idle,other}'::text[]), now() + interval '1 hour'")
	return pool
}

// The test replaces a function of pg_catalog in its own database only, because filling the queue takes 4 GB.
func TestAgentsCommitThoughTheQueueOfNotificationsIsFull(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	drainertest.Exec(t, pool, `SET allow_system_table_mods = on;
		ALTER FUNCTION pg_catalog.pg_notification_queue_usage() RENAME TO real_usage;
		CREATE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT 0.5::float8'`)
	notified := drainertest.Listen(t, pool, "outbox")
	drainertest.Exec(t, pool, callEnqueue, "r", "s", "idle/x", "b", "{}")
	if got := notified(); len(got) > 0 {
		t.Errorf("notified %q, want nothing: the queue may be full by the commit", got)
	}
}

// audited is an outbox whose history a test writes by hand.
type audited struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func newAudited(t *testing.T) *audited {
	t.Helper()
	return &audited{t, drainertest.Connect(t, drainertest.Database(t))}
}

// intent commits an intent and appends its attempts in that order. An attempt is
// "outcome [ref=R] [replayed] [lookup] [unsent] [ago=INTERVAL]".
func (a *audited) intent(run, step, tool, payload string, attempts ...string) int64 {
	a.t.Helper()
	enqueued, err := enqueue(a.t, a.pool, run, step, tool, "scope", payload)
	if err != nil {
		a.t.Fatal(err)
	}
	drainertest.Exec(a.t, a.pool, `DELETE FROM outbox.queue WHERE intent_id = $1`, enqueued.IntentID)
	for i, attempt := range attempts {
		a.append(enqueued.IntentID, i+1, strings.Fields(attempt))
	}
	return enqueued.IntentID
}

func (a *audited) append(intent int64, number int, words []string) {
	a.t.Helper()
	outcome, ref, ago := words[0], "", "0"
	for _, word := range words[1:] {
		if value, is := strings.CutPrefix(word, "ref="); is {
			ref = value
		}
		if value, is := strings.CutPrefix(word, "ago="); is {
			ago = value
		}
	}
	status := "failed"
	if outcome == "completed" || outcome == "resolved" {
		status = "completed"
	}
	drainertest.Exec(a.t, a.pool, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, provider_ref, replayed, lookup)
		VALUES ($1, $2, 'w', CASE WHEN NOT $8 THEN now() END, now() - $3::interval, $4, $5, nullif($6, ''), $7, $9)`,
		intent, number, ago, outcome, status, ref, slices.Contains(words, "replayed"), slices.Contains(words, "unsent"), slices.Contains(words, "lookup"))
}

// rows returns the answer, with one string for each row.
func (a *audited) rows(query string, args ...any) []string {
	a.t.Helper()
	rows, err := a.pool.Query(a.t.Context(), query, args...)
	if err != nil {
		a.t.Fatalf("%s: %v", query, err)
	}
	answer, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		a.t.Fatalf("%s: %v", query, err)
	}
	return answer
}

func (a *audited) assertRows(query string, want ...string) {
	a.t.Helper()
	if got := a.rows(query); !slices.Equal(got, want) {
		a.t.Errorf("%s\n\tgot  %q\n\twant %q", query, got, want)
	}
}

func TestAuditFindsOneKeyWithSeveralReferences(t *testing.T) {
	t.Parallel()
	a := newAudited(t)
	forgot := a.intent("r", "forgotten key", "sim/act", "{}", "ambiguous ref=A", "completed ref=B")
	found := a.intent("r", "another one found", "sim/act", "{}", "completed ref=A", "completed lookup ref=C")
	a.intent("r", "replayed", "sim/act", "{}", "ambiguous ref=A", "completed replayed ref=A")
	a.intent("r", "one reference", "sim/act", "{}", "ambiguous", "completed ref=A")
	a.intent("r", "none", "sim/act", "{}", "ambiguous", "completed")
	a.assertRows(`SELECT intent_id || ' ' || array_to_string(provider_refs, ',') FROM outbox.audit_conflicting_refs ORDER BY 1`,
		fmt.Sprintf("%d A,B", forgot), fmt.Sprintf("%d A,C", found))
	a.assertRows(`SELECT DISTINCT (c.idempotency_key = s.idempotency_key)::text FROM outbox.audit_conflicting_refs c JOIN outbox.status s USING (intent_id)`, "true")
}

func TestAuditFindsAnIntentThatCompletedTwice(t *testing.T) {
	t.Parallel()
	a := newAudited(t)
	twice := a.intent("r", "twice", "sim/act", "{}", "completed ref=A", "resolved", "completed ref=B")
	forgotten := a.intent("r", "replayed, then forgotten", "sim/act", "{}", "completed replayed", "completed")
	a.intent("r", "replayed", "sim/act", "{}", "completed", "completed replayed")
	a.intent("r", "looked up", "sim/act", "{}", "completed", "completed lookup")
	a.intent("r", "resolved", "sim/act", "{}", "completed", "resolved")
	a.intent("r", "once", "sim/act", "{}", "throttled", "ambiguous", "completed")
	a.assertRows(`SELECT intent_id || ' ' || completions || ' ' || coalesce(array_to_string(provider_refs, ','), '') FROM outbox.audit_repeated_completions ORDER BY 1`,
		fmt.Sprintf("%d 2 A,B", twice), fmt.Sprintf("%d 2 ", forgotten))
}

func TestAuditFindsTheSameTaskUnderSeveralKeys(t *testing.T) {
	t.Parallel()
	a := newAudited(t)
	first := a.intent("r1", "a", "sim/act", `{"amount": 1}`, "completed")
	second := a.intent("r2", "b", "sim/act", `{"amount": 1}`, "throttled", "completed")
	a.intent("r3", "failed", "sim/act", `{"amount": 1}`, "rejected")
	a.intent("r1", "another payload", "sim/act", `{"amount": 2}`, "completed")
	a.intent("r1", "another tool", "sim/look", `{"amount": 1}`, "completed")
	a.intent("r1", "one completed", "sim/act", `{"amount": 3}`, "completed")
	a.intent("r2", "one completed", "sim/act", `{"amount": 3}`, "rejected")
	old := a.intent("r4", "old", "sim/act", `{"amount": 3}`, "completed")
	drainertest.Exec(t, a.pool, `UPDATE outbox.intent SET created_at = now() - interval '2 days' WHERE id = $1`, old)

	const found = `SELECT concat_ws(' ', tool_name, payload, completions, intent_ids, agent_run_ids) FROM outbox.audit_repeated_tasks`
	day := fmt.Sprintf(`sim/act {"amount": 1} 2 {%d,%d} {r1,r2}`, first, second)
	a.assertRows(found, day)
	if got := a.rows(found + `(now() - interval '1 week')`); len(got) != 2 {
		t.Errorf("over a week it finds %q, want the old one's twin too", got)
	}
}

func TestAuditCountsDuplicatesByProviderAndTime(t *testing.T) {
	t.Parallel()
	a := newAudited(t)
	for n := range 4 {
		a.intent("r", fmt.Sprint(n), "sim/act", "{}")
	}
	a.intent("r", "other", "other/act", "{}")
	for range 2 {
		if _, err := enqueue(t, a.pool, "r", "0", "sim/act", "scope", "{}"); err != nil {
			t.Fatal(err)
		}
	}
	const rates = `SELECT concat_ws(' ', provider, sum(intents), sum(duplicates), max(rate)) FROM outbox.audit_duplicate_rate`
	a.assertRows(rates+` GROUP BY provider ORDER BY 1`, "other 1 0 0.0000", "sim 4 2 0.5000")

	drainertest.Exec(t, a.pool, `UPDATE outbox.intent SET created_at = created_at - interval '2 days'`)
	a.assertRows(`SELECT concat_ws(' ', provider, intents, duplicates, coalesce(rate::text, 'no rate')) FROM outbox.audit_duplicate_rate`, "sim 0 2 no rate")
	a.assertRows(`SELECT provider || ' ' || intents FROM outbox.audit_duplicate_rate(now() - interval '3 days', now() - interval '1 day', interval '1 day')`,
		"other 1", "sim 4")
}

func TestAuditCountsAttemptsPerCompletion(t *testing.T) {
	t.Parallel()
	a := newAudited(t)
	for n := range 19 {
		a.intent("r", fmt.Sprint(n), "sim/act", "{}", "completed")
	}
	a.intent("r", "patient", "sim/act", "{}", "released unsent", "throttled", "ambiguous", "ambiguous lookup", "retried unsent", "completed")
	a.intent("r", "failed", "sim/act", "{}", "throttled", "rejected")
	a.intent("r", "resolved", "sim/act", "{}", "ambiguous", "resolved unsent")
	a.intent("r", "found", "sim/find", "{}", "ambiguous", "completed lookup")
	a.intent("r", "old", "sim/old", "{}", "completed ago=2d")

	const counts = `SELECT concat_ws(' ', tool_name, completions, mean, max, round(p95::numeric, 2)) FROM outbox.audit_attempts_per_completion`
	a.assertRows(counts, "sim/act 20 1.10 3 1.10", "sim/find 1 1.00 1 1.00")
	a.assertRows(counts+`(now() - interval '3 days', now() - interval '1 day')`, "sim/old 1 1.00 1 1.00")
}

func TestTheDrainerMayReadTheAuditAndAgentsMayNot(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	for role, state := range map[string]string{"outbox_drainer": "", "outbox_agent": forbidden} {
		asRole(t, pool, role, map[string]string{
			"SELECT * FROM outbox.audit_conflicting_refs":               state,
			"SELECT * FROM outbox.audit_repeated_completions":           state,
			"SELECT * FROM outbox.audit_repeated_tasks":                 state,
			"SELECT * FROM outbox.audit_repeated_tasks(now())":          state,
			"SELECT * FROM outbox.audit_duplicate_rate":                 state,
			"SELECT * FROM outbox.audit_duplicate_rate(now())":          state,
			"SELECT * FROM outbox.audit_attempts_per_completion":        state,
			"SELECT * FROM outbox.audit_attempts_per_completion(now())": state,
		})
	}
}

// settle appends the last attempt of these intents in one statement, as a batch does.
const settle = `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, provider_ref)
	SELECT id, 1, 'w', 'test', $2, 'ref' FROM unnest($1::bigint[]) id`

func await(t *testing.T, db *pgxpool.Pool, ids ...int64) (told []string) {
	t.Helper()
	return drainertest.Column[string](t, db, `SELECT intent_id || ' ' || coalesce(status, 'is not there') || coalesce(' ' || provider_ref, '')
		FROM outbox.await($1) ORDER BY intent_id`, ids)
}

func TestAwaitTellsWhatHasSettledAndWhatIsNotThere(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	for step := range 3 {
		drainertest.Exec(t, agent, callEnqueue, "r", fmt.Sprint(step), "noop/x", "b", "{}")
	}
	drainertest.Exec(t, owner, settle, []int64{2}, "completed")
	drainertest.Exec(t, owner, settle, []int64{3}, "unknown")
	drainertest.Exec(t, owner, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at) VALUES (1, 1, 'w', 'test', 'pending', now())`)
	if told, want := await(t, agent, 1, 2, 3, 4711), []string{"2 completed ref", "3 unknown ref", "4711 is not there"}; !slices.Equal(told, want) {
		t.Errorf("await tells %q, want %q", told, want)
	}
	if told := await(t, agent); len(told) != 0 {
		t.Errorf("await of nothing tells %q", told)
	}
}

// await reads with the rights of its caller, so a login that may not read the view may not read with await either.
func TestAwaitTellsNoMoreThanTheView(t *testing.T) {
	t.Parallel()
	owner := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, owner, callEnqueue, "r", "s", "noop/x", "b", "{}")
	drainertest.Exec(t, owner, settle, []int64{1}, "completed")
	asRole(t, owner, "outbox_agent", map[string]string{"SELECT * FROM outbox.await('{1}')": ""})
	drainertest.Exec(t, owner, `REVOKE SELECT ON outbox.status FROM outbox_agent`)
	asRole(t, owner, "outbox_agent", map[string]string{"SELECT * FROM outbox.await('{1}')": forbidden})
}

func TestAnotherTenantsIntentIsNotThereToAwait(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.acme, callEnqueue, "r", "s", "noop/x", "b", "{}")
	assertTold := func(wantAcme ...string) {
		t.Helper()
		if told := await(t, w.acme, 1); !slices.Equal(told, wantAcme) {
			t.Errorf("its own tenant is told %q, want %q", told, wantAcme)
		}
		for who, stranger := range map[string]*pgxpool.Pool{"globex": w.globex, "a login of no tenant": w.nomad} {
			if told := await(t, stranger, 1, 2); !slices.Equal(told, []string{"1 is not there", "2 is not there"}) {
				t.Errorf("%s is told %q", who, told)
			}
		}
	}
	assertTold()
	drainertest.Exec(t, w.owner, settle, []int64{1}, "completed")
	assertTold("1 completed ref")
}

func TestABatchNotifiesOnceAndOnlyWhileSomeoneWaits(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	notified := drainertest.Listen(t, owner, "outbox_settled")
	next := int64(0)
	assertTold := func(when string, want ...string) {
		t.Helper()
		next += 2
		drainertest.Exec(t, owner, settle, []int64{next, next + 1}, "completed")
		if told := notified(); !slices.Equal(told, want) {
			t.Errorf("%s what settles notifies %q, want %q", when, told, want)
		}
	}
	assertTold("before anyone waits")
	await(t, agent)
	assertTold("while a login waits", "")
	drainertest.Exec(t, owner, `UPDATE outbox.waiter SET until = clock_timestamp()`)
	assertTold("after the login's time")
	await(t, agent)
	assertTold("once it asks again", "")
}

func TestALoginArmsForHalfAMinuteAndWithOneRow(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	drainertest.Exec(t, owner, `INSERT INTO outbox.waiter VALUES ('a login that was dropped', 'infinity')`)
	version := func() string {
		await(t, agent)
		return drainertest.Value[string](t, owner, `SELECT string_agg(xmin::text, ' ') FROM outbox.waiter
			WHERE until BETWEEN clock_timestamp() + interval '10 s' AND clock_timestamp() + interval '30 s'`)
	}
	first := version()
	if again := version(); again != first {
		t.Errorf("a second process of the login writes the row again: %s, %s", first, again)
	}
	drainertest.Exec(t, owner, `UPDATE outbox.waiter SET until = clock_timestamp() + interval '12 s' WHERE until < 'infinity'`)
	if again := version(); again == first {
		t.Error("a row of less than half its time is not renewed")
	}
	if rows := drainertest.Value[int](t, owner, `SELECT count(*) FROM outbox.waiter`); rows != 1 {
		t.Errorf("%d rows stay, of one login that is there", rows)
	}
}

// In a read-only transaction, or beside another open transaction of its login, a wait has no notifications, but works.
func TestAwaitHoldsNothingUpAndWritesOnlyWhereItMay(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	reading, err := agent.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer reading.Rollback(t.Context())
	drainertest.Exec(t, reading, `SELECT outbox.await('{1}')`)
	if rows := drainertest.Value[int](t, owner, `SELECT count(*) FROM outbox.waiter`); rows != 0 {
		t.Errorf("a transaction that only reads leaves %d rows", rows)
	}
	open := drainertest.Begin(t, agent)
	drainertest.Exec(t, open, `SELECT outbox.await('{1}')`)
	await(t, agent, 1) // it does not wait for the open transaction
}
