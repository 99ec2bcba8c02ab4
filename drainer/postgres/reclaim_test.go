package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

func TestTwoReapersShareTheDead(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	for round := range 20 {
		o.enqueue("run", round*6, round*6+6)
		for range 3 {
			dead := o.join()
			o.claim(dead, 2)
			o.bury(dead)
		}
		var one, other []drainer.Settlement
		both(func() { one = o.reap() }, func() { other = o.reap() })
		seen := map[int64]bool{}
		for _, settlement := range append(one, other...) {
			if seen[settlement.Row.IntentID] {
				t.Fatalf("intent %d was reaped twice", settlement.Row.IntentID)
			}
			seen[settlement.Row.IntentID] = true
		}
		if len(seen) != 6 {
			t.Fatalf("%d rows reaped, want 6", len(seen))
		}
		o.settle(o.successor(), dispatch.Completed, o.claim(o.successor(), 6)...)
	}
}

func TestAReaperPassesOverWhatAnotherHolds(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 2)
	dead := o.join()
	held, free := o.claim(dead, 1), o.claim(dead, 1)
	o.bury(dead)
	tx, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.claim WHERE claim_id = $1 FOR UPDATE`, held[0].ClaimID); err != nil {
		t.Fatal(err)
	}
	if lost := o.reap(); len(lost) != 1 || lost[0].Row.IntentID != free[0].IntentID {
		t.Errorf("%d rows reaped, want the one that nobody holds", len(lost))
	}
}

// Whoever joins counts its lease from the call that succeeded. One before it may have
// been committed without a reply.
func TestJoiningAgainIsASignOfLife(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.exec(`UPDATE outbox.worker SET beat_at = now() - interval '10 seconds'`)
	if err := o.Join(t.Context(), worker, []string{"sim"}); err != nil {
		t.Fatal(err)
	}
	if err := o.Bury(t.Context(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if alive, err := o.Beat(t.Context(), worker); !alive || err != nil {
		t.Error("it was buried as if it had joined before", err)
	}
}

func TestOnlyTheSilentAreBuried(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	silent, beating := o.join(), o.join()
	o.exec(`UPDATE outbox.worker SET beat_at = now() - interval '10 seconds'`)
	if alive, err := o.Beat(t.Context(), beating); !alive || err != nil {
		t.Fatal(alive, err)
	}
	if err := o.Bury(t.Context(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if alive, _ := o.Beat(t.Context(), silent); alive {
		t.Error("the silent one still lives")
	}
	if alive, _ := o.Beat(t.Context(), beating); !alive {
		t.Error("the beating one was buried")
	}
}

func TestALivingWorkersClaimIsNotReaped(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	o.claim(o.join(), 1)
	if lost := o.reap(); len(lost) != 0 {
		t.Errorf("reaped %d rows of a living worker", len(lost))
	}
}

func TestAReaperLeavesWhatItCannotJudge(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead := o.join()
	o.enqueue("run", 0, 4)
	rows := o.claim(dead, 4)
	o.bury(dead)
	odd := func(row *drainer.Row) (drainer.Settlement, bool) {
		return ended(row, dispatch.Lost), row.IntentID%2 == 1
	}
	if settled, err := o.Reap(t.Context(), []string{"sim"}, odd); err != nil || len(settled) != 2 {
		t.Fatalf("%d rows settled, %v; want the 2 odd ones", len(settled), err)
	}
	o.assertStatuses(map[string]int{"pending": 2, "in_progress": 2})
	if refused := o.settle(dead, dispatch.Rejected, rows...).Refused; !slices.Equal(refused, []int{0, 2}) {
		t.Errorf("the late outcomes were refused for %v, want the two that were taken away", refused)
	}
	o.assertStatuses(map[string]int{"pending": 2, "failed": 2})
}

func TestReapingLeavesOtherProvidersToOthers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead := o.join()
	o.enqueue("run", 0, 1)
	o.claim(dead, 1)
	o.bury(dead)
	if settled, err := o.Reap(t.Context(), []string{"other"}, as(dispatch.Lost)); err != nil || len(settled) != 0 {
		t.Errorf("%d rows settled, %v; want none", len(settled), err)
	}
}

func TestManyDeadClaimsAreReapedInOneGo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	dead := o.join()
	o.enqueue("run", 0, 250)
	for range 250 {
		if _, err := o.Turn(t.Context(), dead, claimOf(1)); err != nil {
			t.Fatal(err)
		}
	}
	o.bury(dead)
	if lost := o.reap(); len(lost) != 250 {
		t.Errorf("%d rows reaped, want 250", len(lost))
	}
	o.assertStatuses(map[string]int{"pending": 250})
}

func TestReclaimGivesBackOnlyWhatIsForgotten(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 3)
	remembered, forgotten := o.claim(worker, 1), o.claim(worker, 1)
	other := o.join()
	others := o.claim(other, 1)
	given, err := o.Reclaim(t.Context(), worker, "sim", "sim", []int64{remembered[0].ClaimID}, as(dispatch.Released))
	if err != nil || len(given) != 1 || given[0].Row.IntentID != forgotten[0].IntentID {
		t.Fatalf("gave back %+v, %v; want the forgotten row", given, err)
	}
	o.assertStatuses(map[string]int{"pending": 1, "in_progress": 2})
	o.settle(worker, dispatch.Completed, remembered...)
	if refused := o.settle(other, dispatch.Completed, others...).Refused; len(refused) != 0 {
		t.Error("another worker's claim was touched")
	}
}

func TestAWorkerThatRemembersNothingGivesAllBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 2)
	o.claim(worker, 2)
	if given, err := o.Reclaim(t.Context(), worker, "sim", "sim", nil, as(dispatch.Released)); err != nil || len(given) != 2 {
		t.Errorf("gave back %d rows, %v; want both", len(given), err)
	}
	o.assertStatuses(map[string]int{"pending": 2})
}

func TestLeavingOrphansWhatIsLeftAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	worker := o.join()
	o.enqueue("run", 0, 1)
	o.claim(worker, 1)
	if err := o.Leave(t.Context(), worker); err != nil {
		t.Fatal(err)
	}
	if lost := o.reap(); len(lost) != 1 {
		t.Errorf("%d rows reaped, want 1", len(lost))
	}
}
