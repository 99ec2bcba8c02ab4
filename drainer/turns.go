package drainer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/internal/failpoint"

	"golang.org/x/sync/errgroup"
)

const (
	// committers is how many turns may be under way at once: more connections
	// do not make the database commit faster.
	committers = 4
	// lanesPerTurn bounds how many lanes wait for one another's rows.
	lanesPerTurn = 12
	turnTimeout  = 10 * time.Second
	// worthTwo is how many outcomes are worth a connection of their own.
	worthTwo = fullTurn / 10
)

// turns lets lanes share commits: while every committer is busy, lanes queue
// up, and the next free committer takes several of them into one turn. A lone
// lane never waits.
type turns struct {
	store    turnStore
	worker   string
	observe  func(took time.Duration, err error)
	requests chan *laneTurn
}

// laneTurn is one lane's share of a turn. It gets two replies, each as soon as
// that much is committed.
type laneTurn struct {
	settle  []Settlement
	finish  []int64
	claim   Claim
	claimed chan reply[ClaimReply]
	refused chan reply[[]Settlement] // of what it settled
}

type reply[T any] struct {
	of  T
	err error
}

func newLaneTurn(settle []Settlement, finish []int64, claim Claim) *laneTurn {
	return &laneTurn{settle, finish, claim, make(chan reply[ClaimReply], 1), make(chan reply[[]Settlement], 1)}
}

func newTurns(store turnStore, worker string, observe func(time.Duration, error)) *turns {
	return &turns{store: store, worker: worker, observe: observe, requests: make(chan *laneTurn)}
}

// run commits until ctx ends. Lanes must have stopped asking by then.
func (t *turns) run(ctx context.Context) {
	var group errgroup.Group
	for range committers {
		group.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case first := <-t.requests:
					t.commit(ctx, t.gather(first))
				}
			}
		})
	}
	_ = group.Wait()
}

var errNoCommitter = errors.New("the turns of other lanes take too long")

// take hands one lane's share to a committer. It waits for that as long as for
// a turn: behind many others the wait would add up.
func (t *turns) take(ctx context.Context, share *laneTurn) error {
	queueing := time.NewTimer(turnTimeout)
	defer queueing.Stop()
	select {
	case t.requests <- share:
		return nil
	case <-queueing.C:
		return errNoCommitter
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hear waits for a reply.
func hear[T any](ctx context.Context, replies <-chan reply[T]) (T, error) {
	select {
	case reply := <-replies:
		return reply.of, reply.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

func (t *turns) gather(first *laneTurn) []*laneTurn {
	shares := []*laneTurn{first}
	for len(shares) < lanesPerTurn {
		select {
		case share := <-t.requests:
			shares = append(shares, share)
		default:
			return shares
		}
	}
	return shares
}

func (t *turns) commit(ctx context.Context, shares []*laneTurn) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	started := time.Now()
	err := t.carryOut(ctx, shares)
	t.observe(time.Since(started), err)
}

// carryOut settles and claims on two connections where there is much to settle:
// one commit saves little then, and the database has more than one core. What is
// claimed does not wait for what is settled: it would count as sent if this
// worker died meanwhile. Where only the settling fails the lanes settle again,
// which changes nothing; where the claiming does, they reclaim what they do not
// know of.
func (t *turns) carryOut(ctx context.Context, shares []*laneTurn) error {
	turn := merge(shares)
	if len(turn.Settle) < worthTwo || !turn.claims() {
		reply, err := t.turn(ctx, turn)
		tellClaimed(shares, reply.Claimed, err)
		tellRefused(shares, reply.Refused, err)
		return err
	}
	var halves errgroup.Group
	halves.Go(func() error {
		reply, err := t.turn(ctx, Turn{Settle: turn.Settle, Finish: turn.Finish})
		tellRefused(shares, reply.Refused, err)
		return err
	})
	halves.Go(func() error {
		reply, err := t.turn(ctx, Turn{Claims: turn.Claims})
		tellClaimed(shares, reply.Claimed, err)
		return err
	})
	return halves.Wait()
}

func (t *turns) turn(ctx context.Context, turn Turn) (TurnReply, error) {
	reply, err := t.store.Turn(ctx, t.worker, turn)
	if err == nil {
		err = failpoint.TurnReply.Fail()
	}
	return reply, err
}

func (t Turn) claims() bool {
	return slices.ContainsFunc(t.Claims, func(c Claim) bool { return c.Limit > 0 })
}

func merge(shares []*laneTurn) Turn {
	if len(shares) == 1 {
		alone := shares[0]
		return Turn{Settle: alone.settle, Finish: alone.finish, Claims: []Claim{alone.claim}}
	}
	var turn Turn
	for _, share := range shares {
		turn.Settle = append(turn.Settle, share.settle...)
		turn.Finish = append(turn.Finish, share.finish...)
		turn.Claims = append(turn.Claims, share.claim)
	}
	return turn
}

func tellClaimed(shares []*laneTurn, claimed []ClaimReply, err error) {
	for i, share := range shares {
		told := reply[ClaimReply]{err: err}
		if err == nil {
			told.of = claimed[i]
		}
		share.claimed <- told
	}
}

func tellRefused(shares []*laneTurn, refused []int, err error) {
	first := 0
	for _, share := range shares {
		told := reply[[]Settlement]{err: err}
		for len(refused) > 0 && refused[0] < first+len(share.settle) {
			told.of = append(told.of, share.settle[refused[0]-first])
			refused = refused[1:]
		}
		first += len(share.settle)
		share.refused <- told
	}
}
