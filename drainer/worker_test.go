package drainer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
)

const dispatchersThere = 3

// heldUp has dispatchers that hold each row until the test releases it.
type heldUp struct {
	dispatchers

	t       *testing.T
	begun   chan struct{}
	release chan struct{}
	busy    atomic.Int64
}

func holdUp(t *testing.T) *heldUp {
	t.Helper()
	h := &heldUp{t: t, begun: make(chan struct{}, 100), release: make(chan struct{})}
	h.assemble(dispatchersThere, func(next func() *Row) {
		for row := next(); row != nil; row = next() {
			if h.busy.Add(1) > dispatchersThere {
				t.Errorf("more than %d dispatch at once", dispatchersThere)
			}
			h.begun <- struct{}{}
			<-h.release
			h.busy.Add(-1)
		}
	})
	return h
}

func (h *heldUp) awaitBegun(rows int) {
	h.t.Helper()
	for n := range rows {
		select {
		case <-h.begun:
		case <-time.After(drainertest.Patience):
			h.t.Fatalf("%d of %d rows have begun, and no dispatcher came for another", n, rows)
		}
	}
}

func TestARowNeverWaitsBehindOneThatIsHeldUp(t *testing.T) {
	t.Parallel()
	h := holdUp(t)
	for range dispatchersThere {
		h.submit(&Row{})
	}
	h.awaitBegun(dispatchersThere)
	for range 10_000 { // a dispatcher rests or continues while a row comes
		go func() { h.release <- struct{}{} }()
		h.submit(&Row{})
		h.awaitBegun(1)
	}
	close(h.release)
	h.close()
	h.all.Wait()
}

func TestNoMoreDispatchAtOnceThanMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 50
		h := holdUp(t)
		for range rows {
			h.submit(&Row{})
		}
		synctest.Wait()
		if h.busy.Load() != dispatchersThere || h.waiting() != rows-dispatchersThere {
			t.Errorf("%d dispatch and %d rows wait, want %d and %d", h.busy.Load(), h.waiting(), dispatchersThere, rows-dispatchersThere)
		}
		h.close()
		close(h.release)
		h.all.Wait()
		if begun := len(h.begun); begun != rows || h.waiting() != 0 {
			t.Errorf("of %d rows handed out before they were dismissed %d were begun and %d wait", rows, begun, h.waiting())
		}
	})
}

// The only dispatcher has seen that there is no row, and does not rest yet. So no dispatcher can be called for a row
// that comes now.
func TestARowThatComesWhileTheLastDispatcherLiesDownIsDispatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := dispatchers{most: 1, present: 1}
		d.submit(&Row{})
		if !d.waitForCall(make(chan struct{}, 1)) {
			t.Error("it was dismissed")
		}
	})
}

func TestDispatchersWhoAreDismissedGoOnceNoRowWaits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, meanwhile int }{
		"while they rest":     {1, 0},
		"as one finds no row": {1, 1},
		"before they came":    {0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := holdUp(t)
			close(h.release)
			for range test.before {
				h.submit(&Row{})
			}
			synctest.Wait()
			for range test.meanwhile {
				h.turns.put(&Row{}) // no dispatcher could be called for it
			}
			h.close()
			h.all.Wait()
			if begun := len(h.begun); begun != test.before+test.meanwhile {
				t.Errorf("%s: %d rows were begun, want %d", name, begun, test.before+test.meanwhile)
			}
		})
	}
}

func TestTheLastToRestIsTheFirstToBeCalled(t *testing.T) {
	t.Parallel()
	first, last := make(chan struct{}, 1), make(chan struct{}, 1)
	d := dispatchers{most: 3, present: 2, idle: []chan struct{}{first, last}}
	for range 2 {
		d.submit(&Row{})
	}
	if len(first) != 0 || len(last) != 1 || d.present != 2 {
		t.Errorf("%d and %d calls, and %d are present; want one call, of the last", len(first), len(last), d.present)
	}
	d.awake()
	d.wakeOne()
	if len(first) != 1 {
		t.Error("once it has arrived, nobody is called for the other row")
	}
}

func TestSlotsBoundWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		var begun atomic.Int32
		end := make(chan struct{})
		for range 5 {
			go func() {
				if !s.acquire() {
					return
				}
				defer s.release()
				begun.Add(1)
				<-end
			}()
			synctest.Wait()
		}
		for _, step := range []struct {
			name string
			do   func()
			want int32
		}{
			{"two slots", func() {}, 2},
			{"a third", func() { s.resize(3) }, 3},
			{"one, while three are used", func() { s.resize(1) }, 3},
			{"one came free", func() { end <- struct{}{} }, 3},
			{"time to stop", s.lift, 5},
		} {
			step.do()
			synctest.Wait()
			if got := begun.Load(); got != step.want {
				t.Errorf("%s: %d have begun, want %d", step.name, got, step.want)
			}
		}
		close(end)
	})
}

func TestWhoHasNoShareDoesNotWaitForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		s.acquire()
		waiting := make(chan bool, 1)
		go func() { waiting <- s.acquire() }()
		synctest.Wait()
		s.resize(0)
		if <-waiting || s.acquire() {
			t.Error("a slot was given where there is none")
		}
	})
}

func TestAQuestionThatNoToolAnswersIsAskedByRepeatingWhereThatIsSafe(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	row := &Row{Lookup: true, MaybeApplied: true, FirstAttemptAt: &sent, SinceFirstSend: time.Hour, ClaimedAt: time.Now()}
	for name, test := range map[string]struct {
		policy dispatch.Policy
		acts   bool
	}{
		"a lookup answers":                {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, Lookup: &dispatch.Lookup{}}, false},
		"the key is still known":          {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour}, true},
		"the key may be forgotten":        {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}, false},
		"repeating changes nothing":       {dispatch.Policy{Class: dispatch.NaturallyIdempotent}, true},
		"repeating repeats the effect":    {dispatch.Policy{Class: dispatch.NonIdempotent}, false},
		"nobody here knows what it would": {dispatch.Policy{}, false},
	} {
		if got := !answerable(row, test.policy).Lookup; got != test.acts {
			t.Errorf("%s: it acts %v, want %v", name, got, test.acts)
		}
	}
	if !row.Lookup {
		t.Error("the claimed row itself was changed")
	}
}

func TestAStepOfARunThatGoesBackIsNotRepeatedToFindOut(t *testing.T) {
	t.Parallel()
	policy, forward := dispatch.Policy{Class: dispatch.NaturallyIdempotent}, int64(1)
	for name, test := range map[string]struct {
		row  Row
		acts bool
	}{
		"a step":                {Row{Lookup: true, MaybeApplied: true, InSaga: true}, false},
		"the undo of a step":    {Row{Lookup: true, MaybeApplied: true, InSaga: true, Undoes: &forward}, true},
		"a step of another run": {Row{Lookup: true, MaybeApplied: true}, true},
		"what was no question":  {Row{MaybeApplied: true, InSaga: true, Undoes: &forward}, true},
	} {
		if got := !answerable(&test.row, policy).Lookup; got != test.acts {
			t.Errorf("%s: it acts %v, want %v", name, got, test.acts)
		}
	}
}

// A claimed row may have waited, and its tool's class may be less safe now.
func TestAClaimedRowThatCouldDoHarmIsRefusedByName(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	doubtful := Row{MaybeApplied: true, FirstAttemptAt: &sent, SinceFirstSend: time.Hour, ClaimedAt: time.Now()}
	question := doubtful
	question.Lookup = true
	keyed := dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}
	for name, test := range map[string]struct {
		row    Row
		policy dispatch.Policy
		want   string
	}{
		"nothing was sent before":             {Row{}, dispatch.Policy{Class: dispatch.NonIdempotent}, ""},
		"repeating repeats the effect":        {doubtful, dispatch.Policy{Class: dispatch.NonIdempotent}, "not_repeatable"},
		"repeating changes nothing":           {doubtful, dispatch.Policy{Class: dispatch.NaturallyIdempotent}, ""},
		"the key may be forgotten":            {doubtful, keyed, "key_ttl_expired"},
		"a question":                          {question, dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: &dispatch.Lookup{}}, ""},
		"a question that nobody here answers": {question, keyed, "lookup_unconfigured"},
	} {
		if got := refusal(&test.row, test.policy); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
