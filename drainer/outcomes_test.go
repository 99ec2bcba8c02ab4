package drainer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestALaneIsToldOfAsManyOutcomesAsItWants(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, wanted, after int
		want                  bool
	}{
		"fewer":                     {1, 3, 1, false},
		"enough that came before":   {3, 3, 0, true},
		"enough that come later":    {0, 3, 3, true},
		"some before, some later":   {1, 3, 2, true},
		"it wants none":             {3, 0, 3, false},
		"more than enough, at once": {5, 3, 0, true},
	} {
		o := newOutcomes()
		for range test.before {
			o.put(Settlement{})
		}
		enough := o.await(test.wanted)
		for range test.after {
			o.put(Settlement{})
		}
		if got := len(enough) == 1; got != test.want {
			t.Errorf("%s: it is told %v, want %v", name, got, test.want)
		}
	}
}

func TestOutcomesAreTakenInTheirOrderAndOnce(t *testing.T) {
	t.Parallel()
	o := newOutcomes()
	for _, outcome := range ofIntents(1, 2, 3) {
		o.put(outcome)
	}
	taken := o.take(ofIntents(0), 2)
	taken = o.take(taken, 2)
	if len(taken) != 4 || o.len() != 0 {
		t.Fatalf("took %d, and %d are left", len(taken), o.len())
	}
	for i, outcome := range taken {
		if outcome.Row.IntentID != int64(i) {
			t.Errorf("intent %d is number %d", outcome.Row.IntentID, i)
		}
	}
}

// With nothing else under way, more time brings nothing to a turn.
func TestTheLastOutcomeMakesATurnDueAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.scan, l.outstanding = scan{hasBegun: true}, 2
		go func() {
			l.outcomes.put(Settlement{Row: &Row{}})
			time.Sleep(linger / 5)
			l.outcomes.put(Settlement{Row: &Row{}})
		}()
		began := time.Now()
		if due := l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()}); !due {
			t.Error("the turn is not due")
		}
		if waited := time.Since(began); waited != linger/5 {
			t.Errorf("it waited %s, want %s", waited, linger/5)
		}
	})
}

// Outcomes that no turn can use yet wake nobody.
func TestALaneSleepsWhileItsTurnIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.scan, l.outstanding = scan{hasBegun: true}, manyOutcomes
		l.pending.add(&laneTurn{settle: ofIntents(1)})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go func() { l.await(lifetimes{stop: ctx, abort: ctx, giveUp: ctx}) }()
		synctest.Wait()
		for range manyOutcomes - 1 {
			l.outcomes.put(Settlement{Row: &Row{}})
		}
		synctest.Wait()
		if waiting := l.outcomes.len(); waiting != manyOutcomes-1 {
			t.Errorf("it took %d outcomes", manyOutcomes-1-waiting)
		}
		l.outcomes.put(Settlement{Row: &Row{}})
		synctest.Wait()
		if waiting := l.outcomes.len(); waiting != 0 {
			t.Errorf("it left %d outcomes", waiting)
		}
	})
}
