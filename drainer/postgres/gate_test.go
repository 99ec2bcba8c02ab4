package postgres_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

// joinWith returns the id of a new worker that knows these tools.
func (o *outbox) joinWith(tools ...string) string {
	o.t.Helper()
	worker := uuid.NewString()
	if err := o.Join(o.t.Context(), worker, []string{"sim"}, tools); err != nil {
		o.t.Fatal(err)
	}
	return worker
}

// shutting returns a batch that shuts an operation for the cool-down, and parks the rows.
func shutting(gate string, coolDown time.Duration, rows ...*drainer.Row) drainer.Batch {
	batch := parking(nil, rows...)
	for _, row := range rows {
		batch.Finish = append(batch.Finish, row.ClaimID)
	}
	batch.Settle[0].Breakers = []drainer.BreakerChange{{Gate: gate, Open: true, Reason: drainer.FailureRate, For: coolDown}}
	return batch
}

func (o *outbox) probeOperation(worker, operation string) []*drainer.Row {
	o.t.Helper()
	claim := drainer.Claim{Provider: "sim", Server: "sim", Operation: operation, Limit: 1, ProbeFor: time.Hour}
	return o.batch(worker, drainer.Batch{Claims: []drainer.Claim{claim}}).Claimed[0].Rows
}

func (o *outbox) toolState(tool string) string {
	o.t.Helper()
	return stored[string](o, `SELECT state || coalesce(' ' || reason, '') || CASE WHEN shut_at IS NULL THEN '' ELSE ' since' END FROM outbox.tool WHERE name = $1`, tool)
}

// shutOperation returns an outbox with one shut operation. Its cool-down is over, and so many of its rows are parked.
func shutOperation(t *testing.T, rows int) (o *outbox, worker string) {
	t.Helper()
	o = newOutbox(t)
	worker = o.joinWith("sim/act", "sim/slow")
	o.enqueueTool("sim/slow", "slow", rows)
	o.batch(worker, shutting("sim/slow", 0, o.claim(worker, 10)...))
	return o, worker
}

func TestAShutOperationLeavesItsNeighboursAlone(t *testing.T) {
	t.Parallel()
	o, worker := shutOperation(t, 3)
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 10)
	if len(rows) != 2 || rows[0].Tuple.ToolName != "sim/act" || o.state() != "closed" {
		t.Errorf("%d rows were claimed and the provider's breaker is %s", len(rows), o.state())
	}
	gates, err := o.Gates(t.Context(), worker)
	at := slices.IndexFunc(gates, func(g drainer.Gate) bool { return g.Name == "sim/slow" })
	if err != nil || at < 0 || gates[at].Breaker != drainer.BreakerOpen || gates[at].Reason != drainer.FailureRate {
		t.Errorf("%+v, %v", gates, err)
	}
	if err := o.Unpark(t.Context(), []string{"sim/act", "sim/slow"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := o.parked(); len(got) != 3 {
		t.Errorf("parked are %v: they came back while their operation is shut", got)
	}
}

func TestAnOperationsProbeTakesTheLeastFailedRowAndDecides(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		outcome dispatch.Outcome
		state   string
		parked  int
	}{
		{dispatch.Completed, "closed", 0},
		{dispatch.Ambiguous, "open failure_rate since", 2},
	} {
		o, worker := shutOperation(t, 3)
		other := o.joinWith("sim/act", "sim/slow")
		o.exec(`UPDATE outbox.queue SET tries = CASE WHEN intent_id = 2 THEN 1 ELSE 5 END`)
		rows := o.probeOperation(worker, "slow")
		if len(rows) != 1 || rows[0].IntentID != 2 || rows[0].Probe != "sim/slow" || rows[0].Tries != 2 {
			t.Fatalf("%s: the probe is %+v, want intent 2, which failed least", test.outcome, rows)
		}
		if again := o.probeOperation(other, "slow"); len(again) != 0 || o.toolState("sim/slow") != "half_open failure_rate since" {
			t.Errorf("another worker tries %v too, and the operation is %s", ids(again), o.toolState("sim/slow"))
		}
		if provider := stored[string](o, `SELECT provider || ' ' || server FROM outbox.claim`); provider != "sim sim" {
			t.Errorf("its claim is of %s: reapers would not find it", provider)
		}
		batch := settling(test.outcome, rows...)
		batch.Settle[0].Breakers = []drainer.BreakerChange{{Gate: "sim/slow", Open: test.outcome != dispatch.Completed, For: time.Hour, Probe: true}}
		o.batch(worker, batch)
		if err := o.Unpark(t.Context(), []string{"sim/slow"}, nil); err != nil {
			t.Fatal(err)
		}
		if got := o.parked(); o.toolState("sim/slow") != test.state || len(got) != test.parked {
			t.Errorf("%s: the operation is %s and %v are parked, want %s and %d", test.outcome, o.toolState("sim/slow"), got, test.state, test.parked)
		}
	}
}

// Neither a refusal nor an overload uses a try. By its tries alone, the refused row would always be the one that failed
// least.
func TestARowThatIsRefusedDoesNotTryItsGateAgainBeforeTheOthers(t *testing.T) {
	t.Parallel()
	for _, reason := range []drainer.OpenReason{drainer.Forbidden, drainer.Misconfigured, drainer.Overloaded} {
		o, worker := shutOperation(t, 3)
		o.exec(`UPDATE outbox.queue SET tries = CASE WHEN intent_id = 2 THEN 0 ELSE 5 END, next_attempt_at = now() - intent_id * interval '1 minute'`)
		o.exec(`UPDATE outbox.tool SET reason = $1 WHERE name = 'sim/slow'`, reason)
		var tried []int64
		for range 4 {
			rows := o.probeOperation(worker, "slow")
			batch := parking(nil, rows...)
			batch.Settle[0].Breakers = []drainer.BreakerChange{{Gate: "sim/slow", Open: true, Reason: reason, Probe: true}}
			tried = append(tried, ids(rows)...)
			o.batch(worker, batch)
		}
		if want := []int64{3, 2, 1, 3}; !slices.Equal(tried, want) {
			t.Errorf("%s: tried were %v, want %v", reason, tried, want)
		}
	}
}

func TestNoOperationIsTriedWhileItsProviderIsShut(t *testing.T) {
	t.Parallel()
	for name, prevent := range map[string]string{
		"nothing is parked":      `UPDATE outbox.queue SET provider = 'sim'`,
		"the provider is paused": `UPDATE outbox.provider SET paused = true`,
		"the provider is open":   `UPDATE outbox.provider SET state = 'open', open_until = now()`,
		"still cooling":          `UPDATE outbox.tool SET open_until = now() + interval '1 hour' WHERE name = 'sim/slow'`,
	} {
		o, worker := shutOperation(t, 2)
		o.exec(prevent)
		if rows := o.probeOperation(worker, "slow"); len(rows) != 0 || o.toolState("sim/slow") != "open failure_rate since" {
			t.Errorf("%s: %d rows were claimed and the operation is %s", name, len(rows), o.toolState("sim/slow"))
		}
	}
}

// A row on a detour is claimed before it is known which of the fallback's operations it needs.
func TestARowThatIsClaimedTriesAShutOperation(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		given string
		want  bool
	}{
		"its cool-down is over":   {`SELECT`, true},
		"still cooling":           {`UPDATE outbox.tool SET open_until = now() + interval '1 hour'`, false},
		"it is open again":        {`UPDATE outbox.tool SET state = 'closed', open_until = NULL, reason = NULL, shut_at = NULL`, false},
		"another tries":           {`UPDATE outbox.tool SET state = 'half_open', prober = (SELECT worker_id FROM outbox.worker LIMIT 1), open_until = now() + interval '1 hour'`, false},
		"a dead worker's try":     {`UPDATE outbox.tool SET state = 'half_open', prober = gen_random_uuid(), open_until = now() + interval '1 hour'`, true},
		"this worker counts dead": {`DELETE FROM outbox.worker`, false},
	} {
		o, worker := shutOperation(t, 1)
		o.exec(test.given)
		before := o.toolState("sim/slow")
		is, err := o.TryOperation(t.Context(), worker, "sim/slow", time.Hour)
		if err != nil || is != test.want {
			t.Errorf("%s: it may try %v, %v", name, is, err)
		}
		if !is && o.toolState("sim/slow") != before {
			t.Errorf("%s: the operation was %s and is %s", name, before, o.toolState("sim/slow"))
		}
		if is {
			o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{{Row: &drainer.Row{ClaimID: -1}, Breakers: []drainer.BreakerChange{{Gate: "sim/slow", Probe: true}}}}})
			if got := o.toolState("sim/slow"); got != "closed" {
				t.Errorf("%s: after a probe that went well it is %s", name, got)
			}
		}
	}
}

func TestTheTurnOfADeadProberOfAnOperationPassesOn(t *testing.T) {
	t.Parallel()
	o, worker := shutOperation(t, 2)
	o.probeOperation(worker, "slow")
	o.declareDead(worker)
	if rows := o.probeOperation(o.joinWith("sim/act", "sim/slow"), "slow"); len(rows) != 1 {
		t.Error("nobody may try the operation until the dead prober's hour is over")
	}
	lost, err := o.Reap(t.Context(), []string{"sim"}, func(row *drainer.Row) (drainer.Settlement, bool) {
		return ended(row, dispatch.Lost), true
	})
	if err != nil || len(lost) != 1 {
		t.Errorf("%d rows were taken for lost (%v), want the dead prober's", len(lost), err)
	}
}

func TestParkedRowsMayTakeTheDetourWhileTheirProviderIsShut(t *testing.T) {
	t.Parallel()
	o, worker := shutOperation(t, 3)
	o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{{
		Row: &drainer.Row{ClaimID: -1}, Breakers: []drainer.BreakerChange{{Gate: "sim", Open: true, For: time.Hour}},
	}}})
	for _, test := range []struct {
		detours []string
		parked  int
	}{{nil, 3}, {[]string{"sim/slow"}, 0}} {
		if err := o.Unpark(t.Context(), []string{"sim/slow"}, test.detours); err != nil {
			t.Fatal(err)
		}
		if got := o.parked(); len(got) != test.parked {
			t.Errorf("with a fallback for %v %v are parked, want %d", test.detours, got, test.parked)
		}
	}
}

func TestAProviderIsTriedWithItsLeastFailedRow(t *testing.T) {
	t.Parallel()
	o := cooledDown(t, 5)
	o.exec(`UPDATE outbox.provider SET reason = $1 WHERE name = 'sim'`, drainer.FailureRate)
	o.exec(`UPDATE outbox.queue SET tries = CASE WHEN intent_id = 4 THEN 2 ELSE 7 END`)
	if rows := o.probe(o.join(), time.Hour); len(rows) != 1 || rows[0].IntentID != 4 {
		t.Errorf("the probe takes %v, want intent 4, which failed least", ids(rows))
	}
}

func TestAReasonThatTimeDoesNotCureOutlastsTheOthers(t *testing.T) {
	t.Parallel()
	o, worker := shutOperation(t, 2)
	say := func(change drainer.BreakerChange) {
		t.Helper()
		change.Gate, change.Open = "sim/slow", true
		o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{{Row: &drainer.Row{ClaimID: -1}, Breakers: []drainer.BreakerChange{change}}}})
	}
	say(drainer.BreakerChange{Reason: drainer.Forbidden}) // its time begins here
	since := stored[time.Time](o, `SELECT shut_at FROM outbox.tool WHERE name = 'sim/slow'`)
	for _, step := range []struct {
		reason drainer.OpenReason
		want   string
	}{{"forbidden", "forbidden"}, {drainer.FailureRate, "forbidden"}, {drainer.Overloaded, "forbidden"}, {"", "forbidden"}, {"misconfigured", "misconfigured"}} {
		say(drainer.BreakerChange{Reason: step.reason})
		if got := stored[string](o, `SELECT reason FROM outbox.tool WHERE name = 'sim/slow'`); got != step.want {
			t.Errorf("after %q it is shut for %s, want %s", step.reason, got, step.want)
		}
	}
	o.probeOperation(worker, "slow")
	say(drainer.BreakerChange{Reason: drainer.FailureRate, Probe: true})
	if got := o.toolState("sim/slow"); got != "open failure_rate since" {
		t.Errorf("after its probe the operation is %s", got)
	}
	if !stored[time.Time](o, `SELECT shut_at FROM outbox.tool WHERE name = 'sim/slow'`).Equal(since) {
		t.Error("it counts as shut from another time on")
	}
	drainertest.AssertInvariant(t, o.db)
}

// The incident of a gate that no row waits for is opened on this intent.
func TestAGateNamesTheIntentWhoseRefusalShutIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.joinWith("sim/act")
	for gate, table := range map[string]string{"sim": "provider", "sim/act": "tool"} {
		for _, step := range []struct {
			intent int64
			change drainer.BreakerChange
			want   string
		}{
			{1, drainer.BreakerChange{Open: true, Reason: drainer.FailureRate}, "none"},
			{2, drainer.BreakerChange{Open: true, Reason: drainer.Forbidden}, "2"},
			{3, drainer.BreakerChange{Open: true, Reason: drainer.Overloaded}, "2"},
			{0, drainer.BreakerChange{Open: true}, "2"},
			{4, drainer.BreakerChange{Open: true, Reason: drainer.Forbidden, Probe: true}, "4"},
			{5, drainer.BreakerChange{Probe: true}, "none"},
		} {
			if step.change.Gate = gate; step.change.Probe {
				o.exec(`UPDATE outbox.`+table+` SET state = 'half_open', prober = $2 WHERE name = $1`, gate, worker)
			}
			o.batch(worker, drainer.Batch{Settle: []drainer.Settlement{{Row: &drainer.Row{ClaimID: -1, IntentID: step.intent}, Breakers: []drainer.BreakerChange{step.change}}}})
			if got := stored[string](o, `SELECT coalesce(refused_intent::text, 'none') FROM outbox.`+table+` WHERE name = $1`, gate); got != step.want {
				t.Errorf("after %+v of intent %d, %s names intent %s, want %s", step.change, step.intent, gate, got, step.want)
			}
		}
	}
}

// In a rolling update two configurations are in use, and the newer one may be rolled back.
func TestWorkersOfOneConfigurationShareWhatTheyHaveRendered(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	configured := func(digest string) string {
		worker := uuid.NewString()
		if err := o.Join(t.Context(), worker, []string{"other", "sim"}, []string{"sim/act", "sim/slow"}, nil, []byte(digest), []byte("all")); err != nil {
			t.Fatal(err)
		}
		return worker
	}
	renders := func(worker string, operations ...string) {
		if err := o.NoteRendered(t.Context(), worker, operations); err != nil {
			t.Fatal(err)
		}
	}
	knows := func(worker, operation string) bool {
		is, err := o.IsRendered(t.Context(), worker, operation)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	older, newer := configured("older"), configured("newer")
	renders(older, "sim/act", "sim/act", "sim/unknown")
	if replica := configured("older"); !knows(replica, "sim/act") || knows(replica, "sim/slow") || knows(newer, "sim/act") {
		t.Error("want it known of one operation, with one configuration")
	}
	renders(newer, "sim/act", "sim/slow")
	renders(newer, "sim/act")
	if !knows(older, "sim/act") || !knows(newer, "sim/act") || knows(older, "sim/slow") {
		t.Error("want it known of both configurations")
	}
	unwritten := configured("")
	if renders(unwritten, "sim/act"); knows(configured(""), "sim/act") {
		t.Error("two configurations that cannot be told apart share a proof")
	}
	for n := range 10 {
		renders(configured(strings.Repeat("x", n+1)), "sim/act")
	}
	if kept := stored[int](o, `SELECT cardinality(rendered) FROM outbox.tool WHERE name = 'sim/act'`); kept != 4 {
		t.Errorf("%d configurations are kept", kept)
	}

	if err := o.Retire(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	renders(newer, "sim/act")
	for name, worker := range map[string]string{"retired": newer, "dead": uuid.NewString()} {
		if _, err := o.IsRendered(t.Context(), worker, "sim/act"); err == nil {
			t.Errorf("a worker that is %s is told that nothing was rendered", name)
		}
	}
}

// A pooler may share one session among several clients. The other clients would get the notifications of a LISTEN that
// stays in the session.
func TestNoSessionThatAPoolerSharesListens(t *testing.T) {
	t.Parallel()
	listens := func(t *testing.T, mode string) (woken bool, err error) {
		address := drainertest.Database(t)
		o := openOutbox(t, address, drainertest.PgBouncer(t, address+"&default_query_exec_mode=exec", mode, 4))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		go func() {
			for ctx.Err() == nil {
				_, _ = o.db.Exec(ctx, "NOTIFY outbox, 'sim'") // until it listens, or fails
			}
		}()
		err = o.Listen(ctx, func(string) {
			woken = true
			cancel()
		})
		return woken, err
	}
	t.Run("transaction", func(t *testing.T) {
		t.Parallel()
		if woken, err := listens(t, "transaction"); woken || err == nil || !strings.Contains(err.Error(), "one session to several clients") {
			t.Errorf("woken: %t, with the error %v", woken, err)
		}
	})
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		if woken, err := listens(t, "session"); !woken {
			t.Errorf("not woken, with the error %v", err)
		}
	})
}
