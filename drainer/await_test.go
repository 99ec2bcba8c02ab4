package drainer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestALaneWaitsOnlyForWhatMakesItsNextTurnBetter(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	emptied := scan{hasBegun: true}
	for name, test := range map[string]struct {
		stop        context.Context
		settled     int
		outstanding int
		scan        scan
		want        time.Duration
	}{
		"it has not looked yet":                {t.Context(), 0, 0, scan{}, 0},
		"more is due, and some under way":      {t.Context(), 0, 2, scan{}, linger},
		"nothing was due":                      {t.Context(), 0, 0, emptied, pollInterval},
		"nothing was due, and some under way":  {t.Context(), 0, 2, emptied, pollInterval},
		"outcomes wait":                        {t.Context(), 1, 0, emptied, linger},
		"outcomes wait, and more is due":       {t.Context(), 1, 0, scan{}, linger},
		"more is due, and there is no room":    {t.Context(), 0, 4, scan{}, pollInterval},
		"more is due, and it claims no more":   {over, 0, 0, scan{}, pollInterval},
		"outcomes wait, and it claims no more": {over, 1, 0, scan{}, linger},
	} {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.settled, l.outstanding, l.scan = make([]Settlement, test.settled), test.outstanding, test.scan
		if got := l.patience(test.stop); got != test.want {
			t.Errorf("%s: it waits %s, want %s", name, got, test.want)
		}
	}
}

func TestALaneLooksForItselfWhileAStreamRests(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	l.server.slots.resize(4)
	l.scan, l.idle = scan{hasBegun: true}, idleness{rests: true}
	if got := l.patience(t.Context()); got != lookInterval {
		t.Errorf("it waits %s, want %s", got, lookInterval)
	}
}

// Another replica may have taken what it was woken for.
func TestALaneThatWasWokenForNothingLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.scan = scan{hasBegun: true}
		l.wake <- struct{}{}
		life := lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()}
		const ms = time.Millisecond
		began := time.Now()
		for _, want := range []time.Duration{0, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 16*ms + pollInterval} {
			l.await(life)
			if at := time.Since(began); at != want {
				t.Errorf("it looks after %s, want %s", at, want)
			}
		}
	})
}

// An outcome can come between two looks: it waits for company like any other.
func TestAnOutcomeThatIsHereAlreadyDoesNotWaitForTheNextPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.scan, l.outstanding = scan{hasBegun: true}, 2
		l.outcomes.put(Settlement{Row: &Row{}})
		began := time.Now()
		l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()})
		if waited := time.Since(began); waited != linger {
			t.Errorf("it waited %s, want %s", waited, linger)
		}
	})
}

// A claim under way may have looked before there was anything to see.
func TestANotificationIsKeptWhileATurnIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.pending.add(&laneTurn{claim: Claim{Limit: 1}})
		l.wake <- struct{}{}
		l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()})
		if len(l.wake) == 0 {
			t.Error("it is lost")
		}
	})
}

func TestALaneThatGivesUpDoesNotWaitToHearOfItsTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.pending.add(&laneTurn{settle: ofIntents(1)})
		over, end := context.WithCancel(t.Context())
		end()
		began := time.Now()
		l.await(lifetimes{stop: over, abort: over, giveUp: over})
		if waited := time.Since(began); waited > 0 {
			t.Errorf("it waited %s", waited)
		}
	})
}

// Whatever is collected makes room for another claim.
func TestALaneCollectsNoMoreThanATurnsWorthOfOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.outstanding = 2 * fullTurn
		for range l.outstanding {
			l.outcomes.put(Settlement{Row: &Row{}})
		}
		l.pending.settling = []*laneTurn{{}, {}}
		l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()})
		if len(l.settled) != fullTurn {
			t.Errorf("it collected %d, want %d", len(l.settled), fullTurn)
		}
		if l.outstanding != fullTurn {
			t.Errorf("%d are outstanding, want the %d that it did not collect", l.outstanding, fullTurn)
		}
	})
}
