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

// turnFunc is a store that only takes turns.
type turnFunc func(context.Context, Turn) (TurnReply, error)

func (f turnFunc) Turn(ctx context.Context, _ string, turn Turn) (TurnReply, error) {
	return f(ctx, turn)
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

// share is a lane's, which has room for what it will hear.
func share(settle []Settlement, finish []int64, claim Claim) (*laneTurn, *pending) {
	of := newPending()
	turn := newLaneTurn(&of)
	turn.settle, turn.finish, turn.claim = settle, finish, claim
	return turn, &of
}

// claiming is a share that does nothing else.
func claiming() (*laneTurn, *pending) { return share(nil, nil, Claim{Limit: 1}) }

// claimed takes a turn that claims, and waits for its news.
func claimed(ctx context.Context, turns *turns) error {
	turn, hears := claiming()
	turns.take(ctx, turn)
	return (<-hears.claimed).err
}

func TestEveryLaneGetsItsPartOfASharedTurn(t *testing.T) {
	var shares []*laneTurn
	var lanes []*pending
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
		turn, hears := share(lane.settle, lane.finish, lane.claim)
		shares, lanes = append(shares, turn), append(lanes, hears)
	}
	turns := newTurns(turnFunc(func(_ context.Context, turn Turn) (TurnReply, error) {
		if got := intentsOf(turn.Settle); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) {
			t.Errorf("settles %v", got)
		}
		if !slices.Equal(turn.Finish, []int64{7, 8, 9}) {
			t.Errorf("finishes %v", turn.Finish)
		}
		claimed := make([]ClaimReply, len(turn.Claims))
		for i, claim := range turn.Claims {
			claimed[i].Next.IntentID = int64(claim.Provider[0])
		}
		return TurnReply{Refused: []int{1, 3, 5}, Claimed: claimed}, nil
	}), "worker", nil)
	if err := turns.carryOut(t.Context(), shares); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]int64{{2}, nil, nil, {4, 6}} {
		if shares[i].settles() {
			if news := <-lanes[i].confirmed; news.of != shares[i] || !slices.Equal(intentsOf(news.refused), want) {
				t.Errorf("lane %d: refused %v, want %v", i, intentsOf(news.refused), want)
			}
		}
		if news := <-lanes[i].claimed; news.of != shares[i] || news.reply.Next.IntentID != int64("abcd"[i]) {
			t.Errorf("lane %d got another lane's rows", i)
		}
	}
}

func TestAFailedTurnFailsForAllItsLanes(t *testing.T) {
	settles, first := share(ofIntents(1), nil, Claim{})
	claims, second := claiming()
	turns := newTurns(turnFunc(func(context.Context, Turn) (TurnReply, error) { return TurnReply{}, errAway }), "worker", nil)
	if err := turns.carryOut(t.Context(), []*laneTurn{settles, claims}); !errors.Is(err, errAway) {
		t.Errorf("it says %v", err)
	}
	if news := <-first.confirmed; !errors.Is(news.err, errAway) {
		t.Errorf("the lane that settles hears %v", news.err)
	}
	if news := <-second.claimed; !errors.Is(news.err, errAway) {
		t.Errorf("the lane that claims hears %v", news.err)
	}
	if len(first.claimed) > 0 || len(second.confirmed) > 0 {
		t.Error("a lane hears of what it has not asked for")
	}
}

func TestALargeTurnOfOneLaneSettlesAndClaimsAtOnce(t *testing.T) {
	many := ofIntents(make([]int64, worthTwo)...)
	some := Claim{Provider: "a", Limit: 1}
	for name, test := range map[string]struct {
		settle []Settlement
		claim  Claim
		lanes  int
		turns  int
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
				turns := newTurns(turnFunc(func(context.Context, Turn) (TurnReply, error) {
					if int(made.Add(1)) == test.turns {
						close(all)
					}
					<-all // waits for ever unless they are under way at the same time
					return TurnReply{Claimed: make([]ClaimReply, test.lanes)}, nil
				}), "worker", nil)
				shares := make([]*laneTurn, test.lanes)
				for i := range shares {
					shares[i], _ = share(test.settle, nil, test.claim)
				}
				if err := turns.carryOut(t.Context(), shares); err != nil {
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
			turns := newTurns(turnFunc(func(_ context.Context, turn Turn) (TurnReply, error) {
				if len(turn.Settle) > 0 {
					return TurnReply{}, failure
				}
				claims++
				return TurnReply{Claimed: make([]ClaimReply, len(turn.Claims))}, nil
			}), "worker", nil)
			turn, hears := share([]Settlement{{Row: &Row{}, Repeats: true}}, nil, Claim{Provider: "a", Limit: 1})
			if err := turns.carryOut(t.Context(), []*laneTurn{turn}); !errors.Is(err, failure) {
				t.Errorf("it says %v", err)
			}
			settled, claimed := <-hears.confirmed, <-hears.claimed
			if !errors.Is(settled.err, failure) || !errors.Is(claimed.err, failure) || (claims == 1) != (failure == nil) {
				t.Errorf("settled: %v, claimed: %v, after %d claims", settled.err, claimed.err, claims)
			}
		})
	}
}

// A claimed row counts as sent once its worker dies, so it must not wait for
// anything that can take long.
func TestOfALargeTurnEachHalfIsHeardOfAsSoonAsItHasEnded(t *testing.T) {
	settling := func(turn Turn) bool { return len(turn.Settle) > 0 }
	t.Run("the settling hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hears, fail := largeTurnWhere(t, settling)
			if news := <-hears.claimed; news.err != nil || news.reply.Found != 1 {
				t.Errorf("it has claimed %+v, %v, while the settling hangs", news.reply, news.err)
			}
			fail()
			if news := <-hears.confirmed; !errors.Is(news.err, errAway) {
				t.Errorf("the settling ended with %v", news.err)
			}
		})
	})
	t.Run("the claiming hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hears, fail := largeTurnWhere(t, Turn.claims)
			if news := <-hears.confirmed; news.err != nil || len(news.refused) != 1 {
				t.Errorf("%d are refused, %v, while the claiming hangs", len(news.refused), news.err)
			}
			fail()
			if news := <-hears.claimed; !errors.Is(news.err, errAway) {
				t.Errorf("the claiming ended with %v", news.err)
			}
		})
	})
}

// largeTurnWhere is under way while one half of it hangs, until that fails.
func largeTurnWhere(t *testing.T, hangs func(Turn) bool) (hears *pending, fail func()) {
	t.Helper()
	failed := make(chan struct{})
	turns := newTurns(turnFunc(func(_ context.Context, turn Turn) (TurnReply, error) {
		if hangs(turn) {
			<-failed
			return TurnReply{}, errAway
		}
		return TurnReply{Refused: []int{len(turn.Finish)}, Claimed: []ClaimReply{{Found: 1}}}, nil
	}), "worker", nil)
	turn, hears := share(ofIntents(make([]int64, worthTwo)...), []int64{7}, Claim{Limit: 1})
	go func() {
		if err := turns.carryOut(t.Context(), []*laneTurn{turn}); !errors.Is(err, errAway) {
			t.Errorf("the turn ended with %v", err)
		}
	}()
	return hears, func() { close(failed) }
}

func TestLanesShareATurnOnlyWhileEveryCommitterIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lanes = committers + 2*lanesPerTurn
		var mu sync.Mutex
		var sizes []int
		store := turnFunc(func(_ context.Context, turn Turn) (TurnReply, error) {
			time.Sleep(time.Millisecond) // of the bubble's clock: long enough for all to queue up
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(turn.Claims))
			return TurnReply{Claimed: make([]ClaimReply, len(turn.Claims))}, nil
		})
		turns := newTurns(store, "worker", func(time.Duration, error) {})
		ctx, stop := context.WithCancel(t.Context())
		var services, group sync.WaitGroup
		services.Go(func() { turns.run(ctx) })
		for range committers {
			group.Go(func() { _ = claimed(ctx, turns) })
			synctest.Wait()
		}
		for range lanes - committers {
			group.Go(func() { _ = claimed(ctx, turns) })
		}
		group.Wait()
		stop()
		services.Wait()
		total := 0
		for _, size := range sizes {
			total += size
		}
		if total != lanes || slices.Max(sizes) > lanesPerTurn {
			t.Errorf("turns of %v lanes, want %d in all and at most %d each", sizes, lanes, lanesPerTurn)
		}
		if !slices.Equal(sizes[:committers], slices.Repeat([]int{1}, committers)) {
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
	turns := newTurns(turnFunc(nil), "worker", nil)
	if err := claimed(ctx, turns); !errors.Is(err, cause) {
		t.Errorf("%v, want the cause", err)
	}
}

// A lane is stuck after a minute. However many lanes there are, an outage must
// not make them look so: restarting cures none.
func TestNoLaneWaitsForLongBehindOthersWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		turns := newTurns(turnFunc(func(ctx context.Context, _ Turn) (TurnReply, error) {
			<-ctx.Done()
			return TurnReply{}, ctx.Err()
		}), "w", func(time.Duration, error) {})
		var running, lanes sync.WaitGroup
		running.Go(func() { turns.run(ctx) })
		began := time.Now()
		for range 20 * committers * lanesPerTurn {
			lanes.Go(func() {
				if claimed(ctx, turns) == nil {
					t.Error("a turn that nothing came of succeeded")
				}
			})
		}
		lanes.Wait()
		if took := time.Since(began); took > 2*turnTimeout {
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
		turns := newTurns(turnFunc(nil), "w", nil)
		turn, hears := claiming()
		began := time.Now()
		turns.take(t.Context(), turn)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("it waited %s", waited)
		}
		if news := <-hears.claimed; !errors.Is(news.err, errNoCommitter) || time.Since(began) != turnTimeout {
			t.Errorf("after %s it hears %v", time.Since(began), news.err)
		}
	})
}
