package drainer

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestALaneThatBeginsToWaitOwesOneMoreLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		if i.mark() != IdleWaiting {
			t.Fatal("want a lane that begins to ask for notifications")
		}
		if !i.looked(IdleWaiting, time.Now(), 0) {
			t.Error("a row may have been committed before the mark stood: one more look is owed")
		}
		if i.mark() != IdleUnchanged {
			t.Error("the mark stands and need not be written again")
		}
		time.Sleep(IdleFor/2 + time.Millisecond)
		if i.mark() != IdleWaiting {
			t.Error("want the mark renewed before it runs out")
		}
		if i.looked(IdleWaiting, time.Now(), 0) {
			t.Error("a renewed mark leaves no gap to look into")
		}
	})
}

func TestALaneLooksOutForThoseWhoCommitAMomentLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), 0)
		if i.patience() != pollInterval {
			t.Error("want a lane that found nothing to wait")
		}
		i.looked(IdleUnchanged, time.Now(), 1)
		const ms = time.Millisecond
		for _, want := range []time.Duration{2 * ms, 2 * ms, 4 * ms, 8 * ms, pollInterval} {
			if got := i.patience(); got != want {
				t.Errorf("it waits %s, want %s", got, want)
			}
			time.Sleep(i.patience())
			i.looked(IdleUnchanged, time.Now(), 0)
		}
	})
}

func TestAStreamOfWorkStopsTheNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), 0)
		i.looked(IdleUnchanged, time.Now(), busyRows)
		if i.mark() != IdleBusy {
			t.Error("want producers told to stop")
		}
		i.looked(IdleBusy, time.Now(), busyRows)
		if i.mark() != IdleUnchanged {
			t.Error("want it told once")
		}
		i.looked(IdleUnchanged, time.Now(), 1)
		if i.mark() != IdleUnchanged {
			t.Error("want no notifications while the stream trickles")
		}
		time.Sleep(streamRest)
		if owed := i.looked(IdleUnchanged, time.Now(), 0); !owed || i.mark() != IdleWaiting {
			t.Error("want notifications again once the stream is over, and a look without a wait that asks for them")
		}
		if i.patience() != pollInterval {
			t.Error("want the lane to wait for notifications")
		}
	})
}

// restingStream brought many rows, of which producers heard, and then none.
func restingStream() (i idleness) {
	i.looked(IdleWaiting, time.Now(), 0)
	i.looked(IdleUnchanged, time.Now(), busyRows)
	i.looked(IdleBusy, time.Now(), 0)
	return i
}

func TestAStreamThatRestsForAMomentGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := restingStream()
		for range 10 {
			time.Sleep(streamRest - time.Millisecond)
			begun := time.Now()
			time.Sleep(time.Second) // the look itself may take long
			if owed := i.looked(IdleUnchanged, begun, 0); owed || i.mark() != IdleUnchanged || i.patience() != lookInterval {
				t.Fatal("want no notifications, and a lane that soon looks for itself")
			}
			i.looked(IdleUnchanged, time.Now(), busyRows)
		}
	})
}

func TestATrickleAfterAStreamIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := restingStream()
		for range busyRows - 1 {
			time.Sleep(streamRest / 4)
			i.looked(IdleUnchanged, time.Now(), 1)
			if i.looked(IdleUnchanged, time.Now(), 0) {
				return
			}
		}
		t.Error("the lane looks for itself as long as there is a row now and then")
	})
}

func TestLooksThatEachFindALittleAreAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), 0)
		for range 3 * busyRows {
			i.looked(IdleUnchanged, time.Now(), 1)
			i.looked(IdleUnchanged, time.Now(), 0)
		}
		if i.mark() != IdleUnchanged {
			t.Fatal("rows that come one by one are worth a notification each")
		}
		for range busyRows {
			i.looked(IdleUnchanged, time.Now(), 1)
		}
		if i.mark() != IdleBusy {
			t.Error("want producers told to stop: they keep up with every look")
		}
	})
}

func TestAMarkThatRanOutOwesALookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), 0)
		time.Sleep(IdleFor)
		if !i.looked(IdleWaiting, time.Now(), 0) {
			t.Error("while no mark stood, a producer may have committed in silence")
		}
	})
}
