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
		enough := o.whenThere(test.wanted)
		for range test.after {
			o.put(Settlement{})
		}
		if got := len(enough) == 1; got != test.want {
			t.Errorf("%s: it is told %v, want %v", name, got, test.want)
		}
	}
}

func TestOnlyTheLastQuestionIsAnswered(t *testing.T) {
	t.Parallel()
	o := newOutcomes()
	o.whenThere(1)
	enough := o.whenThere(3)
	for waiting := 1; waiting <= 4; waiting++ {
		o.put(Settlement{})
		if told := len(enough) == 1; told != (waiting == 3) {
			t.Errorf("with %d waiting it is told %v", waiting, told)
		}
		for len(enough) > 0 {
			<-enough
		}
	}
}

func TestOutcomesThatWereTakenAreLetGoOf(t *testing.T) {
	t.Parallel()
	o := newOutcomes()
	for _, outcome := range ofIntents(1, 2, 3) {
		o.put(outcome)
	}
	o.take(nil, 2)
	if o.waiting[0].Row.IntentID != 3 {
		t.Fatalf("intent %d is left", o.waiting[0].Row.IntentID)
	}
	for i, outcome := range o.waiting[:3][1:] {
		if outcome.Row != nil {
			t.Errorf("place %d still holds intent %d", i+1, outcome.Row.IntentID)
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

// One that takes long must not keep those back that came while it did.
func TestATurnTakesTheOutcomesThatWokeNobodyAlong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.scan, l.outstanding = scan{hasBegun: true}, 4
		go func() {
			for range 3 {
				l.outcomes.put(Settlement{Row: &Row{}})
				time.Sleep(linger / 5)
			}
		}()
		if due := l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()}); !due {
			t.Error("the turn is not due")
		}
		if len(l.settled) != 3 || l.outstanding != 1 {
			t.Errorf("it has %d outcomes, and waits for %d, want 3 and 1", len(l.settled), l.outstanding)
		}
	})
}

// What a failed turn brought back can be more than one turn takes.
func TestALaneThatHasTooMuchForATurnIsNotWoken(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	l.settled, l.outstanding = make([]Settlement, fullTurn+1), 1
	l.outcomes.put(Settlement{Row: &Row{}})
	if got := l.worthWaking(true); got != 0 {
		t.Errorf("%d outcomes are worth waking it, want none ever", got)
	}
	if l.gather(); len(l.settled) != fullTurn+1 {
		t.Errorf("it has %d, want the %d that it had", len(l.settled), fullTurn+1)
	}
}
