package postgres_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

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
			{Provider: "sim", Server: "sim", Limit: limit, After: beginning},
			{Provider: "other", Server: "other", Limit: limit, After: beginning},
		}
		if i%2 > 0 {
			slices.Reverse(claims)
		}
		group.Go(func() {
			for {
				reply, err := o.Turn(t.Context(), worker, drainer.Turn{Claims: claims})
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

// plainClaim is the claim that everybody writes first. A plan may run its
// subquery once for every row, and each time it finds others.
const plainClaim = `
	DELETE FROM outbox.queue WHERE ctid IN (
	  SELECT ctid FROM outbox.queue WHERE provider = 'sim' AND next_attempt_at <= now()
	  ORDER BY next_attempt_at, intent_id LIMIT $1 FOR UPDATE SKIP LOCKED)`

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
			for _, plan := range without {
				o.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_` + plan + ` = off', current_database()); END $$`)
			}
			o.db.Reset() // who is connected keeps the settings of before
			o.enqueue("run", 0, rows)
			o.enqueueTool("other/act", "run", rows)
			if claimed := o.claimPlainly(limit); claimed <= limit {
				t.Fatalf("the plan is not bad: the plain claim took %d rows", claimed)
			}
			fault.Injected(t, 28, 1)
			reply := o.turn(o.join(), drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: limit, After: beginning}, {Provider: "other", Server: "other", Limit: 2 * limit, After: beginning}}})
			if own, others := len(reply.Claimed[0].Rows), len(reply.Claimed[1].Rows); own != limit || others != 2*limit {
				t.Errorf("claimed %d and %d rows, want %d and %d", own, others, limit, 2*limit)
			}
		})
	}
}

// claimPlainly counts what the plain claim takes, and gives it back.
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
	tx, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.queue ORDER BY next_attempt_at, intent_id LIMIT 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
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
	first := o.turn(worker, claimOf(4)).Claimed[0]
	behind := drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 10, After: first.Next}}}
	second := o.turn(worker, behind).Claimed[0]
	if got := slices.Concat(ids(first.Rows), ids(second.Rows)); len(got) != 6 || !slices.IsSorted(got) {
		t.Errorf("claimed %v, want the six due ones in order", got)
	}
	o.settle(worker, dispatch.Released, first.Rows...)
	if rows := o.turn(worker, behind).Claimed[0].Rows; len(rows) != 4 {
		t.Errorf("%d rows put back are behind the cursor", 4-len(rows))
	}
}

func TestABuriedWorkerClaimsNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	worker := o.join()
	o.bury(worker)
	if claimed := o.claim(worker, 1); len(claimed) != 0 {
		t.Error("a buried worker claimed a row")
	}
	if alive, err := o.Beat(t.Context(), worker); alive || err != nil {
		t.Errorf("a buried worker beats: %v, %v", alive, err)
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
		o.turn(worker, drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1, Idle: mark}}})
	}
	o.enqueue("run", 0, 1) // nobody waits yet
	mark(drainer.IdleWaiting)
	o.enqueue("run", 1, 2)
	mark(drainer.IdleBusy)
	o.enqueue("run", 2, 3)
	if got := notified(); !slices.Equal(got, []string{"sim"}) {
		t.Errorf("notified %q, want one of sim", got)
	}
}
