package postgres_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// A few bytes of jsonb can become a megabyte of text, and a claim returns text.
func TestAClaimIsBoundedInBytesAndBringsAtLeastOneRow(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers)
		SELECT 'run', 'step-' || n, 'sim/act', 'scope', ('{"n": ' || CASE WHEN n <= 4 THEN '1e99999' ELSE '1' END || '}')::jsonb,
		       CASE WHEN n = 5 THEN jsonb_build_object('baggage', repeat('x', 60000)) END
		FROM generate_series(1, 9) n`)
	o.settle(worker, dispatch.NotSent, o.claim(worker, 100)...) // a requeued row counts like a new one
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
	claim := func(bytes int) drainer.ClaimReply {
		batch := claimOf(100)
		batch.Claims[0].Bytes = bytes
		return o.batch(worker, batch).Claimed[0]
	}
	for _, step := range []struct {
		bytes int
		found int
	}{
		{1, 1},             // the first row alone exceeds it
		{250_000, 3},       // the third row exceeds it
		{60_000, 1},        // the headers of one row exceed it
		{2 * (512 + 8), 2}, // each small row counts as well
		{0, 2},             // no limit
	} {
		reply := claim(step.bytes)
		if reply.Found != step.found || len(reply.Rows) != step.found || (step.bytes > 0 && reply.Bytes < step.bytes) {
			t.Errorf("of %d bytes it brings %d rows with %d bytes, want %d", step.bytes, reply.Found, reply.Bytes, step.found)
		}
	}
}

func TestClaimersNeverShareARowNorPassTheLimit(t *testing.T) {
	t.Parallel()
	const rows, claimers, limit = 500, 4, 7
	o := newOutbox(t)
	o.enqueue("run", 0, rows/2)
	o.enqueueTool("other/act", "run", rows/2)
	var mu sync.Mutex
	owners := map[int64]int{}
	var group sync.WaitGroup
	for i := range claimers {
		worker := o.join()
		claims := []drainer.Claim{
			{Provider: "sim", Server: "sim", Limit: limit, Parts: after(beginning)},
			{Provider: "other", Server: "other", Limit: limit, Parts: after(beginning)},
		}
		if i%2 > 0 {
			slices.Reverse(claims)
		}
		group.Go(func() {
			for {
				reply, err := o.Commit(t.Context(), worker, drainer.Batch{Claims: claims})
				if err != nil {
					t.Error(err)
					return
				}
				one, other := reply.Claimed[0].Rows, reply.Claimed[1].Rows
				if len(one) > limit || len(other) > limit {
					t.Errorf("claimed %d and %d rows, over the limit of %d", len(one), len(other), limit)
				}
				claimed := slices.Concat(one, other)
				if len(claimed) == 0 {
					return
				}
				mu.Lock()
				for _, row := range claimed {
					owners[row.IntentID]++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	for intent, count := range owners {
		if count != 1 {
			t.Errorf("intent %d was claimed %d times", intent, count)
		}
	}
	if len(owners) != rows {
		t.Errorf("%d intents claimed, want %d", len(owners), rows)
	}
	o.assertStatuses(map[string]int{"in_progress": rows})
}

// plainClaim is the obvious claim. A plan may execute its subquery once for each row, and the subquery finds other rows
// each time.
const plainClaim = `
	DELETE FROM outbox.queue WHERE ctid IN (
	  SELECT ctid FROM outbox.queue WHERE provider = 'sim' AND next_attempt_at <= now()
	  ORDER BY tenant, next_attempt_at, intent_id LIMIT $1 FOR UPDATE SKIP LOCKED)`

func TestTheLimitHoldsUnderABadPlan(t *testing.T) {
	t.Parallel()
	const rows, limit = 100, 3
	nestedLoop := []string{"hashjoin", "mergejoin", "material", "hashagg", "sort"}
	for name, without := range map[string][]string{
		"a nested loop":            nestedLoop,
		"a nested loop, no ctid":   append([]string{"tidscan"}, nestedLoop...),
		"a nested loop, no choice": append([]string{"tidscan", "seqscan", "indexonlyscan", "bitmapscan"}, nestedLoop...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.exec(`ALTER TABLE outbox.queue SET (autovacuum_enabled = off)`) // its statistics may lead to another plan
			for _, plan := range without {
				o.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_` + plan + ` = off', current_database()); END $$`)
			}
			o.db.Reset() // open connections keep the old settings
			o.enqueue("run", 0, rows)
			o.enqueueTool("other/act", "run", rows)
			if claimed := o.claimPlainly(limit); claimed <= limit {
				t.Fatalf("the plan is not bad: the plain claim took %d rows", claimed)
			}
			fault.Injected(t, 28, 1)
			reply := o.batch(o.join(), drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: limit, Parts: after(beginning)}, {Provider: "other", Server: "other", Limit: 2 * limit, Parts: after(beginning)}}})
			if own, others := len(reply.Claimed[0].Rows), len(reply.Claimed[1].Rows); own != limit || others != 2*limit {
				t.Errorf("claimed %d and %d rows, want %d and %d", own, others, limit, 2*limit)
			}
		})
	}
}

// claimPlainly returns how many rows the plain claim takes, and rolls it back.
func (o *outbox) claimPlainly(limit int) int64 {
	o.t.Helper()
	tx, err := o.db.Begin(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	defer tx.Rollback(o.t.Context())
	tag, err := tx.Exec(o.t.Context(), plainClaim, limit)
	if err != nil {
		o.t.Fatal(err)
	}
	return tag.RowsAffected()
}

func TestALockedRowIsPassedOver(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 3)
	tx := drainertest.Begin(t, o.db)
	drainertest.Exec(t, tx, `SELECT FROM outbox.queue ORDER BY next_attempt_at, intent_id LIMIT 1 FOR UPDATE`)
	if claimed := o.claim(o.join(), 10); len(claimed) != 2 {
		t.Errorf("claimed %d rows, want the 2 that nobody holds", len(claimed))
	}
}

func TestRowsCarryWhatWasCommitted(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`SELECT outbox.enqueue('run-ü', 'step', 'sim/act', 'scope', '{"n": 12345678901234567890}', NULL, '{"traceparent": "00-a", "n": 1}')`)
	row := o.claim(o.join(), 1)[0]
	want := dispatch.Tuple{AgentRunID: "run-ü", StepID: "step", ToolName: "sim/act", BusinessScope: "scope"}
	if row.Tuple != want || row.Attempt != 1 || row.Tries != 1 || row.FirstAttemptAt != nil {
		t.Errorf("%+v", row)
	}
	if string(row.Payload) != `{"n": 12345678901234567890}` || row.Headers["traceparent"] != "00-a" {
		t.Errorf("payload %s, headers %v", row.Payload, row.Headers)
	}
}

func TestRowsComeInTheOrderTheyAreDue(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 6)
	o.exec(`SELECT outbox.enqueue('later', 'step', 'sim/act', 'scope', '{}', now() + interval '1 hour')`)
	worker := o.join()
	first := o.batch(worker, claimOf(4)).Claimed[0]
	behind := drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 10, Parts: after(last(first))}}}
	second := o.batch(worker, behind).Claimed[0]
	if got := slices.Concat(ids(first.Rows), ids(second.Rows)); len(got) != 6 || !slices.IsSorted(got) {
		t.Errorf("claimed %v, want the six due ones in order", got)
	}
	o.settle(worker, dispatch.Released, first.Rows...)
	if rows := o.batch(worker, behind).Claimed[0].Rows; len(rows) != 4 {
		t.Errorf("%d rows put back are behind the cursor", 4-len(rows))
	}
}

func TestAWorkerThatWasDeclaredDeadClaimsNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	worker := o.join()
	o.declareDead(worker)
	if claimed := o.claim(worker, 1); len(claimed) != 0 {
		t.Error("a dead worker claimed a row")
	}
	if alive, err := o.Beat(t.Context(), worker); alive || err != nil {
		t.Errorf("a dead worker beats: %v, %v", alive, err)
	}
	o.assertStatuses(map[string]int{"pending": 1})
}

func TestAPausedProviderIsNotClaimed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.exec(`UPDATE outbox.provider SET paused = true WHERE name = 'sim'`)
	if claimed := o.claim(worker, 1); len(claimed) != 0 {
		t.Error("a row of a paused provider was claimed")
	}
	o.exec(`UPDATE outbox.provider SET paused = false WHERE name = 'sim'`)
	if claimed := o.claim(worker, 1); len(claimed) != 1 {
		t.Error("the row did not survive the pause")
	}
}

func TestForwardRowsOfACompensatedRunAreStopped(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("doomed", 0, 2)
	o.settle(worker, dispatch.Ambiguous, o.claim(worker, 1)...)
	o.enqueue("other", 0, 1)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('doomed', 1)`)
	rows := o.claim(worker, 10)
	if len(rows) != 2 || !rows[0].Closed || rows[0].Tuple.AgentRunID != "doomed" || rows[1].Closed {
		t.Errorf("claimed %+v, want what may have been applied, not to be sent, and the other run's", rows)
	}
	o.assertStatuses(map[string]int{"cancelled": 1, "in_progress": 2})
}

func TestProducersNotifyOnlyWhileALaneWaits(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	notified := drainertest.Listen(t, o.db, "outbox")
	mark := func(mark drainer.IdleMark) {
		o.batch(worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1, Idle: mark}}})
	}
	o.enqueue("run", 0, 1) // no lane waits yet
	mark(drainer.IdleWaiting)
	o.enqueue("run", 1, 2)
	mark(drainer.IdleBusy)
	o.enqueue("run", 2, 3)
	if got := notified(); !slices.Equal(got, []string{"sim"}) {
		t.Errorf("notified %q, want one of sim", got)
	}
}

// together runs the test with lanes that claim with a statement each, as full scans do, and with lanes that share one
// statement, as they do when they follow their cursors.
func together(t *testing.T, test func(t *testing.T, o *outbox, begin drainer.Cursor)) {
	t.Helper()
	t.Parallel()
	for name, begin := range map[string]drainer.Cursor{
		"one statement each": {},
		"one statement":      beginning,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newOutbox(t), begin)
		})
	}
}

func TestLanesShareATurnAndKeepTheirRowsApart(t *testing.T) {
	together(t, lanesShareATurnAndKeepTheirRowsApart)
}

func lanesShareATurnAndKeepTheirRowsApart(t *testing.T, o *outbox, begin drainer.Cursor) {
	t.Helper()
	worker := o.join()
	o.enqueue("run", 0, 3)
	o.enqueueTool("other/act", "run", 2)
	settled := o.claim(worker, 1)
	batch := settling(dispatch.Completed, settled...)
	batch.Settle = append(batch.Settle, ended(&drainer.Row{ClaimID: 999, IntentID: settled[0].IntentID, Attempt: 7}, dispatch.Completed))
	batch.Claims = []drainer.Claim{
		{Provider: "sim", Server: "sim", Limit: 10, Parts: after(begin)},
		{Provider: "idle", Server: "idle"},
		{Provider: "other", Server: "other", Limit: 10, Parts: after(begin)},
	}
	reply := o.batch(worker, batch)
	counts := []int{len(reply.Claimed[0].Rows), len(reply.Claimed[1].Rows), len(reply.Claimed[2].Rows)}
	if !slices.Equal(counts, []int{2, 0, 2}) {
		t.Errorf("claimed %v rows, want 2, 0 and 2", counts)
	}
	for _, row := range reply.Claimed[2].Rows {
		if row.Tuple.Provider() != "other" {
			t.Errorf("a row of %s in the reply to other", row.Tuple.Provider())
		}
	}
	if stored[int](o, `SELECT count(*) FROM outbox.claim`) != 2 {
		t.Error("each provider's rows want a claim of their own, and the settled one none")
	}
}

// The second claim of a lane, and the claim of its detour, can share a batch with the lane's first claim.
func TestClaimsOfOneProviderShareATurnAndNoRow(t *testing.T) {
	together(t, claimsOfOneProviderShareATurnAndNoRow)
}

func claimsOfOneProviderShareATurnAndNoRow(t *testing.T, o *outbox, begin drainer.Cursor) {
	t.Helper()
	const rows = 5
	worker := o.join()
	o.enqueue("run", 0, rows)
	claim := drainer.Claim{Provider: "sim", Server: "sim", Limit: 2, Parts: after(begin)}
	other := drainer.Claim{Provider: "other", Server: "other", Limit: 2, Parts: after(begin)}
	reply := o.batch(worker, drainer.Batch{Claims: []drainer.Claim{claim, claim, other, claim}})
	claimed := map[int64]bool{}
	for i, want := range []int{2, 2, 0, 1} {
		if got := len(reply.Claimed[i].Rows); got != want || reply.Claimed[i].Found != want {
			t.Errorf("claim %d: %d rows of %d, want %d", i, got, reply.Claimed[i].Found, want)
		}
		for _, row := range reply.Claimed[i].Rows {
			claimed[row.IntentID] = true
		}
	}
	if len(claimed) != rows {
		t.Errorf("%d intents claimed, want %d", len(claimed), rows)
	}
}

// The next claim of a lane continues after the last row that the lane found.
func TestEachLaneOfATurnHasItsOwnGateLimitCursorAndClaim(t *testing.T) {
	together(t, eachLaneOfATurnHasItsOwnGateLimitCursorAndClaim)
}

func eachLaneOfATurnHasItsOwnGateLimitCursorAndClaim(t *testing.T, o *outbox, begin drainer.Cursor) {
	t.Helper()
	worker := o.join()
	o.enqueueTool("paused/act", "run", 2)  // 1 and 2
	o.enqueueTool("down/act", "run", 3)    // 3 to 5
	o.enqueueTool("backup/act", "run", 3)  // 6 to 8
	o.enqueueTool("busy/act", "doomed", 1) // 9
	o.enqueueTool("busy/act", "run", 3)    // 10 to 12
	o.exec(`INSERT INTO outbox.provider (name, paused) VALUES ('paused', true)`)
	o.shutOff("down")
	o.open("backup")
	o.exec(`INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('doomed', 9)`)
	lanes := []struct {
		claim  drainer.Claim
		found  int
		rows   []int64
		via    string
		cursor int64
	}{
		{drainer.Claim{Provider: "paused", Server: "paused", Limit: 9, Parts: after(begin)}, 0, nil, "", 0},
		{drainer.Claim{Provider: "down", Server: "backup", Fallback: "backup", Limit: 2, Parts: after(begin)}, 2, []int64{3, 4}, "backup", 4},
		{drainer.Claim{Provider: "none", Server: "none", Limit: 9, Parts: after(begin)}, 0, nil, "", 0},
		{drainer.Claim{Provider: "backup", Server: "backup", Limit: 9, Parts: after(o.placeOf(6))}, 2, []int64{7, 8}, "", 8},
		{drainer.Claim{Provider: "busy", Server: "busy", Limit: 2, Parts: after(begin)}, 2, []int64{10}, "", 10}, // it also finds 9, which is stopped
	}
	var batch drainer.Batch
	for _, lane := range lanes {
		batch.Claims = append(batch.Claims, lane.claim)
	}
	reply := o.batch(worker, batch)
	var claimed []*drainer.Row
	for i, lane := range lanes {
		got := reply.Claimed[i]
		if got.Found != lane.found || !slices.Equal(ids(got.Rows), lane.rows) || last(got).IntentID != lane.cursor {
			t.Errorf("%s: found %d rows, claimed %v, up to %d, want %d, %v, %d",
				lane.claim.Provider, got.Found, ids(got.Rows), last(got).IntentID, lane.found, lane.rows, lane.cursor)
		}
		for _, row := range got.Rows {
			if row.Via != lane.via {
				t.Errorf("%s: intent %d goes to %q, want %q", lane.claim.Provider, row.IntentID, row.Via, lane.via)
			}
			if !stored[bool](o, `SELECT (provider, server) = ($2, $3) FROM outbox.claim WHERE claim_id = $1`, row.ClaimID, lane.claim.Provider, lane.claim.Server) {
				t.Errorf("%s: intent %d stands in another lane's claim", lane.claim.Provider, row.IntentID)
			}
		}
		claimed = append(claimed, got.Rows...)
	}
	if reply := o.settle(worker, dispatch.Completed, claimed...); len(reply.Refused) != 0 {
		t.Errorf("outcomes %v are refused", reply.Refused)
	}
	o.assertStatuses(map[string]int{"completed": len(claimed), "cancelled": 1, "in_progress": 0})
}

// placeOf returns the place of a queued intent.
func (o *outbox) placeOf(intent int64) drainer.Cursor {
	o.t.Helper()
	return drainer.Cursor{IntentID: intent, NextAttemptAt: stored[time.Time](o, `SELECT next_attempt_at FROM outbox.queue WHERE intent_id = $1`, intent)}
}

// withFallback claims for a worker's two lanes, one for each server, and returns the rows.
func (o *outbox) withFallback(worker string) []*drainer.Row {
	o.t.Helper()
	reply := o.batch(worker, drainer.Batch{Claims: []drainer.Claim{
		{Provider: "sim", Server: "sim", Fallback: "backup", Limit: 10},
		{Provider: "sim", Server: "backup", Fallback: "backup", Limit: 10},
	}})
	return append(reply.Claimed[0].Rows, reply.Claimed[1].Rows...)
}

func (o *outbox) shutOff(provider string) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.provider (name, state, open_until) VALUES ($1, 'open', now() + interval '1 hour')
		ON CONFLICT (name) DO UPDATE SET state = excluded.state, open_until = excluded.open_until`, provider)
}

func (o *outbox) open(provider string) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.provider (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET state = 'closed', open_until = NULL`, provider)
}

// newDetour returns an outbox with one due row. The breakers of its provider and of the fallback are closed.
func newDetour(t *testing.T) (o *outbox, worker string) {
	t.Helper()
	o = newOutbox(t)
	worker = o.join()
	o.open("sim")
	o.open("backup")
	o.enqueue("run", 0, 1)
	return o, worker
}

func TestAFallbackServesOnlyWhileTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(*outbox)
		via     string
		claimed int
	}{
		{"the provider is well", func(*outbox) {}, "", 1},
		{"its breaker is open", func(o *outbox) { o.shutOff("sim") }, "backup", 1},
		{"both are open", func(o *outbox) { o.shutOff("sim"); o.shutOff("backup") }, "", 0},
		{"the fallback is paused", func(o *outbox) {
			o.shutOff("sim")
			o.exec(`UPDATE outbox.provider SET paused = true WHERE name = 'backup'`)
		}, "", 0},
		{"the provider is paused", func(o *outbox) {
			o.shutOff("sim")
			o.exec(`UPDATE outbox.provider SET paused = true WHERE name = 'sim'`)
		}, "", 0},
	} {
		o := newOutbox(t)
		worker := o.join()
		o.open("backup")
		o.enqueue("run", 0, 1)
		test.prepare(o)
		rows := o.withFallback(worker)
		if len(rows) != test.claimed || (len(rows) > 0 && rows[0].Via != test.via) {
			t.Errorf("%s: claimed %d rows, %+v", test.name, len(rows), rows)
		}
	}
}

func TestWhatMayHaveBeenAppliedDoesNotChangeHands(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.open("backup")
	o.enqueue("own", 0, 1)
	o.settle(worker, dispatch.Ambiguous, o.claim(worker, 1)...)
	o.shutOff("sim")
	o.enqueue("fallen", 0, 1)
	fallen := o.withFallback(worker)
	if len(fallen) != 1 || fallen[0].Tuple.AgentRunID != "fallen" {
		t.Fatalf("the fallback got intents %v, want only the one that nobody may have applied", ids(fallen))
	}
	o.settle(worker, dispatch.Ambiguous, fallen...)

	o.open("sim")
	o.shutOff("backup")
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "" || rows[0].Tuple.AgentRunID != "own" {
		t.Errorf("its own provider got %+v, want what it may have applied itself", rows)
	}
	o.open("backup")
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "backup" || rows[0].Tuple.AgentRunID != "fallen" {
		t.Errorf("the fallback got %+v, want what it may have applied, although its own provider is well", rows)
	}
	if by := stored[string](o, `SELECT served_by FROM outbox.attempt WHERE served_by IS NOT NULL`); by != "backup" {
		t.Errorf("the attempt says that %q served it", by)
	}
}

func TestALostWorkerLeavesNoDoubtWhoServed(t *testing.T) {
	t.Parallel()
	o, worker := newDetour(t)
	o.shutOff("sim")
	o.withFallback(worker)
	o.declareDead(worker)
	o.successor()
	if lost := o.reap(); len(lost) != 1 || lost[0].Row.Via != "backup" {
		t.Fatalf("reaped %+v", lost)
	}
	o.open("sim")
	if rows := o.withFallback(o.successor()); len(rows) != 1 || rows[0].Via != "backup" || !rows[0].MaybeApplied {
		t.Errorf("claimed %+v, want the row back at the fallback", rows)
	}
}

// loseCommits records a loss of commits, which puts all queued rows in doubt.
func (o *outbox) loseCommits() {
	o.t.Helper()
	o.exec(`UPDATE outbox.history SET era = era + 1, doubted_before = era + 1, doubted_through = (SELECT max(id) FROM outbox.intent)
		WHERE id = (SELECT max(id) FROM outbox.history)`)
}

func TestAfterLostCommitsAProviderAndItsFallbackMayBothHaveServed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(o *outbox, worker string)
		via     string
	}{
		"its own provider is well":         {func(*outbox, string) {}, "sim"},
		"the fallback had it, as recorded": {func(o *outbox, _ string) { o.exec(`UPDATE outbox.queue SET via = 'backup', maybe_applied = true`) }, "sim"},
		"it is an undo": {func(o *outbox, worker string) {
			o.settle(worker, dispatch.Completed, o.withFallback(worker)...)
			o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates, tenant)
				SELECT 'run', 'compensate:1', 'sim/undo', 'scope', '{}', id, tenant FROM outbox.intent`)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, worker := newDetour(t)
			test.prepare(o, worker)
			o.loseCommits()
			rows := o.withFallback(worker)
			if len(rows) != 1 || rows[0].Via != test.via || !rows[0].MaybeApplied {
				t.Fatalf("claimed %+v, want via %q and doubt", rows, test.via)
			}
			o.declareDead(worker)
			worker = o.successor()
			o.reap()
			if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != test.via {
				t.Errorf("claimed again %+v, want via %q still", rows, test.via)
			}
			o.enqueue("new", 0, 1)
			if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "" || rows[0].MaybeApplied {
				t.Errorf("claimed %+v, want what came since in no doubt", rows)
			}
		})
	}
}

// A claim may be older than the lost commits. It does not show whether they requeued its rows, and whether the other
// provider served the rows.
func TestAfterLostCommitsWhatAnEarlierClaimHeldIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(o *outbox, worker string, rows []*drainer.Row){
		"a reaper takes it back": func(o *outbox, worker string, _ []*drainer.Row) {
			o.declareDead(worker)
			o.reap()
		},
		"its lane releases what it does not remember": func(o *outbox, worker string, rows []*drainer.Row) {
			for _, server := range []string{"sim", "backup"} {
				if _, err := o.Reclaim(o.t.Context(), worker, "sim", server, nil, as(dispatch.Released)); err != nil {
					o.t.Fatal(err)
				}
			}
		},
		"its worker settles it": func(o *outbox, worker string, rows []*drainer.Row) { o.settle(worker, dispatch.Throttled, rows...) },
		"its worker parks it": func(o *outbox, worker string, rows []*drainer.Row) {
			o.batch(worker, parking([]int64{rows[0].ClaimID}, rows...))
			if err := o.Unpark(o.t.Context(), []string{"sim/act"}, nil); err != nil {
				o.t.Fatal(err)
			}
		},
	} {
		for _, server := range []string{"sim", "backup"} {
			t.Run(name+" at "+server, func(t *testing.T) {
				t.Parallel()
				o, worker := newDetour(t)
				if server != "sim" {
					o.shutOff("sim")
				}
				before := o.withFallback(worker)
				o.open("sim")
				o.loseCommits()
				o.successor()
				end(o, worker, before)
				o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
				if rows := o.withFallback(o.successor()); len(rows) != 1 || rows[0].Via != "sim" || !rows[0].MaybeApplied || rows[0].FirstAttemptAt == nil {
					t.Errorf("claimed %+v, want it in doubt at either provider", rows)
				}
			})
		}
	}
}

func TestAClaimMadeAfterLostCommitsLeavesNoDoubtOfThem(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.open("sim")
	o.open("backup")
	o.enqueue("run", 0, 1)
	o.loseCommits()
	o.enqueue("new", 0, 1)
	worker := o.join()
	rows := o.withFallback(worker)
	// a lookup found that the older one had no effect
	for _, row := range rows {
		row.MaybeApplied = false
	}
	o.settle(worker, dispatch.Throttled, rows...)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
	for _, row := range o.withFallback(worker) {
		if row.Via != "" || row.MaybeApplied {
			t.Errorf("claimed again %+v, want no new doubt", row)
		}
	}
}

// There may be no other due row that could probe the gate, and no other lane claims these rows.
func TestWhatEitherProviderMayHaveServedEndsBehindAShutGate(t *testing.T) {
	t.Parallel()
	for operation, shut := range map[string]string{
		"":    `UPDATE outbox.provider SET state = 'open', open_until = now() WHERE name = 'sim'`,
		"act": `INSERT INTO outbox.tool (name, state, open_until) VALUES ('sim/act', 'open', now())`,
	} {
		o, worker := newDetour(t)
		o.loseCommits()
		o.settle(worker, dispatch.Released, o.withFallback(worker)...)
		o.exec(shut)
		if operation != "" {
			o.exec(`UPDATE outbox.queue SET provider = 'sim/act'`)
		}
		reply := o.batch(worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Operation: operation, Fallback: "backup", Limit: 1, ProbeFor: time.Hour}}})
		if rows := reply.Claimed[0].Rows; len(rows) != 1 || rows[0].Via != "sim" || rows[0].Probe == "" {
			t.Errorf("operation %q: the probe claimed %+v, want the row that either may have served", operation, rows)
		}
	}
}

func TestAFallbackOfItsOwnIsProbedWithWhatItIsToServe(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.shutOff("sim")
	o.open("backup")
	o.exec(`UPDATE outbox.provider SET state = 'open', open_until = now() WHERE name = 'backup'`)
	o.enqueue("run", 0, 3)
	reply := o.batch(worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "backup", Fallback: "backup", Limit: 1, ProbeFor: time.Hour}}})
	if rows := reply.Claimed[0].Rows; len(rows) != 1 || rows[0].Probe != "backup" || rows[0].Via != "backup" {
		t.Errorf("claimed %+v, want one row to try the fallback with", rows)
	}
}

func TestWhatAForgottenFallbackMayHaveAppliedIsNotLeftLying(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.exec(`UPDATE outbox.queue SET via = 'removed', maybe_applied = true`)
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "removed" {
		t.Errorf("claimed %+v, want the row, for the provider's own lane to say what is missing", rows)
	}
}

func TestAnUndoGoesToWhoeverHadTheEffect(t *testing.T) {
	t.Parallel()
	o, worker := newDetour(t)
	o.shutOff("sim")
	o.settle(worker, dispatch.Completed, o.withFallback(worker)...)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates, tenant)
		SELECT 'run', 'compensate:1', 'sim/undo', 'scope', '{}', id, tenant FROM outbox.intent`)
	if rows := o.withFallback(worker); len(rows) != 0 {
		t.Errorf("claimed %+v, want the undo to wait for its own provider", rows)
	}
	o.open("sim")
	if rows := o.withFallback(worker); len(rows) != 1 || rows[0].Via != "" {
		t.Errorf("claimed %+v, want the undo at its own provider", rows)
	}
}

// inDoubt settles a row so that it is looked up next.
func (o *outbox) inDoubt(worker string, row *drainer.Row, reference string) {
	o.t.Helper()
	batch := settling(dispatch.Ambiguous, row)
	batch.Settle[0].Result.ProviderRef = reference
	batch.Settle[0].Decision = dispatch.Decision{Status: dispatch.StatusUnknown, Tries: row.Tries, MaybeApplied: true, Lookup: true}
	o.batch(worker, batch)
}

func (o *outbox) openIncidents() int {
	o.t.Helper()
	return stored[int](o, `SELECT count(*)::int FROM outbox.incident WHERE kind = 'outcome_unknown' AND acknowledged_at IS NULL`)
}

func TestARowInDoubtComesBackToBeLookedUp(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.inDoubt(worker, o.claim(worker, 1)[0], "ch_1")
	o.assertStatuses(map[string]int{"unknown": 1})

	rows := o.claim(worker, 1)
	if len(rows) != 1 || !rows[0].Lookup || rows[0].ProviderRef != "ch_1" {
		t.Fatalf("claimed %+v, want a lookup with the earlier reference", rows)
	}
	o.assertStatuses(map[string]int{"unknown": 1})
	o.settle(worker, dispatch.Completed, rows...)
	o.assertStatuses(map[string]int{"completed": 1})
	if attempts := stored[int](o, `SELECT attempts FROM outbox.status`); attempts != 1 || o.openIncidents() != 0 {
		t.Errorf("%d attempts and %d incidents, want the lookup not to count and nobody to be called", attempts, o.openIncidents())
	}
}

func TestALookupSurvivesItsWorkerAndItsRunsSaga(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.inDoubt(worker, o.claim(worker, 1)[0], "")
	o.exec(`INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('run', 1)`)
	o.claim(worker, 1)
	o.declareDead(worker)
	lost, err := o.Reap(t.Context(), []string{"sim"}, func(row *drainer.Row) (drainer.Settlement, bool) {
		settlement := ended(row, dispatch.Lost)
		settlement.Decision = dispatch.Decision{Status: dispatch.StatusUnknown, MaybeApplied: true, Lookup: row.Lookup}
		return settlement, true
	})
	if err != nil || len(lost) != 1 {
		t.Fatalf("reaped %d rows: %v", len(lost), err)
	}
	if rows := o.claim(o.join(), 1); len(rows) != 1 || !rows[0].Lookup {
		t.Errorf("claimed %+v, want the lookup again", rows)
	}
}

func TestWhatNobodyCanTellIsAnIncidentInTheSameCommit(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 3)
	rows := o.claim(worker, 3)
	batch := settling(dispatch.Ambiguous, rows...)
	batch.Settle[0].Decision = dispatch.Decision{Status: dispatch.StatusUnknown, MaybeApplied: true}
	batch.Settle[1].Decision = dispatch.Decision{Status: dispatch.StatusFailed}
	o.batch(worker, batch)
	if o.openIncidents() != 1 {
		t.Fatalf("%d incidents are open, want one, for the unknown row", o.openIncidents())
	}
	o.batch(worker, batch)
	if o.openIncidents() != 1 {
		t.Error("settling again opened another incident")
	}
}

func TestAFirstReplayIsAnIncidentInTheSameCommit(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	o.settle(worker, dispatch.Released, o.claim(worker, 2)...)
	rows := o.claim(worker, 2)
	batch := settling(dispatch.Completed, rows...)
	for i, row := range rows {
		if row.FirstAttemptAt != nil {
			t.Errorf("intent %d was given back unsent, and counts as sent", row.IntentID)
		}
		batch.Settle[i].Result.Replayed = true
	}
	batch.Settle[0].Foreign = true
	for range 2 { // settling again changes nothing
		o.batch(worker, batch)
		if got := drainertest.Column[string](t, o.db, `SELECT kind || ' ' || intent_id FROM outbox.incident WHERE acknowledged_at IS NULL`); len(got) != 1 || got[0] != fmt.Sprintf("first_replay %d", rows[0].IntentID) {
			t.Errorf("open incidents are %v, want one, for intent %d", got, rows[0].IntentID)
		}
	}
	if completed := drainertest.Value[int](t, o.db, `SELECT count(*)::int FROM outbox.status WHERE status = 'completed'`); completed != 2 {
		t.Errorf("%d are completed, want both", completed)
	}
}

func TestAnIncidentThatComesBackIsOpenAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	unknown := func(row *drainer.Row) {
		batch := settling(dispatch.Ambiguous, row)
		batch.Settle[0].Decision = dispatch.Decision{Status: dispatch.StatusUnknown, MaybeApplied: true}
		o.batch(worker, batch)
	}
	row := o.claim(worker, 1)[0]
	unknown(row)
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now(), acknowledged_by = 'on-call'`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, next_attempt_at) VALUES ($1, $2, 'operator:on-call', 'retried', 'pending', now())`, row.IntentID, row.Attempt+1)
	o.exec(`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt) VALUES ('sim', now(), $1, $2, $3)`, row.IntentID, row.Tuple.AgentRunID, row.Attempt+1)
	unknown(o.claim(worker, 1)[0])
	if o.openIncidents() != 1 {
		t.Error("the second unknown outcome pages nobody")
	}
}

// The rows of one claim are read into shared memory, and settled as arrays. No row may get a value of another row. The
// mode exec is the protocol for poolers.
func TestRowsThatGoTogetherKeepWhatIsTheirOwn(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			o := newOutboxIn(t, mode)
			worker := o.join()
			o.enqueue("run", 0, 1)
			o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers)
				VALUES ('run', 'with headers', 'sim/act', 'scope', '{"n": 1}', '{"traceparent": "00-1"}')`)
			o.enqueue("run", 2, 3)

			rows := inOrder(o.claim(worker, 3))
			batch := drainer.Batch{Finish: []int64{rows[0].ClaimID}, Settle: []drainer.Settlement{
				ended(rows[0], dispatch.Ambiguous), ended(rows[1], dispatch.NotSent), ended(rows[2], dispatch.Completed),
			}}
			batch.Settle[0].Result.HTTPStatus, batch.Settle[0].Result.ErrorClass = 502, `http_"502"`
			batch.Settle[2].Result.Response = json.RawMessage(`{"id": "eff, {1}"}`)
			o.batch(worker, batch)
			got := stored[string](o, `SELECT string_agg(concat_ws('|', outcome, status, http_status, error, response), ' ' ORDER BY intent_id) FROM outbox.attempt`)
			if want := `ambiguous|pending|502|http_"502" not_sent|pending completed|completed|{"id": "eff, {1}"}`; got != want {
				t.Errorf("settled as\n%s, want\n%s", got, want)
			}

			again := inOrder(o.claim(worker, 3))
			if len(again) != 2 {
				t.Fatalf("claimed %d rows again, want 2", len(again))
			}
			doubted, unsent := again[0], again[1]
			if doubted.FirstAttemptAt == nil || !doubted.MaybeApplied || doubted.Headers != nil || string(doubted.Payload) != `{"n": 0}` {
				t.Errorf("the row in doubt comes back as %+v", doubted)
			}
			if unsent.FirstAttemptAt != nil || unsent.MaybeApplied || unsent.Headers["traceparent"] != "00-1" || string(unsent.Payload) != `{"n": 1}` {
				t.Errorf("the row that was not sent comes back as %+v", unsent)
			}
		})
	}
}

func newOutboxIn(t *testing.T, mode string) *outbox {
	t.Helper()
	address := drainertest.Database(t)
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := parsed.Query()
	query.Set("default_query_exec_mode", mode)
	parsed.RawQuery = query.Encode()
	return openOutbox(t, address, parsed.String())
}

func inOrder(rows []*drainer.Row) []*drainer.Row {
	slices.SortFunc(rows, func(a, b *drainer.Row) int { return int(a.IntentID - b.IntentID) })
	return rows
}

// A batch's plans are made once, here for an empty queue, and no statistics tell the planner that the queue grew.
func TestAQueueThatGrewUnseenIsNotReadWhole(t *testing.T) {
	t.Parallel()
	const queued, claims, each = 20_000, 10, 10
	o := newOutbox(t)
	o.exec(`ALTER TABLE outbox.queue SET (autovacuum_enabled = off)`)
	worker := o.join()
	o.claimAgainAndAgain(worker, claims, each)
	o.enqueue("run", 0, queued)
	if claimed := o.claimAgainAndAgain(worker, claims, each); claimed != claims*each {
		t.Fatalf("claimed %d rows, want %d", claimed, claims*each)
	}
	if read := o.read("outbox.queue", claims*each); read > queued {
		t.Errorf("to claim %d of %d rows, %d were read", claims*each, queued, read)
	}
}

// claim.sql has a constant limit, which only the planner needs.
func TestTheLargestLaneClaimsAllItHasRoomForAtOnce(t *testing.T) {
	t.Parallel()
	const concurrency, prefetched = 10_000, 1_750 // the most that a file may configure, and the most that wait for a dispatcher
	o := newOutbox(t)
	o.enqueue("run", 0, concurrency+prefetched)
	if claimed := o.claimAgainAndAgain(o.join(), 1, concurrency+prefetched); claimed != concurrency+prefetched {
		t.Errorf("claimed %d rows, want %d", claimed, concurrency+prefetched)
	}
}

// Most outboxes have had no undo before a provider fails and thousands of runs are rolled back.
func TestOfManyUndosOnlyThoseThatAreClaimedAreRead(t *testing.T) {
	t.Parallel()
	const undos, claims, each = 5_000, 10, 10
	o := newOutbox(t)
	o.exec(`ALTER TABLE outbox.intent SET (autovacuum_enabled = off)`)
	o.exec(`ALTER TABLE outbox.queue SET (autovacuum_enabled = off)`)
	o.enqueue("run", 0, 1000)
	o.exec(`ANALYZE outbox.intent`)
	worker := o.join()
	o.claimAgainAndAgain(worker, claims, each)
	o.exec(`DELETE FROM outbox.queue`)
	o.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('back')`)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		SELECT 'back', 'compensate:' || n, 'sim/act', 'scope', '{}', -n FROM generate_series(1, $1::int) n`, undos)
	if claimed := o.claimAgainAndAgain(worker, claims, each); claimed != claims*each {
		t.Fatalf("claimed %d undos, want %d", claimed, claims*each)
	}
	if read := o.read("outbox.intent", claims*each); read > undos {
		t.Errorf("to claim %d of %d undos, %d intents were read", claims*each, undos, read)
	}
}

// read returns how many rows of the table were read. The sessions report that when they end, so read closes the store
// and waits until the number is at least atLeast.
func (o *outbox) read(table string, atLeast int) (read int) {
	o.t.Helper()
	o.Close()
	deadline := time.Now().Add(patience)
	for read < atLeast {
		if time.Now().After(deadline) {
			o.t.Fatalf("%d rows of %s were read, want at least %d", read, table, atLeast)
		}
		if err := o.db.QueryRow(o.t.Context(), `
			SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
			WHERE relid = $1::text::regclass`, table).Scan(&read); err != nil {
			o.t.Fatal(err)
		}
	}
	return read
}

// claimAgainAndAgain reads nothing except its claims, because the statistics count every read.
func (o *outbox) claimAgainAndAgain(worker string, claims, each int) (claimed int) {
	o.t.Helper()
	for range claims {
		reply, err := o.Commit(o.t.Context(), worker, claimOf(each))
		if err != nil {
			o.t.Fatal(err)
		}
		claimed += len(reply.Claimed[0].Rows)
	}
	return claimed
}

// ofTenant enqueues that many rows for a tenant, and creates the tenant first. No test's login has its number.
func (o *outbox) ofTenant(tenant, weight, rows int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.tenant (tenant_id, name, role, weight) OVERRIDING SYSTEM VALUE VALUES ($1::smallint, 't' || $1, 't' || $1, $2)
		ON CONFLICT DO NOTHING`, tenant, weight)
	o.enqueueTool("sim/act", fmt.Sprintf("run-%d", tenant), rows)
	o.exec(`UPDATE outbox.intent SET tenant = $1 WHERE agent_run_id = 'run-' || $1::int`, tenant)
	o.exec(`UPDATE outbox.queue SET tenant = $1 WHERE agent_run_id = 'run-' || $1::int`, tenant)
}

func foundOf(reply drainer.ClaimReply) map[int16]int {
	found := map[int16]int{}
	for _, taken := range reply.Of {
		found[taken.Tenant] = taken.Found
	}
	return found
}

func TestAClaimIsDividedByWeightAmongTenantsThatAreDue(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	for tenant := 100; tenant < 170; tenant++ { // none of their rows is due
		o.ofTenant(tenant, 1, 1)
	}
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour'`)
	o.ofTenant(200, 1, 20)
	o.ofTenant(201, 3, 20)
	o.ofTenant(202, 1, 20)
	claim := func(limit int, parts ...drainer.Part) drainer.ClaimReply {
		return o.batch(worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: limit, Parts: parts}}}).Claimed[0]
	}
	everything := claim(13)
	if want := map[int16]int{200: 3, 201: 7, 202: 3}; !maps.Equal(foundOf(everything), want) {
		t.Errorf("a search finds %v, want %v", foundOf(everything), want)
	}
	one := everything.Of[0]
	for name, test := range map[string]struct {
		limit int
		parts []drainer.Part
		want  map[int16]int
	}{
		"one of them":                          {9, []drainer.Part{{First: 201, Last: 201, Limit: 2}}, map[int16]int{201: 2}},
		"the first fill the limit":             {3, []drainer.Part{{First: 202, Last: 202, Limit: 2}, {First: 201, Last: 201, Limit: 2}}, map[int16]int{202: 2, 201: 1}},
		"more tenants than rows":               {2, nil, map[int16]int{200: 1, 201: 1}},
		"a gap without due rows":               {9, []drainer.Part{{Last: 199, Limit: 9}}, map[int16]int{}},
		"a gap, and one that is known":         {9, []drainer.Part{{Last: 200, Limit: 1}, {First: 201, Last: 201, Limit: 2}}, map[int16]int{200: 1, 201: 2}},
		"a tenant's rows from its cursor only": {99, []drainer.Part{{First: one.Tenant, Last: one.Tenant, Limit: 99, After: drainer.Cursor{NextAttemptAt: one.Next.NextAttemptAt.Add(time.Hour)}}}, map[int16]int{}},
	} {
		if got := foundOf(claim(test.limit, test.parts...)); !maps.Equal(got, test.want) {
			t.Errorf("%s: found %v, want %v", name, got, test.want)
		}
	}
	for _, taken := range everything.Of {
		if want := map[int16]int{200: 1, 201: 3, 202: 1}[taken.Tenant]; taken.Weight != want {
			t.Errorf("tenant %d weighs %d, want %d", taken.Tenant, taken.Weight, want)
		}
	}
	if left := claim(100); left.Found != 60-13-2-3-2-3 || left.Rows[0].Tenant < 200 {
		t.Errorf("%d rows are left, the first of tenant %d", left.Found, left.Rows[0].Tenant)
	}
}

// A probe takes the row that failed least, of any tenant.
func TestAProbeChoosesAmongTenants(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.ofTenant(200, 1, 2)
	o.ofTenant(201, 1, 2)
	o.exec(`UPDATE outbox.queue SET tries = CASE tenant WHEN 200 THEN 3 ELSE 1 END`)
	o.exec(`INSERT INTO outbox.provider (name, state, open_until) VALUES ('sim', 'open', now() - interval '1 second')
		ON CONFLICT (name) DO UPDATE SET state = excluded.state, open_until = excluded.open_until`)
	probe := drainer.Claim{Provider: "sim", Server: "sim", Limit: 1, ProbeFor: time.Minute}
	if rows := o.batch(worker, drainer.Batch{Claims: []drainer.Claim{probe}}).Claimed[0].Rows; len(rows) != 1 || rows[0].Tenant != 201 {
		t.Errorf("it tries %v, want a row of tenant 201", ids(rows))
	}
}

const heldOfTenant = `SELECT count(*) FROM outbox.claim c CROSS JOIN unnest(c.intent_ids, c.attempts) AS r (id, attempt)
	JOIN outbox.intent i USING (id) WHERE i.tenant = $1 AND NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = id AND a.attempt = r.attempt)`

// Workers claim at the same time, each over its own connection, and settle the rows that they claimed.
func TestNoWorkersTogetherExceedATenantsLimitInFlight(t *testing.T) {
	t.Parallel()
	const most, rows = 7, 300
	o := newOutbox(t)
	o.ofTenant(200, 1, rows)
	o.ofTenant(201, 1, rows)
	o.exec(`UPDATE outbox.tenant SET max_in_flight = $1 WHERE tenant_id = 200`, most)
	var over, reached, done atomic.Int64
	var fleet sync.WaitGroup
	for _, parts := range [][]drainer.Part{nil, {{First: 200, Last: 200, Limit: 9}}, {{Last: 199, Limit: 9}, {First: 200, Last: 300, Limit: 9}}} {
		worker := o.join()
		fleet.Go(func() {
			var held []*drainer.Row
			for done.Load() < rows && t.Context().Err() == nil {
				batch := settling(dispatch.Completed, held...)
				batch.Claims = []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 10, Parts: parts}}
				reply, err := o.Commit(t.Context(), worker, batch)
				if err != nil {
					t.Error(err)
					return
				}
				for _, row := range held {
					if row.Tenant == 200 {
						done.Add(1)
					}
				}
				held = reply.Claimed[0].Rows
				switch n := drainertest.Value[int64](t, o.db, heldOfTenant, 200); {
				case n > most:
					over.Store(n)
				case n == most:
					reached.Add(1)
				}
			}
		})
	}
	fleet.Wait()
	if over.Load() > 0 || reached.Load() == 0 {
		t.Errorf("%d were in flight, with a limit of %d, which was reached %d times", over.Load(), most, reached.Load())
	}
	drainertest.AssertInvariant(t, o.db)
}

// A tenant's first limit counts the rows that were claimed before it, also in claims with other tenants' rows. It also
// counts the rows of a claim that is in progress.
func TestAFirstLimitInFlightCountsWhatWasClaimedBefore(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.exec(`ALTER FUNCTION outbox.begin_limit SET lock_timeout = 0`) // a slow machine may take longer
	o.ofTenant(200, 1, 40)
	o.ofTenant(201, 1, 40)
	var held []*drainer.Row
	claim := func(limit, settle int) (found int) {
		t.Helper()
		batch := settling(dispatch.Completed, held[:settle]...)
		held, batch.Finish = held[settle:], nil // a claim of both tenants stays
		batch.Claims = []drainer.Claim{{Provider: "sim", Server: "sim", Limit: limit}}
		for _, row := range o.batch(worker, batch).Claimed[0].Rows {
			if row.Tenant == 200 {
				held = append(held, row)
				found++
			}
		}
		return found
	}
	limit := func(most any) { o.exec(`UPDATE outbox.tenant SET max_in_flight = $1 WHERE tenant_id = 200`, most) }
	for range 2 { // before the second time the limit was lifted
		if found := claim(8, 0); found != 4 {
			t.Fatalf("claimed %d rows of the tenant, want half of the claim", found)
		}
		limit(3)
		if found := claim(8, 0); found != 0 {
			t.Errorf("claimed %d rows, %d are in flight, with a limit of 3", found, len(held))
		}
		if found := claim(8, 2); found != 1 || len(held) != 3 {
			t.Errorf("claimed %d rows, %d are in flight, want one more than the two that a limit of 3 left", found, len(held))
		}
		claim(8, 3)
		limit(nil)
		claim(0, 3)
	}

	o.exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(29); RETURN NULL; END'`)
	o.exec(`CREATE TRIGGER wait BEFORE INSERT ON outbox.claim FOR EACH STATEMENT EXECUTE FUNCTION wait()`)
	gate, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	drainertest.Exec(t, gate, `SELECT pg_advisory_xact_lock(29)`)
	var both sync.WaitGroup
	var found atomic.Int64
	begin := func() {
		both.Go(func() {
			reply, err := o.Commit(t.Context(), worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 4, Parts: []drainer.Part{{First: 200, Last: 200, Limit: 4}}}}})
			if err != nil {
				t.Error(err)
				return
			}
			found.Add(int64(len(reply.Claimed[0].Rows)))
		})
	}
	waiting := func(n int) bool {
		return drainertest.Value[int](t, o.db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`) == n
	}
	begin()
	drainertest.AwaitBlocked(t, o.db)
	var isSet atomic.Bool
	both.Go(func() {
		limit(4)
		isSet.Store(true)
	})
	drainertest.Eventually(t, "the limit is set, or waits", func() bool { return isSet.Load() || waiting(2) })
	begin()
	drainertest.Eventually(t, "the second claim waits", func() bool { return isSet.Load() && waiting(2) || waiting(3) })
	if err := gate.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	both.Wait()
	if n := drainertest.Value[int64](t, o.db, heldOfTenant, 200); n != 4 || found.Load() != 4 {
		t.Errorf("%d are in flight, %d of two claims that met the first limit, which is 4", n, found.Load())
	}
}

// A settled row makes room in the same commit, at its own provider only.
func TestATenantsLimitInFlightIsOfEachProvider(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.ofTenant(200, 1, 10)
	o.enqueueTool("other/act", "run-200", 10)
	o.exec(`UPDATE outbox.queue SET tenant = 200`)
	o.exec(`UPDATE outbox.intent SET tenant = 200`)
	o.exec(`UPDATE outbox.tenant SET max_in_flight = 3 WHERE tenant_id = 200`)
	claim := func(settle ...*drainer.Row) []drainer.ClaimReply {
		batch := settling(dispatch.Completed, settle...)
		batch.Finish = nil // the other rows of the claim are not settled
		for _, provider := range []string{"sim", "other"} {
			batch.Claims = append(batch.Claims, drainer.Claim{Provider: provider, Server: provider, Limit: 10, LooksLast: provider == "sim"})
		}
		return o.batch(worker, batch).Claimed
	}
	first := claim()
	if len(first[0].Rows) != 3 || len(first[1].Rows) != 3 {
		t.Fatalf("claimed %d and %d rows, want 3 of each provider", len(first[0].Rows), len(first[1].Rows))
	}
	if second := claim(first[0].Rows[:2]...); len(second[0].Rows) != 2 || len(second[1].Rows) != 0 {
		t.Errorf("claimed %d and %d rows, want as many as were settled, 2 and 0", len(second[0].Rows), len(second[1].Rows))
	} else if !second[0].Held || second[1].Held {
		t.Error("a lane that drains once is not told that rows were held, or one that does not drain once is")
	}
	o.declareDead(worker)
	worker = o.join()
	if rows := claim()[1].Rows; len(rows) != 0 {
		t.Errorf("claimed %d rows though those of a dead worker may still be sent", len(rows))
	}
}

// A search reads only some of the tenants, and none that is at its limit.
func TestTenantsAtTheirLimitsHideNoOther(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	for tenant := 100; tenant < 170; tenant++ {
		o.ofTenant(tenant, 1, 2)
	}
	o.exec(`UPDATE outbox.tenant SET max_in_flight = 1 WHERE tenant_id BETWEEN 100 AND 169`)
	for range 70 {
		if o.claim(worker, 64); drainertest.Value[int](t, o.db, `SELECT count(*) FROM outbox.queue`) == 70 {
			break
		}
	}
	o.ofTenant(200, 1, 1)
	if rows := o.claim(worker, 1); len(rows) != 1 || rows[0].Tenant != 200 {
		t.Errorf("claimed %v, want the row of tenant 200", ids(rows))
	}
}

// A look ahead reads a window of 2000 rows. It takes the last of them, whatever its run is, so that the next look begins
// there.
func TestALookAheadTakesOtherRunsRowsOfItsWindow(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("flood", 0, 1500)
	o.enqueue("lone", 0, 2)
	o.enqueue("flood", 1500, 4000)
	o.enqueue("late", 0, 1)
	claim := func(limit int, part drainer.Part) (runs []string, next drainer.Cursor) {
		part.Limit = limit
		reply := o.batch(worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: limit, Parts: []drainer.Part{part}}}}).Claimed[0]
		for _, row := range reply.Rows {
			runs = append(runs, row.Tuple.AgentRunID)
		}
		return runs, last(reply)
	}
	tenant := drainertest.Value[int16](t, o.db, `SELECT tenant FROM outbox.queue LIMIT 1`)
	front := drainer.Part{First: tenant, Last: tenant, After: beginning}
	_, front.After = claim(10, front)
	ahead := front
	ahead.Ahead, ahead.Crowd = 2000, []string{"flood"}
	for _, step := range []struct {
		limit int
		want  []string
	}{{1, []string{"lone"}}, {9, []string{"lone", "flood"}}, {9, []string{"late"}}, {9, nil}} {
		got, next := claim(step.limit, ahead)
		if !slices.Equal(got, step.want) {
			t.Errorf("took %v, want %v", got, step.want)
		}
		if len(got) > 0 {
			ahead.After = next
		}
	}
	if got, _ := claim(5000, front); len(got) != 4000-10-1 {
		t.Errorf("%d rows are left, want all but those that were taken", len(got))
	}
}

// One part of a tenant ends where its other part begins, and each row names its part. If the tenant has a limit in
// flight, only the first part takes rows.
func TestPartsOfATenantTakeTheRowsBetweenTheirPlaces(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.ofTenant(5, 1, 100)
	all := drainertest.Column[int64](t, o.db, `SELECT intent_id FROM outbox.queue ORDER BY next_attempt_at, intent_id`)
	places := map[int64]drainer.Cursor{}
	for _, intent := range all {
		places[intent] = o.placeOf(intent)
	}
	claim := func(parts ...drainer.Part) (got [][]int64) {
		reply := o.batch(worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 50, Parts: parts}}}).Claimed[0]
		got = make([][]int64, len(parts))
		for _, row := range reply.Rows {
			got[row.Part] = append(got[row.Part], row.IntentID)
		}
		for _, taken := range reply.Of {
			if taken.Found != len(got[taken.Part]) || taken.Next.Compare(places[slices.Max(got[taken.Part])]) != 0 {
				t.Errorf("part %d is said to have %d rows to %v, want %v", taken.Part, taken.Found, taken.Next, got[taken.Part])
			}
		}
		return got
	}
	middle := places[all[9]]
	later := drainer.Part{First: 5, Last: 5, Limit: 10, After: middle}
	first := drainer.Part{First: 5, Last: 5, Limit: 20, After: beginning, Before: middle}
	if got := claim(later, first); !slices.Equal(got[0], all[10:20]) || !slices.Equal(got[1], all[:10]) {
		t.Errorf("took %v", got)
	}
	o.exec(`UPDATE outbox.tenant SET max_in_flight = 45 WHERE tenant_id = 5`) // 20 are in flight
	first.Before = places[all[29]]
	later.After = first.Before
	if got := claim(later, first); len(got[0])+len(got[1]) > 25 || len(got[0]) != 10 || len(got[1]) != 0 {
		t.Errorf("took %v, want 10 rows by the first part", got)
	}
}
