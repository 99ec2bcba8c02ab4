package drainer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// linger gathers outcomes for a turn while others are still on their way.
	linger = 5 * time.Millisecond
	// pollInterval bounds the wait for rows that no notification announced.
	pollInterval = 250 * time.Millisecond
	// fullTurn is a turn's worth of outcomes: more gain little.
	fullTurn = 500
	// maxTurnOctets bounds the responses that one turn stores for a lane.
	maxTurnOctets = 4 << 20
	// maxPrefetch bounds the rows that wait in memory for a free dispatcher.
	maxPrefetch = 1000
	// reclaimInterval is how often a lane looks for claims whose reply it lost
	// and whose commit came later than its first look.
	reclaimInterval = 5 * time.Second
)

// databaseBackoff spaces a lane's turns while the database fails.
var databaseBackoff = dispatch.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second}

// lane drains one provider. Its goroutine alone reads and writes the fields
// below the line; dispatchers meet it only through jobs and outcomes.
type lane struct {
	provider  Provider
	upstreams map[string]*upstream // of all providers: a fallback may serve
	worker    string
	turns     *turns
	claims    claimStore
	lease     *lease
	observer  *observer
	log       *slog.Logger
	once      bool          // stop when nothing is due
	wake      chan struct{} // capacity 1; written by the listener

	jobs     chan *Row       // claimed, not started; its capacity is all that may be outstanding
	outcomes chan Settlement // of the same capacity, so that no dispatcher waits for a turn
	pulse    pulse           // beats with every round of the loop

	// ----
	settled     []Settlement  // outcomes that no commit has confirmed yet
	remembered  map[int64]int // claim id → rows of it that no commit has settled yet
	outstanding int           // rows in jobs, in dispatch or in outcomes
	probes      int           // of these rows and the unconfirmed outcomes
	prefetch    int
	scan        scan
	idle        idleness
	failures    int // turns in a row that the database failed
	reclaimAt   time.Time
}

func newLane(provider Provider, session *session) *lane {
	room := provider.Concurrency + maxPrefetch
	return &lane{
		provider:   provider,
		upstreams:  session.upstreams,
		worker:     session.worker,
		turns:      session.turns,
		claims:     session.store,
		lease:      session.lease,
		observer:   session.observer,
		log:        session.log.With("provider", provider.Name),
		once:       session.settings.Once,
		wake:       make(chan struct{}, 1),
		jobs:       make(chan *Row, room),
		outcomes:   make(chan Settlement, room),
		remembered: map[int64]int{},
		reclaimAt:  time.Now().Add(reclaimInterval),
	}
}

// lifetimes are the three ends a lane heeds, each later than the one before:
// stop ends claiming, abort cancels what is in flight, giveUp ends settling.
type lifetimes struct{ stop, abort, giveUp context.Context }

// run drains until it is told to stop and everything it claimed is settled.
// The error says that it had to give up with outcomes unsettled.
func (l *lane) run(life lifetimes) error {
	var dispatchers sync.WaitGroup
	for range l.provider.Concurrency {
		dispatchers.Go(func() {
			for row := range l.jobs {
				l.outcomes <- l.attempt(life, row)
			}
		})
	}
	for !l.finished(life.stop) && life.giveUp.Err() == nil {
		l.round(life)
	}
	close(l.jobs)
	if l.unsettled() {
		return context.Cause(life.giveUp) // without waiting for an adapter that ignores its context
	}
	dispatchers.Wait()
	if l.once && l.barred() {
		l.log.Warn("left due rows in the queue: the provider is paused or its circuit breaker is open")
	}
	return nil
}

func (l *lane) round(life lifetimes) {
	if life.abort.Err() == nil || l.outstanding == 0 {
		l.pulse.beat() // but not while an adapter ignores that it was cancelled
	}
	if life.stop.Err() != nil {
		l.giveBack()
	}
	l.await(life)
	if err := l.turn(life); err != nil {
		l.backOff(life, err)
	}
}

// giveBack releases what no dispatcher has begun: other workers need not wait
// until those under way are done here.
func (l *lane) giveBack() {
	for {
		select {
		case row := <-l.jobs:
			l.collect(l.release(row, 0, ""))
		default:
			return
		}
	}
}

func (l *lane) finished(stop context.Context) bool {
	if l.unsettled() {
		return false
	}
	return stop.Err() != nil || (l.once && (l.scan.nothing || l.barred()))
}

// unsettled includes a turn in doubt: it may have claimed rows.
func (l *lane) unsettled() bool {
	return l.outstanding > 0 || len(l.settled) > 0 || l.failures > 0
}

// await returns once a turn is worth its round trip.
func (l *lane) await(life lifetimes) {
	timer := time.NewTimer(l.patience(life.stop))
	defer timer.Stop()
	stopped := life.stop.Done()
	if life.stop.Err() != nil {
		stopped = nil
	}
	for !l.turnIsDue() {
		pending := len(l.settled) > 0
		select {
		case outcome := <-l.outcomes:
			l.collect(outcome)
			if !pending {
				timer.Reset(min(linger, l.patience(life.stop)))
			}
		case <-l.wake:
			return
		case <-stopped:
			return
		case <-life.giveUp.Done():
			return
		case <-timer.C:
			return
		}
	}
}

// turnIsDue reports whether waiting longer could not make the next turn better.
func (l *lane) turnIsDue() bool {
	for len(l.settled) < fullTurn {
		select {
		case outcome := <-l.outcomes:
			l.collect(outcome)
			continue
		default:
		}
		break
	}
	return len(l.settled) >= fullTurn || (len(l.settled) > 0 && l.outstanding == 0)
}

// patience is how long to wait for more outcomes before the next look.
func (l *lane) patience(stop context.Context) time.Duration {
	allowed := l.allowance(stop)
	switch {
	case len(l.settled) > 0:
		return linger
	case allowed.rows == 0:
		return allowed.wait
	case l.scan.again() && l.outstanding > 0:
		return linger
	case l.scan.again():
		return 0
	}
	return pollInterval
}

func (l *lane) collect(outcome Settlement) {
	l.outstanding--
	l.observer.ended(l.provider.Name)
	l.settled = append(l.settled, outcome)
}

// turn settles what finished and claims what fits, in one commit. After an
// error nothing is forgotten: the commit may or may not have happened, and
// settling again is harmless.
func (l *lane) turn(life lifetimes) error {
	if err := l.reclaim(life); err != nil {
		return err
	}
	settle := firstOctets(l.settled, maxTurnOctets)
	share := &laneTurn{settle: settle, finish: l.ended(settle), claim: l.nextClaim(life.stop)}
	if len(share.settle) == 0 && share.claim.Limit == 0 {
		l.reached()
		return nil
	}
	started := time.Now()
	reply := l.turns.take(life.giveUp, share)
	if reply.err != nil {
		return reply.err
	}
	l.confirm(share, reply)
	l.plan(share.claim, reply.claimed, time.Since(started))
	l.start(reply.claimed.Rows)
	return nil
}

func (l *lane) plan(claim Claim, reply ClaimReply, took time.Duration) {
	if claim.Limit == 0 {
		return
	}
	l.scan.looked(claim.Limit, reply, took)
	if l.idle.looked(claim.Idle, len(reply.Rows)) {
		l.scan.owe()
	}
}

func (l *lane) nextClaim(stop context.Context) Claim {
	allowed := l.allowance(stop)
	claim := Claim{Provider: l.provider.Name, Limit: allowed.rows, ProbeFor: allowed.probeFor, Fallback: l.provider.Fallback}
	if claim.Limit == 0 {
		return claim
	}
	claim.After = l.scan.from()
	claim.Idle = l.idle.mark()
	return claim
}

// firstOctets takes as many settlements as one turn can carry: at least one,
// and not more octets of responses than reach the database well within its
// timeout.
func firstOctets(settled []Settlement, limit int) []Settlement {
	octets := 0
	for i := range settled {
		octets += len(settled[i].Result.Response)
		if octets > limit && i > 0 {
			return settled[:i]
		}
	}
	return settled
}

// ended lists the claims of which these settlements are the last.
func (l *lane) ended(settle []Settlement) []int64 {
	var ended []int64
	left := map[int64]int{}
	for i := range settle {
		claim := settle[i].Row.ClaimID
		if _, counted := left[claim]; !counted {
			left[claim] = l.remembered[claim]
		}
		left[claim]--
		if left[claim] == 0 {
			ended = append(ended, claim)
		}
	}
	return ended
}

func (l *lane) confirm(share *laneTurn, reply laneReply) {
	if l.failures == 0 {
		// After a failed turn a refusal may be the echo of a settlement that was
		// committed although its reply was lost.
		l.observer.refused(l.provider.Name, reply.refused)
	}
	l.reached()
	for i := range share.settle {
		l.remembered[share.settle[i].Row.ClaimID]--
		if share.settle[i].Row.Probe {
			l.probes--
		}
	}
	for _, claim := range share.finish {
		delete(l.remembered, claim)
	}
	l.prefetch = 0
	if l.provider.mayPrefetch() && l.own().breaker.passage() == passRows {
		l.prefetch = min(len(share.settle), maxPrefetch)
	}
	l.settled = l.settled[len(share.settle):]
	if len(l.settled) == 0 {
		l.settled = nil // lets go of the responses
	}
}

// reached notes that the database answered and no turn is in doubt any more.
func (l *lane) reached() {
	if l.failures > 0 {
		l.log.Info("database is back", "failed_turns", l.failures)
	}
	l.failures = 0
}

func (l *lane) start(rows []*Row) {
	for _, row := range rows {
		l.remembered[row.ClaimID]++
		if row.Probe {
			l.probes++
		}
		if upstream, configured := l.upstreams[row.server()]; configured {
			upstream.spend()
		}
		l.jobs <- row
	}
	l.outstanding += len(rows)
	l.observer.claimed(l.provider.Name, len(rows))
}

// reclaim gives back rows that a turn claimed without its reply arriving. Only
// the lane itself may do so, between turns, when it knows what it remembers.
func (l *lane) reclaim(life lifetimes) error {
	if l.failures == 0 && time.Now().Before(l.reclaimAt) {
		return nil
	}
	ctx, cancel := context.WithTimeout(life.giveUp, turnTimeout)
	defer cancel()
	given, err := l.claims.Reclaim(ctx, l.worker, l.provider.Name, slices.Collect(maps.Keys(l.remembered)),
		func(row *Row) (Settlement, bool) { return release(row, 0, "reply_lost"), true })
	if err != nil {
		return err
	}
	if len(given) > 0 {
		l.log.Warn("gave back rows whose claim's reply was lost", "rows", len(given))
		l.scan.owe()
	}
	l.reclaimAt = time.Now().Add(reclaimInterval)
	return nil
}

// backOff waits out a failing database. Outcomes keep arriving in the
// channel's room meanwhile, and stay there until a turn confirms them.
func (l *lane) backOff(life lifetimes, err error) {
	l.failures++
	if l.failures == 1 && !errors.Is(err, context.Canceled) {
		l.log.Warn("turn failed; retrying with backoff, outcomes are kept", "error", err)
	}
	pause(life.giveUp, databaseBackoff.Delay(l.failures, databaseBackoff.Base/2, rand.Float64()))
}
