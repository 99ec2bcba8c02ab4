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

// whole takes a turn and waits for both of its replies.
func whole(ctx context.Context, turns *turns, share *laneTurn) error {
	if err := turns.take(ctx, share); err != nil {
		return err
	}
	_, claiming := hear(ctx, share.claimed)
	_, settling := hear(ctx, share.refused)
	return errors.Join(claiming, settling)
}

func TestEveryLaneGetsItsPartOfASharedTurn(t *testing.T) {
	shares := []*laneTurn{
		newLaneTurn(ofIntents(1, 2), nil, Claim{Provider: "a"}),
		newLaneTurn(nil, nil, Claim{Provider: "b"}),
		newLaneTurn(ofIntents(3), []int64{7}, Claim{Provider: "c"}),
		newLaneTurn(ofIntents(4, 5, 6), []int64{8, 9}, Claim{Provider: "d"}),
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
		if refused := <-shares[i].refused; !slices.Equal(intentsOf(refused.of), want) {
			t.Errorf("lane %d: refused %v, want %v", i, intentsOf(refused.of), want)
		}
		if claimed := <-shares[i].claimed; claimed.of.Next.IntentID != int64("abcd"[i]) {
			t.Errorf("lane %d got another lane's rows", i)
		}
	}
}

func TestAFailedTurnFailsForAllItsLanes(t *testing.T) {
	shares := []*laneTurn{newLaneTurn(nil, nil, Claim{}), newLaneTurn(nil, nil, Claim{})}
	turns := newTurns(turnFunc(func(context.Context, Turn) (TurnReply, error) { return TurnReply{}, errAway }), "worker", nil)
	if err := turns.carryOut(t.Context(), shares); !errors.Is(err, errAway) {
		t.Errorf("it says %v", err)
	}
	for i, share := range shares {
		if reply := <-share.claimed; !errors.Is(reply.err, errAway) {
			t.Errorf("lane %d hears %v of its claim", i, reply.err)
		}
		if reply := <-share.refused; !errors.Is(reply.err, errAway) {
			t.Errorf("lane %d hears %v of what it settled", i, reply.err)
		}
	}
}

func TestALargeTurnSettlesAndClaimsAtOnce(t *testing.T) {
	many := ofIntents(make([]int64, worthTwo)...)
	some := Claim{Provider: "a", Limit: 1}
	for name, test := range map[string]struct {
		settle []Settlement
		claim  Claim
		turns  int
	}{
		"much to settle, and rows to claim":    {many, some, 2},
		"much to settle, and nothing to claim": {many, Claim{Provider: "a"}, 1},
		"little to settle":                     {many[1:], some, 1},
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
					return TurnReply{Claimed: []ClaimReply{{}}}, nil
				}), "worker", nil)
				if err := turns.carryOut(t.Context(), []*laneTurn{newLaneTurn(test.settle, nil, test.claim)}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A claimed row counts as sent once its worker dies, so it must not wait for
// anything that can take long.
func TestOfALargeTurnEachHalfIsHeardOfAsSoonAsItHasEnded(t *testing.T) {
	settling := func(turn Turn) bool { return len(turn.Settle) > 0 }
	t.Run("the settling hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			share, fail := largeTurnWhere(t, settling)
			if claimed := <-share.claimed; claimed.err != nil || claimed.of.Found != 1 {
				t.Errorf("it has claimed %+v, %v, while the settling hangs", claimed.of, claimed.err)
			}
			fail()
			if refused := <-share.refused; !errors.Is(refused.err, errAway) {
				t.Errorf("the settling ended with %v", refused.err)
			}
		})
	})
	t.Run("the claiming hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			share, fail := largeTurnWhere(t, Turn.claims)
			if refused := <-share.refused; refused.err != nil || len(refused.of) != 1 {
				t.Errorf("%d are refused, %v, while the claiming hangs", len(refused.of), refused.err)
			}
			fail()
			if claimed := <-share.claimed; !errors.Is(claimed.err, errAway) {
				t.Errorf("the claiming ended with %v", claimed.err)
			}
		})
	})
}

// largeTurnWhere is under way while one half of it hangs, until that fails.
func largeTurnWhere(t *testing.T, hangs func(Turn) bool) (share *laneTurn, fail func()) {
	t.Helper()
	failed := make(chan struct{})
	turns := newTurns(turnFunc(func(_ context.Context, turn Turn) (TurnReply, error) {
		if hangs(turn) {
			<-failed
			return TurnReply{}, errAway
		}
		return TurnReply{Refused: []int{len(turn.Finish)}, Claimed: []ClaimReply{{Found: 1}}}, nil
	}), "worker", nil)
	share = newLaneTurn(ofIntents(make([]int64, worthTwo)...), []int64{7}, Claim{Limit: 1})
	go func() {
		if err := turns.carryOut(t.Context(), []*laneTurn{share}); !errors.Is(err, errAway) {
			t.Errorf("the turn ended with %v", err)
		}
	}()
	return share, func() { close(failed) }
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
			group.Go(func() { _ = whole(ctx, turns, newLaneTurn(nil, nil, Claim{})) })
			synctest.Wait()
		}
		for range lanes - committers {
			group.Go(func() { _ = whole(ctx, turns, newLaneTurn(nil, nil, Claim{})) })
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
	if err := whole(ctx, turns, newLaneTurn(nil, nil, Claim{})); !errors.Is(err, cause) {
		t.Errorf("%v, want the cause", err)
	}
}

func TestALaneDoesNotWaitForAReplyBeyondItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("gave up")
		ctx, cancel := context.WithCancelCause(t.Context())
		release := make(chan struct{})
		turns := newTurns(turnFunc(func(context.Context, Turn) (TurnReply, error) {
			<-release
			return TurnReply{}, errors.New("too late")
		}), "worker", func(time.Duration, error) {})
		running, stop := context.WithCancel(t.Context())
		var services sync.WaitGroup
		services.Go(func() { turns.run(running) })
		ended := make(chan error)
		go func() { ended <- whole(ctx, turns, newLaneTurn(nil, nil, Claim{})) }()
		synctest.Wait() // the store has it
		cancel(cause)
		if err := <-ended; !errors.Is(err, cause) {
			t.Errorf("%v, want the cause", err)
		}
		stop()
		close(release)
		services.Wait()
	})
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
				if whole(ctx, turns, newLaneTurn(nil, nil, Claim{})) == nil {
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
