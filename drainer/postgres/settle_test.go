package postgres_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestSettlingTwiceIsHarmless(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 2)
	// Not finished: the claim still stands, so only the attempts themselves refuse.
	once := drainer.Turn{Settle: []drainer.Settlement{ended(rows[0], dispatch.Completed), ended(rows[1], dispatch.Throttled)}}
	if refused := o.turn(worker, once).Refused; len(refused) != 0 {
		t.Errorf("the first settling was refused for %v", refused)
	}
	if refused := o.turn(worker, once).Refused; !slices.Equal(refused, []int{0, 1}) {
		t.Errorf("the second settling was refused for %v, want both", refused)
	}
	o.turn(worker, drainer.Turn{Finish: []int64{rows[0].ClaimID}})
	if refused := o.turn(worker, once).Refused; !slices.Equal(refused, []int{0, 1}) {
		t.Errorf("settling without a claim was refused for %v, want both", refused)
	}
	o.assertStatuses(map[string]int{"completed": 1, "pending": 1})
}

// A worker that never heard of its first turn sends it again, and that one may
// still run.
func TestSettlingTwiceAtOnceSettlesOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	for round := range 20 {
		o.enqueue("run", round, round+1)
		once := drainer.Turn{Settle: []drainer.Settlement{ended(o.claim(worker, 1)[0], dispatch.Completed)}}
		var first, second error
		settle := func(err *error) func() {
			return func() { _, *err = o.Turn(t.Context(), worker, once) }
		}
		both(settle(&first), settle(&second))
		if first != nil && second != nil {
			t.Fatalf("neither settled: %v, %v", first, second)
		}
		if refused := o.turn(worker, once).Refused; len(refused) != 1 {
			t.Fatalf("the third settling was refused for %v, want the row", refused)
		}
	}
	o.assertStatuses(map[string]int{"completed": 20})
}

// A provider's own lane and its detour share turns: one may repeat itself about
// an attempt while the other settles the next one.
func TestARepeatedSettlementBesideANewerOneWritesNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	older := ended(o.claim(worker, 1)[0], dispatch.Throttled)
	o.turn(worker, drainer.Turn{Settle: []drainer.Settlement{older}})
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
	newer := ended(o.claim(worker, 1)[0], dispatch.Completed)
	if refused := o.turn(worker, drainer.Turn{Settle: []drainer.Settlement{older, newer}}).Refused; !slices.Equal(refused, []int{0}) {
		t.Errorf("refused %v, want the repetition", refused)
	}
	o.assertStatuses(map[string]int{"completed": 1})
	if again := o.claim(worker, 1); len(again) != 0 {
		t.Errorf("a completed intent was claimed again: %+v", again[0])
	}
}

// The client of its first try has given that up, and the lane settles the same again.
func TestATurnThatIsRepeatedWaitsForItsFirstTry(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 2)
	slow, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Rollback(t.Context())
	// whoever settles waits here, with the first of the two settled and nothing finished
	if _, err := slow.Exec(t.Context(), `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
		VALUES ($1, 1, 'w', 'completed', 'completed')`, rows[1].IntentID); err != nil {
		t.Fatal(err)
	}
	tries := make(chan error)
	for waiting := 1; waiting <= 2; waiting++ {
		turn := settling(dispatch.Completed, rows...)
		turn.Settle[0].Repeats = waiting == 2
		go func() {
			_, err := o.Turn(t.Context(), worker, turn)
			tries <- err
		}()
		drainertest.Eventually(t, "it waits for a lock", func() bool {
			return waiting == stored[int](o, `SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted
				AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`)
		})
	}
	if err := slow.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-tries; err != nil {
			t.Error(err)
		}
	}
	o.assertStatuses(map[string]int{"completed": 2})
}

// A busy lane has two turns under way, and their rows can be of one claim.
func TestATurnSettlesBesideAnotherOneThatHoldsTheSameClaim(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	rows := o.claim(worker, 2)
	other, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(t.Context())
	if _, err := other.Exec(t.Context(), `SELECT FROM outbox.claim WHERE claim_id = $1 FOR KEY SHARE`, rows[0].ClaimID); err != nil {
		t.Fatal(err)
	}
	if refused := o.turn(worker, drainer.Turn{Settle: []drainer.Settlement{ended(rows[1], dispatch.Completed)}}).Refused; len(refused) != 0 {
		t.Errorf("its row was refused: %v", refused)
	}
	o.bury(worker)
	if lost := o.reap(); len(lost) != 0 {
		t.Errorf("%d rows were reaped from under the other turn", len(lost))
	}
	o.assertStatuses(map[string]int{"completed": 1, "in_progress": 1})
}

func TestOneRowOfAClaimSettlesWithoutTheOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 3)
	rows := o.claim(worker, 3)
	o.turn(worker, drainer.Turn{Settle: []drainer.Settlement{ended(rows[1], dispatch.Completed)}})
	o.assertStatuses(map[string]int{"completed": 1, "in_progress": 2})
	o.bury(worker)
	if lost := o.reap(); len(lost) != 2 {
		t.Errorf("%d rows reaped, want the 2 without an outcome", len(lost))
	}
	o.assertStatuses(map[string]int{"completed": 1, "pending": 2})
}

func TestWhatProvesNoEffectIsRefusedAfterReaping(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	zombie := o.join()
	o.enqueue("run", 0, 1)
	rows := o.claim(zombie, 1)
	o.bury(zombie)
	o.reap()
	if refused := o.settle(zombie, dispatch.Rejected, rows...).Refused; !slices.Equal(refused, []int{0}) {
		t.Errorf("refused %v, want the row", refused)
	}
	again := o.claim(o.join(), 1)
	if len(again) != 1 || again[0].Attempt != rows[0].Attempt+1 || !again[0].MaybeApplied {
		t.Fatalf("reclaimed %+v, want the next attempt, in doubt", again)
	}
	if refused := o.settle(zombie, dispatch.Rejected, rows...).Refused; !slices.Equal(refused, []int{0}) {
		t.Errorf("refused %v, want the row", refused)
	}
	o.assertStatuses(map[string]int{"in_progress": 1})
}

func TestAnotherWorkersIdDoesNotSettle(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	rows := o.claim(o.join(), 1)
	if refused := o.settle(o.join(), dispatch.Completed, rows...).Refused; len(refused) != 1 {
		t.Errorf("refused %v, want the row", refused)
	}
	o.assertStatuses(map[string]int{"in_progress": 1})
}

// Lanes share a turn: what one of them lost must not cost the others anything,
// and each row goes back to its own lane.
func TestATurnSettlesOfSeveralClaimsThoseThatItHolds(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueueTool("sim/act", "run", 3)
	o.enqueueTool("other/act", "run", 2)
	worker, lost := o.join(), o.join()
	rows := append(o.claim(worker, 1), o.claim(lost, 1)...)
	rows = append(rows, o.claim(worker, 1)...)
	others := drainer.Turn{Claims: []drainer.Claim{{Provider: "other", Server: "other", Limit: 2}}}
	rows = append(rows, o.turn(worker, others).Claimed[0].Rows...)
	if refused := o.settle(worker, dispatch.Throttled, rows...).Refused; !slices.Equal(refused, []int{1}) {
		t.Errorf("refused %v, want the row of the claim that is another's", refused)
	}
	o.assertStatuses(map[string]int{"pending": 4, "in_progress": 1})
	if astray := stored[int](o, `SELECT count(*) FROM outbox.queue q JOIN outbox.intent i ON i.id = q.intent_id WHERE q.provider <> i.provider`); astray > 0 {
		t.Errorf("%d rows went back to a lane that is not theirs", astray)
	}
}

func TestSettlingRacesReapingOneOfThemWins(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	for round := range 30 {
		o.enqueue("run", round*4, round*4+4)
		worker := o.join()
		rows := o.claim(worker, 4)
		o.bury(worker)
		var refused []int
		var lost []drainer.Settlement
		both(
			func() { refused = o.settle(worker, dispatch.Completed, rows...).Refused },
			func() { lost = o.reap() },
		)
		if len(refused) != len(lost) {
			t.Fatalf("%d outcomes refused, but %d rows lost", len(refused), len(lost))
		}
		o.reap() // what the reaper skipped because the settling held it
		o.settle(o.successor(), dispatch.Completed, o.claim(o.successor(), 4)...)
	}
}

func TestARetryIsNotClaimedByTheTurnThatPutItBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	turn := settling(dispatch.Throttled, o.claim(worker, 1)...)
	turn.Claims = claimOf(10).Claims
	if claimed := o.turn(worker, turn).Claimed[0].Rows; len(claimed) != 0 {
		t.Errorf("claimed intents %v in the turn that requeued them", ids(claimed))
	}
	if claimed := o.claim(worker, 10); len(claimed) != 1 || claimed[0].Attempt != 2 || claimed[0].Tries != 2 {
		t.Errorf("claimed %+v, want attempt 2", claimed)
	}
}

func TestAReleaseCostsNoTryAndStartsNoClock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.settle(worker, dispatch.Released, o.claim(worker, 1)...)
	row := o.claim(worker, 1)[0]
	if row.Attempt != 2 || row.Tries != 1 || row.FirstAttemptAt != nil || row.MaybeApplied {
		t.Errorf("%+v, want attempt 2 of try 1, never sent", row)
	}
	o.settle(worker, dispatch.Ambiguous, row)
	row = o.claim(worker, 1)[0]
	first := row.FirstAttemptAt
	if first == nil || !row.MaybeApplied || row.Tries != 2 {
		t.Fatalf("%+v, want try 2, in doubt, with a first send", row)
	}
	o.settle(worker, dispatch.Ambiguous, row)
	if row = o.claim(worker, 1)[0]; row.FirstAttemptAt == nil || !row.FirstAttemptAt.Equal(*first) {
		t.Errorf("the first send moved from %v to %v", first, row.FirstAttemptAt)
	}
}

func TestADelayForEverIsStored(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	settlement := ended(o.claim(worker, 1)[0], dispatch.Throttled)
	settlement.Decision.Delay = 1<<63 - 1
	if _, err := o.Turn(t.Context(), worker, drainer.Turn{Settle: []drainer.Settlement{settlement}, Finish: []int64{settlement.Row.ClaimID}}); err != nil {
		t.Fatal(err)
	}
	o.assertStatuses(map[string]int{"pending": 1})
	if due := stored[time.Time](o, `SELECT next_attempt_at FROM outbox.queue`); time.Until(due) < 200*365*24*time.Hour {
		t.Errorf("due at %s", due)
	}
}

func both(one, other func()) {
	var group sync.WaitGroup
	group.Go(one)
	group.Go(other)
	group.Wait()
}
