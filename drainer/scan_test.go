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

func TestTheFirstLookIsAFullScan(t *testing.T) {
	var s scan
	if !s.again() || s.from() != (Cursor{}) {
		t.Error("want a look at once, from the start")
	}
}

func TestABusyLaneFollowsTheCursorAndRescansOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		s.from()
		s.looked(5, found(5), time.Millisecond)
		if !s.again() {
			t.Error("a full claim wants another look at once")
		}
		if s.from() != found(5).Next {
			t.Error("want the cursor while the stream lasts")
		}
		s.looked(5, found(5), time.Millisecond)
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
		s.from()
		s.looked(5, found(5), took)
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
		s.from()
		s.looked(5, found(2), time.Millisecond)
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
		s.from()
		s.looked(5, found(5), time.Second)
		s.from()
		s.looked(5, found(0), time.Millisecond)
		if s.nothing {
			t.Error("an empty look behind the cursor says nothing about what is before it")
		}
		time.Sleep(fullScanShare*time.Second + time.Second)
		s.from()
		s.looked(5, found(0), time.Millisecond)
		if !s.nothing {
			t.Error("want: nothing is due")
		}
	})
}

func TestAnOwedLookIsTakenOnce(t *testing.T) {
	var s scan
	s.from()
	s.looked(5, found(0), time.Millisecond)
	s.owe()
	if !s.again() {
		t.Error("want the look that is owed")
	}
	s.from()
	s.looked(5, found(0), time.Millisecond)
	if s.again() {
		t.Error("want it once")
	}
}
