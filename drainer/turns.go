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

// laneTurn is one lane's share of a turn. The lane hears of each half that it has,
// as soon as that much is committed.
type laneTurn struct {
	settle    []Settlement
	finish    []int64
	claim     Claim
	begunAt   time.Time
	claimed   chan<- claimNews
	confirmed chan<- settleNews
}

// claimNews and settleNews tell what became of one half of a lane's turn.
type (
	claimNews struct {
		of    *laneTurn
		reply ClaimReply
		err   error
	}
	settleNews struct {
		of      *laneTurn
		refused []Settlement
		err     error
	}
)

func newLaneTurn(of *pending) *laneTurn {
	return &laneTurn{begunAt: time.Now(), claimed: of.claimed, confirmed: of.confirmed}
}

func (t *laneTurn) claims() bool  { return t.claim.Limit > 0 }
func (t *laneTurn) settles() bool { return len(t.settle) > 0 || len(t.finish) > 0 }

func (t *laneTurn) tellClaimed(reply ClaimReply, err error) {
	if t.claims() {
		t.claimed <- claimNews{t, reply, err}
	}
}

func (t *laneTurn) tellConfirmed(refused []Settlement, err error) {
	if t.settles() {
		t.confirmed <- settleNews{t, refused, err}
	}
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

// take hands one lane's share to a committer. The lane does not wait for that: what
// it has claimed meanwhile must be sent.
func (t *turns) take(ctx context.Context, share *laneTurn) {
	select {
	case t.requests <- share:
	default:
		go t.queue(ctx, share)
	}
}

// queue waits for a committer as long as for a turn: behind many others the wait
// would add up.
func (t *turns) queue(ctx context.Context, share *laneTurn) {
	queueing := time.NewTimer(turnTimeout)
	defer queueing.Stop()
	err := errNoCommitter
	select {
	case t.requests <- share:
		return
	case <-queueing.C:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	share.tellClaimed(ClaimReply{}, err)
	share.tellConfirmed(nil, err)
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

// carryOut settles and claims in one commit, or on two connections where a lane alone
// has much to settle: one commit saves little then, and the database has more than one
// core. What is claimed does not wait for what is settled: it would count as sent if
// this worker died meanwhile. Where only the settling fails the lanes settle again,
// which changes nothing; where the claiming does, they reclaim what they do not
// know of. Who settles again claims after that: nothing more is sent as long as
// nothing can be settled, and what became of a row may have to be looked up first.
func (t *turns) carryOut(ctx context.Context, shares []*laneTurn) error {
	turn := merge(shares)
	switch {
	case turn.claims() && turn.repeats():
		if err := t.settle(ctx, shares, turn); err != nil {
			tellClaimed(shares, nil, err)
			return err
		}
		return t.claim(ctx, shares, turn)
	case turn.claims() && len(shares) == 1 && len(turn.Settle) >= worthTwo:
		var settling errgroup.Group
		settling.Go(func() error { return t.settle(ctx, shares, turn) })
		return errors.Join(t.claim(ctx, shares, turn), settling.Wait())
	}
	reply, err := t.turn(ctx, turn)
	tellClaimed(shares, reply.Claimed, err)
	tellConfirmed(shares, reply.Refused, err)
	return err
}

func (t *turns) settle(ctx context.Context, shares []*laneTurn, turn Turn) error {
	reply, err := t.turn(ctx, Turn{Settle: turn.Settle, Finish: turn.Finish})
	tellConfirmed(shares, reply.Refused, err)
	return err
}

func (t *turns) claim(ctx context.Context, shares []*laneTurn, turn Turn) error {
	reply, err := t.turn(ctx, Turn{Claims: turn.Claims})
	tellClaimed(shares, reply.Claimed, err)
	return err
}

func (t Turn) repeats() bool {
	return slices.ContainsFunc(t.Settle, func(s Settlement) bool { return s.Repeats })
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
		var reply ClaimReply
		if err == nil {
			reply = claimed[i]
		}
		share.tellClaimed(reply, err)
	}
}

func tellConfirmed(shares []*laneTurn, refused []int, err error) {
	first := 0
	for _, share := range shares {
		var own []Settlement
		for len(refused) > 0 && refused[0] < first+len(share.settle) {
			own = append(own, share.settle[refused[0]-first])
			refused = refused[1:]
		}
		first += len(share.settle)
		share.tellConfirmed(own, err)
	}
}
