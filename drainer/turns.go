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

// laneTurn is one lane's share of a turn.
type laneTurn struct {
	settle []Settlement
	finish []int64
	claim  Claim
	ahead  bool // what it claims may wait: should this worker die first, nobody is called for it
	reply  chan laneReply
}

type laneReply struct {
	refused []Settlement
	claimed ClaimReply
	err     error
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

// take hands one lane's share to a committer and waits for its part of the reply.
// It waits for a committer as long as for a turn: behind many others the wait
// would add up.
func (t *turns) take(ctx context.Context, share *laneTurn) laneReply {
	share.reply = make(chan laneReply, 1)
	queueing := time.NewTimer(turnTimeout)
	defer queueing.Stop()
	select {
	case t.requests <- share:
	case <-queueing.C:
		return laneReply{err: errNoCommitter}
	case <-ctx.Done():
		return laneReply{err: context.Cause(ctx)}
	}
	select {
	case reply := <-share.reply:
		return reply
	case <-ctx.Done():
		return laneReply{err: context.Cause(ctx)}
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
	reply, err := t.carryOut(ctx, merge(shares), claimAhead(shares))
	if err == nil {
		err = failpoint.TurnReply.Fail()
	}
	t.observe(time.Since(started), err)
	split(shares, reply, err)
}

// carryOut settles and claims on two connections where there is much to settle:
// one commit saves little then, and the database has more than one core. Where
// only one of them succeeds the lanes settle again, which changes nothing, and
// reclaim what they do not know of. Claimed rows then wait for settlements that
// may take long, so all of them must be such as can be claimed ahead.
func (t *turns) carryOut(ctx context.Context, turn Turn, ahead bool) (TurnReply, error) {
	if len(turn.Settle) < worthTwo || !turn.claims() || !ahead {
		return t.store.Turn(ctx, t.worker, turn)
	}
	var settled, claimed TurnReply
	var halves errgroup.Group
	halves.Go(func() (err error) {
		settled, err = t.store.Turn(ctx, t.worker, Turn{Settle: turn.Settle, Finish: turn.Finish})
		return err
	})
	halves.Go(func() (err error) {
		claimed, err = t.store.Turn(ctx, t.worker, Turn{Claims: turn.Claims})
		return err
	})
	err := halves.Wait()
	return TurnReply{Refused: settled.Refused, Claimed: claimed.Claimed}, err
}

func (t Turn) claims() bool {
	return slices.ContainsFunc(t.Claims, func(c Claim) bool { return c.Limit > 0 })
}

func claimAhead(shares []*laneTurn) bool {
	return !slices.ContainsFunc(shares, func(s *laneTurn) bool { return s.claim.Limit > 0 && !s.ahead })
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

func split(shares []*laneTurn, reply TurnReply, err error) {
	first, refused := 0, reply.Refused
	for i, share := range shares {
		answer := laneReply{err: err}
		if err == nil {
			answer.claimed = reply.Claimed[i]
			for len(refused) > 0 && refused[0] < first+len(share.settle) {
				answer.refused = append(answer.refused, share.settle[refused[0]-first])
				refused = refused[1:]
			}
		}
		first += len(share.settle)
		share.reply <- answer
	}
}
