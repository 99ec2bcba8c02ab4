package drainer

import (
	"context"
	"time"

	"github.com/agentoutbox/drainer/internal/failpoint"
)

// turn settles what finished and claims what fits, most often in one commit. After an
// error nothing is forgotten: the commit may or may not have happened, and
// settling again is harmless.
func (l *lane) turn(life lifetimes) error {
	if err := l.reclaim(life); err != nil {
		return err
	}
	settle := firstOctets(l.settled, maxTurnOctets)
	share := newLaneTurn(settle, l.ended(settle), l.nextClaim(life.stop))
	if len(share.settle) == 0 && share.claim.Limit == 0 {
		l.reached()
		return nil
	}
	started := time.Now()
	if err := l.turns.take(life.giveUp, share); err != nil {
		return err
	}
	claimed, claimErr := hear(life.giveUp, share.claimed)
	if claimErr == nil {
		l.plan(share.claim, claimed, time.Since(started))
		l.start(claimed.Rows)
	}
	refused, err := hear(life.giveUp, share.refused)
	if err != nil {
		return err
	}
	l.confirm(share, refused)
	return claimErr
}

func (l *lane) plan(claim Claim, reply ClaimReply, took time.Duration) {
	if claim.Limit == 0 {
		return
	}
	l.scan.looked(claim.Limit, reply, took)
	if !l.isDetour() && l.idle.looked(claim.Idle, reply.Found) {
		l.scan.owe()
	}
}

func (l *lane) nextClaim(stop context.Context) Claim {
	allowed := l.allowance(stop)
	claim := Claim{
		Provider: l.provider, Server: l.server.provider.Name, Fallback: l.fallback,
		Limit: allowed.rows, ProbeFor: allowed.probeFor,
	}
	if claim.Limit == 0 {
		return claim
	}
	claim.After = l.nextCursor(claim)
	if !l.isDetour() { // its own lane tells producers whether to notify
		claim.Idle = l.idle.mark()
	}
	return claim
}

// nextCursor spares a probe the cursor: the one row that may be tried can lie
// behind it.
func (l *lane) nextCursor(claim Claim) Cursor {
	if claim.ProbeFor > 0 {
		return l.scan.everywhere()
	}
	return l.scan.from()
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

func (l *lane) confirm(share *laneTurn, refused []Settlement) {
	if l.failures == 0 {
		// After a failed turn a refusal may be the echo of a settlement that was
		// committed although its reply was lost.
		l.observer.refused(l.provider, refused)
		for i := range refused {
			refused[i].Row.spans.refused()
		}
	}
	l.reached()
	if len(share.settle) > 0 {
		failpoint.SettleCommitted.Hit()
	}
	for i := range share.settle {
		l.remembered[share.settle[i].Row.ClaimID]--
		l.sagaMoved(share.settle[i])
		share.settle[i].Row.spans.settled()
		if share.settle[i].Row.Probe {
			l.probes--
		}
	}
	for _, claim := range share.finish {
		delete(l.remembered, claim)
	}
	l.prefetch = 0
	if l.mayPrefetch() {
		l.prefetch = worthPrefetching(len(share.settle), l.heft)
	}
	// The next turn's outcomes take the room of this one's, whose responses go.
	left := copy(l.settled, l.settled[len(share.settle):])
	clear(l.settled[left:])
	l.settled = l.settled[:left]
}

// reached notes that the database answered and no turn is in doubt any more.
func (l *lane) reached() {
	if l.failures > 0 {
		l.log.Info("database is back", "failed_turns", l.failures)
	}
	l.failures = 0
}

func (l *lane) start(rows []*Row) {
	if len(rows) > 0 {
		failpoint.ClaimCommitted.Hit()
	}
	octets := 0
	for _, row := range rows {
		octets += len(row.Payload)
		l.remembered[row.ClaimID]++
		if row.Probe {
			l.probes++
		}
		if upstream, configured := l.upstreams[row.server()]; configured {
			upstream.spend()
		}
		l.jobs <- row
	}
	if len(rows) > 0 {
		l.heft = octets / len(rows)
	}
	l.outstanding += len(rows)
	l.observer.claimed(l.provider, len(rows))
}
