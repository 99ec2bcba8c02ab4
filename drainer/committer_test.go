package drainer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// commitFunc is a store that only commits batches.
type commitFunc func(context.Context, Batch) (BatchReply, error)

func (f commitFunc) Commit(ctx context.Context, _ string, batch Batch) (BatchReply, error) {
	return f(ctx, batch)
}

func ofIntents(intents ...int64) (settlements []Settlement) {
	for _, intent := range intents {
		settlements = append(settlements, Settlement{Row: &Row{IntentID: intent}})
	}
	return settlements
}

func intentsOf(settlements []Settlement) (intents []int64) {
	for _, s := range settlements {
		intents = append(intents, s.Row.IntentID)
	}
	return intents
}

// asked returns a share of a batch, and the channels on which its results arrive.
func asked(settle []Settlement, finish []int64, claim Claim) (*share, *inFlight) {
	of := newInFlight()
	batch := newShare(&of)
	batch.settle, batch.finish, batch.claim = settle, finish, claim
	return batch, &of
}

// claiming returns a share that only claims.
func claiming() (*share, *inFlight) { return asked(nil, nil, Claim{Limit: 1}) }

// claimed takes a turn that claims, and waits until it has ended.
func claimed(ctx context.Context, committer *committer) error {
	batch, hears := claiming()
	committer.take(ctx, batch)
	return (<-hears.claimed).err
}

func TestEveryLaneGetsItsPartOfASharedTurn(t *testing.T) {
	var shares []*share
	var lanes []*inFlight
	for _, lane := range []struct {
		settle []Settlement
		finish []int64
		claim  Claim
	}{
		{ofIntents(1, 2), nil, Claim{Provider: "a", Limit: 1}},
		{nil, nil, Claim{Provider: "b", Limit: 1}},
		{ofIntents(3), []int64{7}, Claim{Provider: "c", Limit: 1}},
		{ofIntents(4, 5, 6), []int64{8, 9}, Claim{Provider: "d", Limit: 1}},
	} {
		batch, hears := asked(lane.settle, lane.finish, lane.claim)
		shares, lanes = append(shares, batch), append(lanes, hears)
	}
	committer := newCommitter(commitFunc(func(_ context.Context, batch Batch) (BatchReply, error) {
		if got := intentsOf(batch.Settle); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) {
			t.Errorf("settles %v", got)
		}
		if !slices.Equal(batch.Finish, []int64{7, 8, 9}) {
			t.Errorf("finishes %v", batch.Finish)
		}
		claimed := make([]ClaimReply, len(batch.Claims))
		for i, claim := range batch.Claims {
			claimed[i].Found = int(claim.Provider[0])
		}
		return BatchReply{Refused: []int{1, 3, 5}, Claimed: claimed}, nil
	}), "worker", nil, nil)
	if err := committer.execute(t.Context(), shares); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]int64{{2}, nil, nil, {4, 6}} {
		if shares[i].settles() {
			if news := <-lanes[i].settled; news.of != shares[i] || !slices.Equal(intentsOf(news.refused), want) {
				t.Errorf("lane %d: refused %v, want %v", i, intentsOf(news.refused), want)
			}
		}
		if news := <-lanes[i].claimed; news.of != shares[i] || news.reply.Found != int("abcd"[i]) {
			t.Errorf("lane %d got another lane's rows", i)
		}
	}
}

func TestAFailedTurnFailsForAllItsLanes(t *testing.T) {
	settles, first := asked(ofIntents(1), nil, Claim{})
	claims, second := claiming()
	committer := newCommitter(commitFunc(func(context.Context, Batch) (BatchReply, error) { return BatchReply{}, errAway }), "worker", nil, nil)
	if err := committer.execute(t.Context(), []*share{settles, claims}); !errors.Is(err, errAway) {
		t.Errorf("it says %v", err)
	}
	if news := <-first.settled; !errors.Is(news.err, errAway) {
		t.Errorf("the lane that settles hears %v", news.err)
	}
	if news := <-second.claimed; !errors.Is(news.err, errAway) {
		t.Errorf("the lane that claims hears %v", news.err)
	}
	if len(first.claimed) > 0 || len(second.settled) > 0 {
		t.Error("a lane hears of what it has not asked for")
	}
}

func TestALargeTurnOfOneLaneSettlesAndClaimsAtOnce(t *testing.T) {
	many := ofIntents(make([]int64, worthTwo)...)
	some := Claim{Provider: "a", Limit: 1}
	for name, test := range map[string]struct {
		settle    []Settlement
		claim     Claim
		lanes     int
		committer int
	}{
		"much to settle, and rows to claim":    {many, some, 1, 2},
		"much to settle, and nothing to claim": {many, Claim{Provider: "a"}, 1, 1},
		"little to settle":                     {many[1:], some, 1, 1},
		"much to settle, by several lanes":     {many, some, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var made atomic.Int32
				all := make(chan struct{})
				committer := newCommitter(commitFunc(func(context.Context, Batch) (BatchReply, error) {
					if int(made.Add(1)) == test.committer {
						close(all)
					}
					<-all // waits forever unless they are under way at the same time
					return BatchReply{Claimed: make([]ClaimReply, test.lanes)}, nil
				}), "worker", nil, nil)
				shares := make([]*share, test.lanes)
				for i := range shares {
					shares[i], _ = asked(test.settle, nil, test.claim)
				}
				if err := committer.execute(t.Context(), shares); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// As long as nothing can be settled, nothing more may be sent.
func TestATurnThatRepeatsClaimsOnlyOnceItHasSettled(t *testing.T) {
	for name, failure := range map[string]error{"it settles": nil, "it fails again": errAway} {
		t.Run(name, func(t *testing.T) {
			var claims int
			committer := newCommitter(commitFunc(func(_ context.Context, batch Batch) (BatchReply, error) {
				if len(batch.Settle) > 0 {
					return BatchReply{}, failure
				}
				claims++
				return BatchReply{Claimed: make([]ClaimReply, len(batch.Claims))}, nil
			}), "worker", nil, nil)
			batch, hears := asked([]Settlement{{Row: &Row{}, Repeats: true}}, nil, Claim{Provider: "a", Limit: 1})
			if err := committer.execute(t.Context(), []*share{batch}); !errors.Is(err, failure) {
				t.Errorf("it says %v", err)
			}
			settled, claimed := <-hears.settled, <-hears.claimed
			if !errors.Is(settled.err, failure) || !errors.Is(claimed.err, failure) || (claims == 1) != (failure == nil) {
				t.Errorf("settled: %v, claimed: %v, after %d claims", settled.err, claimed.err, claims)
			}
		})
	}
}

// A claimed row counts as sent once its worker dies, so it must not wait for
// anything that can take long.
func TestOfALargeTurnEachHalfIsHeardOfAsSoonAsItHasEnded(t *testing.T) {
	settling := func(batch Batch) bool { return len(batch.Settle) > 0 }
	t.Run("the settling hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hears, fail := largeTurnWhere(t, settling)
			if news := <-hears.claimed; news.err != nil || news.reply.Found != 1 {
				t.Errorf("it has claimed %+v, %v, while the settling hangs", news.reply, news.err)
			}
			fail()
			if news := <-hears.settled; !errors.Is(news.err, errAway) {
				t.Errorf("the settling ended with %v", news.err)
			}
		})
	})
	t.Run("the claiming hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hears, fail := largeTurnWhere(t, Batch.claims)
			if news := <-hears.settled; news.err != nil || len(news.refused) != 1 {
				t.Errorf("%d are refused, %v, while the claiming hangs", len(news.refused), news.err)
			}
			fail()
			if news := <-hears.claimed; !errors.Is(news.err, errAway) {
				t.Errorf("the claiming ended with %v", news.err)
			}
		})
	})
}

// largeTurnWhere executes a turn of which one half hangs until fail is called, and then fails.
func largeTurnWhere(t *testing.T, hangs func(Batch) bool) (hears *inFlight, fail func()) {
	t.Helper()
	failed := make(chan struct{})
	committer := newCommitter(commitFunc(func(_ context.Context, batch Batch) (BatchReply, error) {
		if hangs(batch) {
			<-failed
			return BatchReply{}, errAway
		}
		return BatchReply{Refused: []int{len(batch.Finish)}, Claimed: []ClaimReply{{Found: 1}}}, nil
	}), "worker", nil, nil)
	batch, hears := asked(ofIntents(make([]int64, worthTwo)...), []int64{7}, Claim{Limit: 1})
	go func() {
		if err := committer.execute(t.Context(), []*share{batch}); !errors.Is(err, errAway) {
			t.Errorf("the turn ended with %v", err)
		}
	}()
	return hears, func() { close(failed) }
}

func TestLanesShareATurnOnlyWhileEveryCommitterIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = connections + 2*lanesPerBatch
		var mu sync.Mutex
		var sizes []int
		store := commitFunc(func(_ context.Context, batch Batch) (BatchReply, error) {
			time.Sleep(time.Millisecond) // of the bubble's clock: long enough for all to queue up
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(batch.Claims))
			return BatchReply{Claimed: make([]ClaimReply, len(batch.Claims))}, nil
		})
		committer := newCommitter(store, "worker", func(time.Duration, error) {}, nil)
		ctx, stop := context.WithCancel(t.Context())
		var services, group sync.WaitGroup
		services.Go(func() { committer.run(ctx) })
		for range connections {
			group.Go(func() { _ = claimed(ctx, committer) })
			synctest.Wait()
		}
		for range lanes - connections {
			group.Go(func() { _ = claimed(ctx, committer) })
		}
		group.Wait()
		stop()
		services.Wait()
		total := 0
		for _, size := range sizes {
			total += size
		}
		if total != lanes || slices.Max(sizes) > lanesPerBatch {
			t.Errorf("turns of %v lanes, want %d in all and at most %d each", sizes, lanes, lanesPerBatch)
		}
		if !slices.Equal(sizes[:connections], slices.Repeat([]int{1}, connections)) {
			t.Errorf("turns of %v lanes: a lone lane waited for others", sizes)
		}
		if len(sizes) == lanes {
			t.Error("no lanes shared a turn")
		}
	})
}

func TestAskingForATurnEndsWithTheContext(t *testing.T) {
	cause := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	committer := newCommitter(commitFunc(nil), "worker", nil, nil)
	if err := claimed(ctx, committer); !errors.Is(err, cause) {
		t.Errorf("%v, want the cause", err)
	}
}

// A lane is stuck after a minute. However many lanes there are, an outage must
// not make them look so: restarting cures none.
func TestNoLaneWaitsForLongBehindOthersWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		committer := newCommitter(commitFunc(func(ctx context.Context, _ Batch) (BatchReply, error) {
			<-ctx.Done()
			return BatchReply{}, ctx.Err()
		}), "w", func(time.Duration, error) {}, nil)
		var running, lanes sync.WaitGroup
		running.Go(func() { committer.run(ctx) })
		began := time.Now()
		for range 20 * connections * lanesPerBatch {
			lanes.Go(func() {
				if claimed(ctx, committer) == nil {
					t.Error("a turn that nothing came of succeeded")
				}
			})
		}
		lanes.Wait()
		if took := time.Since(began); took > 2*batchTimeout {
			t.Errorf("a lane waited %s for its turn", took)
		}
		cancel()
		running.Wait()
	})
}

// What it has claimed by then would count as sent if this worker died.
func TestALaneDoesNotWaitForACommitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		committer := newCommitter(commitFunc(nil), "w", nil, nil)
		batch, hears := claiming()
		began := time.Now()
		committer.take(t.Context(), batch)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("it waited %s", waited)
		}
		if news := <-hears.claimed; !errors.Is(news.err, errNoCommitter) || time.Since(began) != batchTimeout {
			t.Errorf("after %s it hears %v", time.Since(began), news.err)
		}
	})
}

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
		l.planner.scan, l.outstanding = scan{hasBegun: true}, 2
		go func() {
			l.pool.outcomes.put(Settlement{Row: &Row{}})
			time.Sleep(linger / 5)
			l.pool.outcomes.put(Settlement{Row: &Row{}})
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

// Outcomes that no turn can use yet wake no lane.
func TestALaneSleepsWhileItsTurnIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.planner.scan, l.outstanding = scan{hasBegun: true}, manyOutcomes
		l.inFlight.add(&share{settle: ofIntents(1)})
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go func() { l.await(lifetimes{stop: ctx, abort: ctx, giveUp: ctx}) }()
		synctest.Wait()
		for range manyOutcomes - 1 {
			l.pool.outcomes.put(Settlement{Row: &Row{}})
		}
		synctest.Wait()
		if waiting := l.pool.outcomes.len(); waiting != manyOutcomes-1 {
			t.Errorf("it took %d outcomes", manyOutcomes-1-waiting)
		}
		l.pool.outcomes.put(Settlement{Row: &Row{}})
		synctest.Wait()
		if waiting := l.pool.outcomes.len(); waiting != 0 {
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
		l.planner.scan, l.outstanding = scan{hasBegun: true}, 4
		go func() {
			for range 3 {
				l.pool.outcomes.put(Settlement{Row: &Row{}})
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
	l.settled, l.outstanding = make([]Settlement, fullBatch+1), 1
	l.pool.outcomes.put(Settlement{Row: &Row{}})
	if got := l.worthWaking(true); got != 0 {
		t.Errorf("%d outcomes are worth waking it, want none ever", got)
	}
	if l.gather(); len(l.settled) != fullBatch+1 {
		t.Errorf("it has %d, want the %d that it had", len(l.settled), fullBatch+1)
	}
}
