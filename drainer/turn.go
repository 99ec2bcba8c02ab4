package drainer

import "context"

// begin settles what finished and claims what fits, most often in one commit, and
// does not wait for it.
func (l *lane) begin(life lifetimes) {
	if !l.mayBegin() {
		return
	}
	if err := l.reclaim(life); err != nil {
		l.fail(err)
		return
	}
	share := l.nextTurn(life.stop)
	if !share.settles() && !share.claims() {
		l.heard()
		return
	}
	l.pending.add(share)
	l.turns.take(life.giveUp, share)
}

// mayBegin keeps a turn from beginning beside another one where the lane has to
// know first what became of that, or where the workers that share the provider's
// rows keep the database busy: more claims at once pass over each other's rows.
func (l *lane) mayBegin() bool {
	return !l.pending.any() || (l.failed == nil && l.failures == 0 && !l.reclaimIsDue() && !l.server.shared.Load())
}

// maySettle and mayClaim let a turn begin beside another one only if it is worth
// that: what is less is better off in the next.
func (l *lane) maySettle() bool {
	if !l.pending.any() {
		return true
	}
	return l.mayBegin() && len(l.pending.settling) < turnsAtOnce && len(l.settled) >= fullTurn
}

func (l *lane) mayClaim(stop context.Context) bool {
	if !l.pending.any() {
		return true
	}
	return l.mayBegin() && len(l.pending.claiming) < turnsAtOnce && l.scan.hungry && l.allowance(stop).rows >= fullTurn/2
}

func (l *lane) nextTurn(stop context.Context) *laneTurn {
	share := newLaneTurn(&l.pending)
	settles, claims, isAlone := l.maySettle(), l.mayClaim(stop), !l.pending.any()
	if settles {
		share.settle = l.takeSettled()
		share.finish = append(l.ended(share.settle), l.emptied...)
		l.emptied = nil
	}
	if claims {
		share.claim = l.nextClaim(stop)
	}
	if isAlone && len(share.settle) == 0 {
		l.prefetch = 0 // nobody has ended a row since the last turn
	}
	return share
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

// takeSettled halves what it takes as long as turns fail: it may be too much for
// the time that a turn has.
func (l *lane) takeSettled() []Settlement {
	most := min(len(l.settled), max(1, fullTurn>>l.failures))
	taken := firstOctets(l.settled[:most], maxTurnOctets)
	l.settled = append(l.shelf.take(), l.settled[len(taken):]...)
	return taken
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

// shelf keeps room for outcomes, to be used again.
type shelf [][]Settlement

func (s *shelf) take() (room []Settlement) {
	if last := len(*s) - 1; last >= 0 {
		room, *s = (*s)[last], (*s)[:last]
	}
	return room
}

// put lets go of what the room held: it can be large.
func (s *shelf) put(room []Settlement) {
	clear(room[:cap(room)])
	*s = append(*s, room[:0])
}
