package postgres_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

// parking returns a batch that parks these rows and finishes the claims.
func parking(finish []int64, rows ...*drainer.Row) drainer.Batch {
	batch := drainer.Batch{Finish: finish}
	for _, row := range rows {
		batch.Settle = append(batch.Settle, drainer.Settlement{Row: row, Park: row.Tuple.ToolName, FinishedAt: time.Now()})
	}
	return batch
}

// parked returns the intents that wait under the name of an operation.
func (o *outbox) parked() []int64 {
	o.t.Helper()
	return drainertest.Column[int64](o.t, o.db, `SELECT intent_id FROM outbox.queue WHERE provider LIKE '%/%' ORDER BY 1`)
}

func (o *outbox) assertParked(want ...*drainer.Row) {
	o.t.Helper()
	intents := make([]int64, len(want))
	for i, row := range want {
		intents[i] = row.IntentID
	}
	if got := o.parked(); !slices.Equal(got, intents) {
		o.t.Errorf("parked are %v, want %v", got, intents)
	}
}

func TestAParkedRowLeavesItsClaimAndNoTrace(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueueTool("sim/typo", "run", 2)
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 10)
	wrong, good := rows[:2], rows[2:]
	batch := parking(nil, wrong...)
	batch.Settle = append(batch.Settle, ended(good[0], dispatch.Completed))
	if reply := o.batch(worker, batch); len(reply.Refused) != 0 {
		t.Errorf("refused are %v", reply.Refused)
	}
	if got := o.parked(); len(got) != 2 {
		t.Errorf("parked are %v, want two", got)
	}
	if again := o.claim(worker, 10); len(again) != 0 {
		t.Errorf("%d parked rows were claimed again", len(again))
	}

	// The reply was lost: the same batch comes again, and settles nothing twice.
	for i := range batch.Settle {
		batch.Settle[i].Repeats = true
	}
	if reply := o.batch(worker, batch); !slices.Equal(reply.Refused, []int{2}) {
		t.Errorf("refused are %v, want the one that was settled", reply.Refused)
	}

	// The worker dies. The rows that it parked are not lost.
	o.declareDead(worker)
	lost, err := o.Reap(t.Context(), []string{"sim"}, func(row *drainer.Row) (drainer.Settlement, bool) {
		return ended(row, dispatch.Lost), true
	})
	if err != nil || len(lost) != 1 || lost[0].Row.IntentID != good[1].IntentID {
		t.Errorf("lost are %v (%v), want the one that it still had", lost, err)
	}
	if attempts := drainertest.Value[int](t, o.db, `SELECT count(*)::int FROM outbox.attempt WHERE intent_id IN (SELECT id FROM outbox.intent WHERE tool_name = 'sim/typo')`); attempts != 0 {
		t.Errorf("%d attempts are on record of what was parked", attempts)
	}
	drainertest.AssertInvariant(t, o.db)
}

// A row waits like this if its fallback's operation is shut.
func TestARowCanWaitInItsProvidersLaneWithoutATrace(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	batch := parking(nil, o.claim(worker, 1)...)
	batch.Settle[0].Park, batch.Settle[0].ParkFor = "sim", time.Minute
	o.batch(worker, batch)
	waits := stored[float64](o, `SELECT extract(epoch FROM next_attempt_at - now())::float8 FROM outbox.queue WHERE provider = 'sim' AND tries = 0`)
	if attempts := stored[int](o, `SELECT count(*)::int FROM outbox.attempt`); waits < 30 || waits > 60 || attempts != 0 {
		t.Errorf("it is due in %.0f seconds, and %d attempts are on record", waits, attempts)
	}
}

// Thousands of rows may have a wrong tool at once, and each batch of them delays the other rows.
func TestARowIsParkedAsFastAmongMany(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	park := func(rows int) time.Duration { // returns the time per row
		o.enqueueTool("sim/typo", "run-"+uuid.NewString(), rows)
		wrong := o.claim(worker, rows)
		began := time.Now()
		o.batch(worker, parking([]int64{wrong[0].ClaimID}, wrong...))
		return time.Since(began) / time.Duration(rows)
	}
	// Other processes interrupt a long batch more often than a short one, so the fastest time counts.
	few, many := park(200), park(3200)
	for tries := 1; tries < 3 || many > 4*few; tries++ {
		if tries == 12 {
			t.Fatalf("a row of 3200 takes %v, and one of 200 %v", many, few)
		}
		few, many = min(few, park(200)), min(many, park(3200))
	}
}

func TestAClaimThatOthersTookOverParksNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueueTool("sim/typo", "run", 1)
	rows := o.claim(worker, 1)
	o.declareDead(worker)
	if _, err := o.Reap(t.Context(), []string{"sim"}, func(row *drainer.Row) (drainer.Settlement, bool) {
		return ended(row, dispatch.Lost), true
	}); err != nil {
		t.Fatal(err)
	}
	o.batch(worker, parking([]int64{rows[0].ClaimID}, rows...))
	if got := o.parked(); len(got) != 0 {
		t.Errorf("parked are %v", got)
	}
}

func TestARowThatAReaperTookFromAClaimIsNotParked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		judge drainer.Judge   // the reaper's decision
		then  func(o *outbox) // before the dead worker wakes
		want  map[string]int
	}{
		{"it is queued again", as(dispatch.Lost), func(*outbox) {}, map[string]int{"pending": 4}},
		{
			"another worker holds it", as(dispatch.Lost),
			func(o *outbox) { o.claim(o.successor(), 4) },
			map[string]int{"pending": 2, "in_progress": 2},
		},
		{"it has ended", as(dispatch.Rejected), func(*outbox) {}, map[string]int{"pending": 2, "failed": 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			dead, rows := o.halfReaped(c.judge)
			o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
			c.then(o)
			o.batch(dead, parking([]int64{rows[0].ClaimID}, rows...))
			o.assertParked(rows[1], rows[3])
			o.assertStatuses(c.want)
		})
	}
}

func TestARowThatAReaperIsTakingIsNotParked(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(dead, 2)
	o.declareDead(dead)
	var done <-chan error
	parkMeanwhile := func(row *drainer.Row) (drainer.Settlement, bool) {
		if done == nil { // the reaper holds the claim
			done = o.inBackground(dead, parking([]int64{rows[0].ClaimID}, rows...))
			o.awaitBlocked(done)
		}
		return ended(row, dispatch.Rejected), row.IntentID == rows[0].IntentID
	}
	if _, err := o.Reap(t.Context(), []string{"sim"}, parkMeanwhile); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	drainertest.AssertInvariant(t, o.db)
	o.assertParked(rows[1])
}

func TestAWorkerThatKnowsAnOperationGetsWhatOthersParked(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueueTool("sim/new", "run", 3)
	o.enqueueTool("sim/typo", "run", 1)
	rows := o.claim(worker, 10)
	o.batch(worker, parking([]int64{rows[0].ClaimID}, rows...))
	if err := o.Unpark(t.Context(), []string{"sim/act", "sim/new"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := o.parked(); len(got) != 1 {
		t.Errorf("parked are %v, want the one that nobody knows", got)
	}
	again := o.claim(o.successor(), 10)
	if len(again) != 3 || again[0].Attempt != 2 || again[0].Tries != 1 {
		t.Errorf("claimed are %d rows, the first with attempt %d; want three under the next number", len(again), again[0].Attempt)
	}
}

func TestWhatWasParkedBeforeCommitsWereLostEndsAsUnknown(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*outbox){
		"a heartbeat has met the server": (*outbox).loseCommits,
		"none has":                       func(o *outbox) { o.exec(`UPDATE outbox.history SET timeline = timeline + 1`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			worker := o.join()
			o.enqueueTool("sim/typo", "run", 1)
			rows := o.claim(worker, 10)
			o.batch(worker, parking([]int64{rows[0].ClaimID}, rows...))
			o.exec(`UPDATE outbox.queue SET next_attempt_at = next_attempt_at - interval '2 hours'`)
			lose(o)
			ended, err := o.Expire(t.Context(), worker, []string{"sim"}, time.Hour, endsUnknownOperation)
			if err != nil || len(ended) != 1 {
				t.Fatalf("%d ended (%v), want the one: no claim looks at its lane", len(ended), err)
			}
			if status := stored[string](o, `SELECT status FROM outbox.status`); status != "unknown" {
				t.Errorf("it is %s, want unknown: what was lost may have sent it", status)
			}
		})
	}
}

func endsUnknownOperation(row *drainer.Row) (drainer.Settlement, bool) {
	return drainer.Settlement{
		Row: row, FinishedAt: time.Now(), Result: dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unknown_operation", Unsent: true},
		Decision: dispatch.Policy{}.Halt(row.History(time.Time{}, time.Now())),
	}, true
}

func TestWhatNobodyKnowsFailsInTimeAndWhatWasInDoubtIsUnknown(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueueTool("sim/typo", "run", 2)
	o.enqueueTool("other/typo", "run", 1)
	rows := o.claim(worker, 10)
	o.batch(worker, parking([]int64{rows[0].ClaimID}, rows...))
	o.exec(`UPDATE outbox.queue SET maybe_applied = true, first_attempt_at = now() WHERE intent_id = $1`, rows[1].IntentID)
	expire := func(after time.Duration) []drainer.Settlement {
		t.Helper()
		ended, err := o.Expire(t.Context(), worker, []string{"sim"}, after, endsUnknownOperation)
		if err != nil {
			t.Fatal(err)
		}
		drainertest.AssertInvariant(t, o.db)
		return ended
	}
	if early := expire(time.Hour); len(early) != 0 {
		t.Errorf("%d ended before their time", len(early))
	}
	o.exec(`UPDATE outbox.queue SET next_attempt_at = next_attempt_at - interval '2 hours'`)
	knowing := uuid.NewString()
	if err := o.Join(t.Context(), knowing, []string{"sim"}, []string{"sim/typo"}); err != nil {
		t.Fatal(err)
	}
	const longAgo = `UPDATE outbox.tool SET seen_at = now() - interval '2 hours'`
	o.exec(longAgo) // the worker joined then
	if known := expire(time.Hour); len(known) != 0 {
		t.Errorf("%d ended although a living worker knows their operation", len(known))
	}
	if err := o.Retire(t.Context(), knowing); err != nil {
		t.Fatal(err)
	}
	if known := expire(time.Hour); len(known) != 0 {
		t.Errorf("%d ended although a worker knew their operation a moment ago", len(known))
	}
	o.exec(longAgo)
	o.joinWith("sim/act") // a join forgets operations that no worker knows any more, but not this one
	if n := stored[int](o, `SELECT count(*) FROM outbox.tool WHERE name = 'sim/typo'`); n != 1 {
		t.Error("an operation is forgotten, and with it since when its parked rows wait")
	}
	if ended := expire(time.Hour); len(ended) != 2 {
		t.Errorf("%d ended, want both of the provider", len(ended))
	}
	got := drainertest.Column[string](t, o.db, `SELECT status || ' ' || attempts || ' ' || coalesce(last_error, '') FROM outbox.status ORDER BY intent_id`)
	if want := []string{"failed 0 unknown_operation", "unknown 0 unknown_operation", "pending 0 "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	incidents := drainertest.Column[string](t, o.db, `SELECT kind || ' ' || intent_id FROM outbox.incident`)
	if len(incidents) != 1 || incidents[0] != "outcome_unknown 2" {
		t.Errorf("incidents are %v, want one of the doubt", incidents)
	}
	if sagas := drainertest.Value[int](t, o.db, `SELECT count(*)::int FROM outbox.saga`); sagas != 0 {
		t.Error("a saga began, though nothing was sent")
	}
}

// shutFor shuts a gate for that reason, so many hours ago; its next probe is a minute away.
func (o *outbox) shutFor(gate, table string, reason drainer.OpenReason, hours int) {
	o.t.Helper()
	o.exec(`UPDATE outbox.`+table+` SET state = 'open', reason = $2, open_until = now() + interval '1 minute',
		shut_at = now() - make_interval(hours => $3),
		refused_at = CASE WHEN $2 NOT IN ('overload', 'failure_rate') THEN now() - make_interval(hours => $3) END WHERE name = $1`, gate, string(reason), hours)
}

func (o *outbox) expireRefused(worker string, after time.Duration) (ended []drainer.Settlement) {
	o.t.Helper()
	ended, err := o.ExpireRefused(o.t.Context(), worker, []string{"sim"}, after, func(row *drainer.Row) (drainer.Settlement, bool) {
		return drainer.Settlement{
			Row: row, FinishedAt: time.Now(), Result: dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "misconfigured"},
			Decision: dispatch.Policy{}.Halt(row.History(time.Time{}, time.Now())),
		}, true
	})
	if err != nil {
		o.t.Fatal(err)
	}
	drainertest.AssertInvariant(o.t, o.db)
	return ended
}

func TestAConfigurationThatIsNewHereIsTriedAtOnceWhereThisSideWasRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.joinWith("sim/act", "sim/slow", "sim/wrong")
	o.shutFor("sim", "provider", drainer.CredentialsRefused, 0)
	o.shutFor("sim/act", "tool", drainer.Forbidden, 0)
	o.shutFor("sim/wrong", "tool", drainer.Misconfigured, 0)
	o.shutFor("sim/slow", "tool", drainer.FailureRate, 0)
	const cooling = `SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM (
		SELECT name, open_until FROM outbox.provider UNION ALL SELECT name, open_until FROM outbox.tool) g WHERE open_until > now()`
	for _, step := range []struct {
		provider, want string
	}{{"other", "sim sim/act sim/slow sim/wrong"}, {"sim", "sim/slow"}} {
		if err := o.ProbeNow(t.Context(), []string{step.provider}); err != nil {
			t.Fatal(err)
		}
		if got := stored[string](o, cooling); got != step.want {
			t.Errorf("for %s: these wait for a later probe: %s, want %s", step.provider, got, step.want)
		}
	}
	if got := o.toolState("sim/act"); got != "open forbidden since" {
		t.Errorf("the operation is %s, want it to stay shut until its probe", got)
	}
}

func TestRowsOfARefusedConfigurationFailOnceTheyAndItsGateWaitedSoLong(t *testing.T) {
	t.Parallel()
	for name, shut := range map[string]struct {
		gate, table, lane string
		reason            drainer.OpenReason
	}{
		"refused":       {"sim", "provider", "sim", drainer.CredentialsRefused},
		"forbidden":     {"sim/act", "tool", "sim/act", drainer.Forbidden},
		"misconfigured": {"sim/act", "tool", "sim/act", drainer.Misconfigured},
	} {
		o := newOutbox(t)
		worker := o.joinWith("sim/act")
		o.enqueue("run", 0, 3)
		o.exec(`UPDATE outbox.queue SET provider = $1`, shut.lane)
		o.shutFor(shut.gate, shut.table, shut.reason, 25)
		if early := o.expireRefused(worker, 24*time.Hour); len(early) != 0 {
			t.Errorf("%s: %d rows ended that were enqueued just now", name, len(early))
		}
		o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
		o.exec(`UPDATE outbox.intent SET created_at = now() - interval '2 days'`)
		o.exec(`ALTER TABLE outbox.intent ENABLE TRIGGER USER`)
		if early := o.expireRefused(worker, 26*time.Hour); len(early) != 0 {
			t.Errorf("%s: %d rows ended although their gate was shut later", name, len(early))
		}
		o.exec(`UPDATE outbox.queue SET maybe_applied = true, first_attempt_at = now() WHERE intent_id = 2`)
		if ended := o.expireRefused(worker, 24*time.Hour); len(ended) != 3 {
			t.Errorf("%s: %d rows ended, want 3", name, len(ended))
		}
		if got := stored[string](o, `SELECT string_agg(status || ' ' || last_error, ', ' ORDER BY intent_id) FROM outbox.status`); got != "failed misconfigured, unknown misconfigured, failed misconfigured" {
			t.Errorf("%s: they are %s", name, got)
		}
	}
}

// A provider was overloaded for a day, and refuses for the first time now. So the operators had no time to correct the
// cause yet.
func TestAnOutageBeforeARefusalIsNoPartOfItsTime(t *testing.T) {
	t.Parallel()
	for name, shut := range map[string]struct {
		gate, table           string
		outage, refusal, next drainer.OpenReason
		probe                 bool
	}{
		"a probe is refused":                {"sim", "provider", drainer.Overloaded, drainer.CredentialsRefused, drainer.CredentialsRefused, true},
		"a row on its way is refused":       {"sim", "provider", drainer.Overloaded, drainer.CredentialsRefused, drainer.CredentialsRefused, false},
		"a probe is forbidden":              {"sim/act", "tool", drainer.FailureRate, drainer.Forbidden, drainer.Misconfigured, true},
		"a row on its way is forbidden":     {"sim/act", "tool", drainer.FailureRate, drainer.Forbidden, drainer.Misconfigured, false},
		"a probe is not rendered":           {"sim/act", "tool", drainer.FailureRate, drainer.Misconfigured, drainer.Forbidden, true},
		"a row on its way was not rendered": {"sim/act", "tool", drainer.Overloaded, drainer.Misconfigured, drainer.Forbidden, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			worker := o.joinWith("sim/act")
			o.enqueue("run", 0, 3)
			o.exec(`UPDATE outbox.queue SET provider = $1`, shut.gate)
			o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
			o.exec(`UPDATE outbox.intent SET created_at = now() - interval '3 days'`)
			o.exec(`ALTER TABLE outbox.intent ENABLE TRIGGER USER`)
			o.shutFor(shut.gate, shut.table, shut.outage, 25)
			refuse := func(reason drainer.OpenReason) {
				t.Helper()
				if shut.probe {
					o.exec(`UPDATE outbox.`+shut.table+` SET state = 'half_open', prober = $2 WHERE name = $1`, shut.gate, worker)
				}
				o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{{Row: &drainer.Row{ClaimID: -1}, Breakers: []drainer.BreakerChange{
					{Gate: shut.gate, Open: true, Reason: reason, For: time.Minute, Probe: shut.probe},
				}}}})
				if got := stored[string](o, `SELECT state || ' ' || reason FROM outbox.`+shut.table+` WHERE name = $1`, shut.gate); got != "open "+string(reason) {
					t.Fatalf("it is %s, want it open for %s", got, reason)
				}
			}
			waits := func(hours int) {
				t.Helper()
				o.exec(`UPDATE outbox.`+shut.table+` SET refused_at = refused_at - make_interval(hours => $2) WHERE name = $1`, shut.gate, hours)
			}
			refuse(shut.refusal)
			if early := o.expireRefused(worker, 24*time.Hour); len(early) != 0 {
				t.Fatalf("%d rows ended as soon as it was refused", len(early))
			}
			waits(23)
			refuse(shut.next)
			if early := o.expireRefused(worker, 24*time.Hour); len(early) != 0 {
				t.Fatalf("%d rows ended an hour early", len(early))
			}
			waits(2)
			if shut.probe { // only a probe can meet an outage while the gate is shut
				refuse(shut.outage)
				if early := o.expireRefused(worker, 24*time.Hour); len(early) != 0 {
					t.Fatalf("%d rows ended in an outage", len(early))
				}
			}
			refuse(shut.refusal)
			if ended := o.expireRefused(worker, 24*time.Hour); len(ended) != 3 {
				t.Errorf("%d rows ended a day after it was refused, want 3", len(ended))
			}
		})
	}
}

func TestAnOverloadedProvidersRowsWaitForEver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.joinWith("sim/act")
	o.enqueue("run", 0, 3)
	o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
	o.exec(`UPDATE outbox.intent SET created_at = now() - interval '2 days'`)
	o.shutFor("sim", "provider", drainer.Overloaded, 48)
	if ended := o.expireRefused(worker, time.Hour); len(ended) != 0 {
		t.Errorf("%d rows ended", len(ended))
	}
}

func TestALookForUnknownOperationsReadsABoundedNumberOfLanes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.exec(`ALTER TABLE outbox.intent DISABLE TRIGGER USER`)
	o.exec(`WITH made_up AS (
			INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'run', n::text, 'sim/made-up-' || n, 'scope', '{}' FROM generate_series(1, 5000) n RETURNING id, tool_name)
		INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id) SELECT tool_name, now(), id, 'run' FROM made_up`)
	o.exec(`INSERT INTO outbox.tool (name, seen_at) VALUES ('sim/made-up-1', now() - interval '1 day')`)
	statement, err := os.ReadFile("sql/expired.sql")
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Type  string  `json:"Node Type"`
		Name  string  `json:"Subplan Name"`
		Rows  float64 `json:"Actual Rows"`
		Plans []node
	}
	var plans []struct{ Plan node }
	if err := o.db.QueryRow(t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) `+string(statement),
		pgx.QueryExecModeExec, worker, []string{"sim"}, time.Hour.Seconds(), 500).Scan(&plans); err != nil {
		t.Fatal(err)
	}
	walks := 0
	var visit func(node)
	visit = func(n node) {
		if n.Type == "Recursive Union" && n.Name == "CTE lane" {
			if walks++; n.Rows > 1001 {
				t.Errorf("%v lanes were walked, want at most 1000 of 5000", n.Rows)
			}
		}
		for _, below := range n.Plans {
			visit(below)
		}
	}
	visit(plans[0].Plan)
	if walks != 1 {
		t.Errorf("the plan walks the lanes %d times, want once", walks)
	}
}
