package drainer

import (
	"testing"
	"testing/synctest"
	"time"
)

func found(n int) ClaimReply {
	reply := ClaimReply{Found: n}
	if n > 0 {
		reply.Next = Cursor{NextAttemptAt: time.Unix(int64(n), 0), IntentID: int64(n)}
	}
	return reply
}

// look begins one and is told what it found.
func look(s *scan, limit, rows int, took time.Duration) {
	claim, reply := Claim{Limit: limit, After: s.from()}, found(rows)
	reply.Took = took
	s.looked(claim, reply)
}

func TestTheFirstLookIsAFullScan(t *testing.T) {
	var s scan
	if !s.again() || s.from() != (Cursor{}) {
		t.Error("want a look at once, from the start")
	}
}

func TestABusyLaneFollowsTheCursorAndRescansOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 5, time.Millisecond)
		if !s.again() {
			t.Error("a full claim wants another look at once")
		}
		if s.from() != found(5).Next {
			t.Error("want the cursor while the stream lasts")
		}
		look(&s, 5, 5, time.Millisecond)
		time.Sleep(fullScanInterval + time.Millisecond)
		if s.from() != (Cursor{}) {
			t.Error("want a full scan once a second, for what landed behind the cursor")
		}
	})
}

func TestASlowFullScanIsRepeatedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 200 * time.Millisecond
		var s scan
		look(&s, 5, 5, took)
		time.Sleep(fullScanShare*took - time.Millisecond)
		if s.from() == (Cursor{}) {
			t.Error("the next full scan came too early")
		}
		time.Sleep(2 * time.Millisecond)
		if s.from() != (Cursor{}) {
			t.Error("the next full scan is overdue")
		}
	})
}

func TestTheLookBeforeAWaitIsAFullScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 2, time.Millisecond)
		if s.again() {
			t.Error("a claim that found less than it asked for need not look again at once")
		}
		time.Sleep(pollInterval)
		if s.from() != (Cursor{}) {
			t.Error("want a full scan when there is time for it")
		}
	})
}

func TestOnlyAnEmptyFullScanShowsThatNothingIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 5, time.Second)
		look(&s, 5, 0, time.Millisecond)
		if s.nothing {
			t.Error("an empty look behind the cursor says nothing about what is before it")
		}
		time.Sleep(fullScanShare*time.Second + time.Second)
		look(&s, 5, 0, time.Millisecond)
		if !s.nothing {
			t.Error("want: nothing is due")
		}
	})
}

func TestAnOwedLookIsTakenOnce(t *testing.T) {
	var s scan
	look(&s, 5, 0, time.Millisecond)
	s.owe()
	if !s.again() {
		t.Error("want the look that is owed")
	}
	look(&s, 5, 0, time.Millisecond)
	if s.again() {
		t.Error("want it once")
	}
}

func TestALookThatBeganBeforePaysNoDebt(t *testing.T) {
	var s scan
	look(&s, 5, 0, time.Millisecond)
	earlier := Claim{Limit: 5, After: s.from()}
	s.owe()
	s.looked(earlier, found(0))
	if !s.again() {
		t.Error("the look that is owed has not begun")
	}
}

func TestLooksThatBeganTogetherPassNothingOver(t *testing.T) {
	var everywhere Cursor
	from := func(n int) Cursor { return found(n).Next }
	for name, test := range map[string]struct {
		cursor Cursor
		looks  []Claim // in the order in which they are heard of
		ends   []int
		want   Cursor
	}{
		"the farther one is heard of first": {from(10), []Claim{{After: from(10)}, {After: from(10)}}, []int{30, 20}, from(30)},
		"the nearer one is heard of first":  {from(10), []Claim{{After: from(10)}, {After: from(10)}}, []int{20, 30}, from(30)},
		"a full scan goes back":             {from(10), []Claim{{After: everywhere}}, []int{5}, from(5)},
		"and the other one stays behind":    {from(10), []Claim{{After: everywhere}, {After: from(10)}}, []int{5, 20}, from(5)},
		"whichever comes first":             {from(10), []Claim{{After: from(10)}, {After: everywhere}}, []int{20, 5}, from(5)},
	} {
		s := scan{cursor: test.cursor}
		for i, claim := range test.looks {
			claim.Limit = 1
			s.looked(claim, ClaimReply{Found: 1, Next: from(test.ends[i])})
		}
		if s.cursor != test.want {
			t.Errorf("%s: it goes on from %v, want %v", name, s.cursor, test.want)
		}
	}
}

func TestALookBesideAFullScanIsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 5, time.Millisecond)
		time.Sleep(fullScanInterval + time.Millisecond)
		if s.from() != (Cursor{}) || s.from() == (Cursor{}) {
			t.Error("want one full scan, and one look by the cursor beside it")
		}
	})
}

func TestAfterAFailureTheNextLookIsAFullScan(t *testing.T) {
	var s scan
	look(&s, 5, 5, time.Millisecond)
	s.restart()
	if !s.again() || s.nothing || s.from() != (Cursor{}) {
		t.Error("rows that a failed claim left can lie behind the cursor")
	}
}
