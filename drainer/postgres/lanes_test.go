package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

// together lets lanes claim with a statement each, as full scans do, and with one
// for all, as they do where they follow their cursors.
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
	turn := settling(dispatch.Completed, settled...)
	turn.Settle = append(turn.Settle, ended(&drainer.Row{ClaimID: 999, IntentID: settled[0].IntentID, Attempt: 7}, dispatch.Completed))
	turn.Claims = []drainer.Claim{
		{Provider: "sim", Server: "sim", Limit: 10, After: begin},
		{Provider: "idle", Server: "idle"},
		{Provider: "other", Server: "other", Limit: 10, After: begin},
	}
	reply := o.turn(worker, turn)
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

// A lane's second claim, and that of a detour, can share a turn with its first.
func TestClaimsOfOneProviderShareATurnAndNoRow(t *testing.T) {
	together(t, claimsOfOneProviderShareATurnAndNoRow)
}

func claimsOfOneProviderShareATurnAndNoRow(t *testing.T, o *outbox, begin drainer.Cursor) {
	t.Helper()
	const rows = 5
	worker := o.join()
	o.enqueue("run", 0, rows)
	claim := drainer.Claim{Provider: "sim", Server: "sim", Limit: 2, After: begin}
	other := drainer.Claim{Provider: "other", Server: "other", Limit: 2, After: begin}
	reply := o.turn(worker, drainer.Turn{Claims: []drainer.Claim{claim, claim, other, claim}})
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

// The last row that a lane finds tells where its next claim goes on.
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
		{drainer.Claim{Provider: "paused", Server: "paused", Limit: 9, After: begin}, 0, nil, "", 0},
		{drainer.Claim{Provider: "down", Server: "backup", Fallback: "backup", Limit: 2, After: begin}, 2, []int64{3, 4}, "backup", 4},
		{drainer.Claim{Provider: "none", Server: "none", Limit: 9, After: begin}, 0, nil, "", 0},
		{drainer.Claim{Provider: "backup", Server: "backup", Limit: 9, After: o.placeOf(6)}, 2, []int64{7, 8}, "", 8},
		{drainer.Claim{Provider: "busy", Server: "busy", Limit: 2, After: begin}, 2, []int64{10}, "", 10}, // and 9, which is stopped
	}
	var turn drainer.Turn
	for _, lane := range lanes {
		turn.Claims = append(turn.Claims, lane.claim)
	}
	reply := o.turn(worker, turn)
	var claimed []*drainer.Row
	for i, lane := range lanes {
		got := reply.Claimed[i]
		if got.Found != lane.found || !slices.Equal(ids(got.Rows), lane.rows) || got.Next.IntentID != lane.cursor {
			t.Errorf("%s: found %d rows, claimed %v, up to %d, want %d, %v, %d",
				lane.claim.Provider, got.Found, ids(got.Rows), got.Next.IntentID, lane.found, lane.rows, lane.cursor)
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

// placeOf is where a queued intent stands.
func (o *outbox) placeOf(intent int64) drainer.Cursor {
	o.t.Helper()
	return drainer.Cursor{IntentID: intent, NextAttemptAt: stored[time.Time](o, `SELECT next_attempt_at FROM outbox.queue WHERE intent_id = $1`, intent)}
}
