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

func TestEveryLaneGetsItsPartOfASharedTurn(t *testing.T) {
	shares := []*laneTurn{
		{settle: ofIntents(1, 2), claim: Claim{Provider: "a"}},
		{claim: Claim{Provider: "b"}},
		{settle: ofIntents(3), finish: []int64{7}, claim: Claim{Provider: "c"}},
		{settle: ofIntents(4, 5, 6), finish: []int64{8, 9}, claim: Claim{Provider: "d"}},
	}
	for _, share := range shares {
		share.reply = make(chan laneReply, 1)
	}
	turn := merge(shares)
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
	split(shares, TurnReply{Refused: []int{1, 3, 5}, Claimed: claimed}, nil)
	for i, want := range [][]int64{{2}, nil, nil, {4, 6}} {
		reply := <-shares[i].reply
		if got := intentsOf(reply.refused); !slices.Equal(got, want) {
			t.Errorf("lane %d: refused %v, want %v", i, got, want)
		}
		if got := reply.claimed.Next.IntentID; got != int64("abcd"[i]) {
			t.Errorf("lane %d got another lane's rows", i)
		}
	}
}

func TestOneLaneThatMayNotClaimAheadKeepsTheWholeTurnTogether(t *testing.T) {
	idle := &laneTurn{}
	ahead, atOnce := &laneTurn{claim: Claim{Limit: 1}, ahead: true}, &laneTurn{claim: Claim{Limit: 1}}
	for _, test := range []struct {
		shares []*laneTurn
		want   bool
	}{
		{[]*laneTurn{ahead}, true},
		{[]*laneTurn{atOnce}, false},
		{[]*laneTurn{ahead, atOnce}, false},
		{[]*laneTurn{idle, ahead}, true},
	} {
		if got := claimAhead(test.shares); got != test.want {
			t.Errorf("%v, want %v", got, test.want)
		}
	}
}

func TestAFailedTurnFailsForAllItsLanes(t *testing.T) {
	failure := errors.New("no database")
	shares := []*laneTurn{{reply: make(chan laneReply, 1)}, {reply: make(chan laneReply, 1)}}
	split(shares, TurnReply{}, failure)
	for i, share := range shares {
		if reply := <-share.reply; !errors.Is(reply.err, failure) {
			t.Errorf("lane %d: %v", i, reply.err)
		}
	}
}

func TestALargeTurnSettlesAndClaimsAtOnce(t *testing.T) {
	many := ofIntents(make([]int64, worthTwo)...)
	claims := []Claim{{Provider: "a", Limit: 1}}
	for name, test := range map[string]struct {
		turn  Turn
		ahead bool
		turns int
	}{
		"much to settle, and rows to claim":      {Turn{Settle: many, Finish: []int64{7}, Claims: claims}, true, 2},
		"much to settle, and nothing to claim":   {Turn{Settle: many, Finish: []int64{7}, Claims: []Claim{{Provider: "a"}}}, true, 1},
		"much to settle, and rows of one chance": {Turn{Settle: many, Finish: []int64{7}, Claims: claims}, false, 1},
		"little to settle":                       {Turn{Settle: many[1:], Finish: []int64{7}, Claims: claims}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, failing := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					var made atomic.Int32
					both := make(chan struct{})
					turns := newTurns(turnFunc(func(_ context.Context, turn Turn) (reply TurnReply, err error) {
						if int(made.Add(1)) == test.turns {
							close(both)
						}
						<-both // waits for ever unless they are under way at the same time
						if len(turn.Settle) > 0 {
							reply.Refused = []int{len(turn.Finish)}
						}
						if len(turn.Claims) > 0 {
							reply.Claimed = []ClaimReply{{Found: 1}}
						} else if failing {
							err = errors.New("no database")
						}
						return reply, err
					}), "worker", nil)
					reply, err := turns.carryOut(t.Context(), test.turn, test.ahead)
					if failed := err != nil; failed != (failing && test.turns == 2) {
						t.Errorf("the turn ended with %v", err)
					}
					if err == nil && (!slices.Equal(reply.Refused, []int{1}) || len(reply.Claimed) != 1) {
						t.Errorf("the halves came to %+v", reply)
					}
				})
			}
		})
	}
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
			group.Go(func() { turns.take(ctx, &laneTurn{}) })
			synctest.Wait()
		}
		for range lanes - committers {
			group.Go(func() { turns.take(ctx, &laneTurn{}) })
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
	if reply := turns.take(ctx, &laneTurn{}); !errors.Is(reply.err, cause) {
		t.Errorf("%v, want the cause", reply.err)
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
		reply := make(chan laneReply)
		go func() { reply <- turns.take(ctx, &laneTurn{}) }()
		synctest.Wait() // the store has it
		cancel(cause)
		if got := <-reply; !errors.Is(got.err, cause) {
			t.Errorf("%v, want the cause", got.err)
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
				if reply := turns.take(ctx, &laneTurn{}); reply.err == nil {
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
