package drainer

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/internal/failpoint"
)

const (
	// connections is how many batches may be under way at once. With more, the database does not
	// commit faster.
	connections = 4
	// lanesPerBatch bounds how many lanes share a commit, and so wait for each other's rows.
	lanesPerBatch = 12
	batchTimeout  = 10 * time.Second
	// worthTwo is from how many outcomes on a batch settles and claims on two connections.
	worthTwo = fullBatch / 10
)

// committer lets lanes share commits. While all of its connections are busy, lanes queue up; the next free
// connection takes the shares of several lanes into one batch. A single lane never waits for others.
type committer struct {
	store   batchStore
	worker  string
	observe func(took time.Duration, err error)
	sagas   func(SagaNews) // may be nil
	shares  chan *share
	idle    atomic.Int32 // connections that wait for a share
}

// share is one lane's part of a batch: rows to settle, a claim, or both. The lane gets the result of each of
// the two as soon as it is committed.
type share struct {
	settle  []Settlement
	finish  []int64
	claim   Claim
	begunAt time.Time
	claimed chan<- claimResult
	settled chan<- settleResult
}

// claimResult and settleResult are the outcomes of the two halves of a share.
type (
	claimResult struct {
		of    *share
		reply ClaimReply
		err   error
	}
	settleResult struct {
		of      *share
		refused []Settlement
		err     error
	}
)

func newShare(of *inFlight) *share {
	return &share{begunAt: time.Now(), claimed: of.claimed, settled: of.settled}
}

func (s *share) claims() bool  { return s.claim.Limit > 0 }
func (s *share) settles() bool { return len(s.settle) > 0 || len(s.finish) > 0 }

func (s *share) sendClaimed(reply ClaimReply, err error) {
	if s.claims() {
		s.claimed <- claimResult{s, reply, err}
	}
}

func (s *share) sendSettled(refused []Settlement, err error) {
	if s.settles() {
		s.settled <- settleResult{s, refused, err}
	}
}

func newCommitter(store batchStore, worker string, observe func(time.Duration, error), sagas func(SagaNews)) *committer {
	return &committer{store: store, worker: worker, observe: observe, sagas: sagas, shares: make(chan *share)}
}

// run commits until ctx ends. Lanes must have stopped asking by then.
func (c *committer) run(ctx context.Context) {
	var group errgroup.Group
	for range connections {
		group.Go(func() error {
			for {
				c.idle.Add(1)
				select {
				case <-ctx.Done():
					return nil
				case first := <-c.shares:
					c.idle.Add(-1)
					c.commit(ctx, c.gather(first))
				}
			}
		})
	}
	_ = group.Wait()
}

var errNoCommitter = errors.New("the batches of other lanes take too long")

// take hands one lane's share to a free connection, or queues it. The lane does not wait, since it has claimed
// rows to send.
func (c *committer) take(ctx context.Context, share *share) {
	select {
	case c.shares <- share:
	default:
		go c.queue(ctx, share)
	}
}

// queue waits for a free connection for at most batchTimeout, so that waits behind many other lanes do not add up.
func (c *committer) queue(ctx context.Context, share *share) {
	queueing := time.NewTimer(batchTimeout)
	defer queueing.Stop()
	err := errNoCommitter
	select {
	case c.shares <- share:
		return
	case <-queueing.C:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	share.sendClaimed(ClaimReply{}, err)
	share.sendSettled(nil, err)
}

func (c *committer) gather(first *share) []*share {
	shares := []*share{first}
	for len(shares) < lanesPerBatch {
		select {
		case share := <-c.shares:
			shares = append(shares, share)
		default:
			return shares
		}
	}
	return shares
}

func (c *committer) commit(ctx context.Context, shares []*share) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	started := time.Now()
	err := c.execute(ctx, shares)
	c.observe(time.Since(started), err)
}

// execute settles and claims in one commit. If a single lane has many rows to settle, it does so on two connections:
// a shared commit would save little then, and the database has more than one core. The claimed rows are sent
// without waiting for the settlement, because they must be taken as sent if this worker dies meanwhile.
//
// If only the settlement fails, the lanes settle again, which is harmless. If only the claim fails, they reclaim rows
// whose reply was lost. A batch that settles again claims only after that has succeeded: while nothing can be
// settled, nothing more is sent, and a row's outcome may have to be looked up before it is claimed again.
func (c *committer) execute(ctx context.Context, shares []*share) error {
	batch := merge(shares)
	switch {
	case batch.claims() && batch.repeats():
		if err := c.settle(ctx, shares, batch); err != nil {
			sendClaimed(shares, nil, err)
			return err
		}
		return c.claim(ctx, shares, batch)
	case batch.claims() && len(shares) == 1 && len(batch.Settle) >= worthTwo:
		var settling errgroup.Group
		settling.Go(func() error { return c.settle(ctx, shares, batch) })
		return errors.Join(c.claim(ctx, shares, batch), settling.Wait())
	}
	reply, err := c.do(ctx, batch)
	sendClaimed(shares, reply.Claimed, err)
	sendSettled(shares, reply.Refused, err)
	return err
}

func (c *committer) settle(ctx context.Context, shares []*share, batch Batch) error {
	reply, err := c.do(ctx, Batch{Settle: batch.Settle, Finish: batch.Finish})
	sendSettled(shares, reply.Refused, err)
	return err
}

func (c *committer) claim(ctx context.Context, shares []*share, batch Batch) error {
	reply, err := c.do(ctx, Batch{Claims: batch.Claims})
	sendClaimed(shares, reply.Claimed, err)
	return err
}

func (b Batch) repeats() bool {
	return slices.ContainsFunc(b.Settle, func(s Settlement) bool { return s.Repeats })
}

func (c *committer) do(ctx context.Context, batch Batch) (BatchReply, error) {
	reply, err := c.store.Commit(ctx, c.worker, batch)
	if err == nil && c.sagas != nil && reply.Sagas != (SagaNews{}) {
		c.sagas(reply.Sagas)
	}
	if err == nil {
		err = failpoint.BatchReply.Fail()
	}
	return reply, err
}

func (b Batch) claims() bool {
	return slices.ContainsFunc(b.Claims, func(c Claim) bool { return c.Limit > 0 })
}

func merge(shares []*share) Batch {
	if len(shares) == 1 {
		alone := shares[0]
		return Batch{Settle: alone.settle, Finish: alone.finish, Claims: []Claim{alone.claim}}
	}
	var batch Batch
	for _, share := range shares {
		batch.Settle = append(batch.Settle, share.settle...)
		batch.Finish = append(batch.Finish, share.finish...)
		batch.Claims = append(batch.Claims, share.claim)
	}
	return batch
}

func sendClaimed(shares []*share, claimed []ClaimReply, err error) {
	for i, share := range shares {
		var reply ClaimReply
		if err == nil {
			reply = claimed[i]
		}
		share.sendClaimed(reply, err)
	}
}

func sendSettled(shares []*share, refused []int, err error) {
	first := 0
	for _, share := range shares {
		var own []Settlement
		for len(refused) > 0 && refused[0] < first+len(share.settle) {
			own = append(own, share.settle[refused[0]-first])
			refused = refused[1:]
		}
		first += len(share.settle)
		share.sendSettled(own, err)
	}
}
