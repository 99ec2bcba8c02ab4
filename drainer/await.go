package drainer

import (
	"context"
	"time"
)

// await returns once a turn is worth its round trip or, reporting false, once it
// has heard of one. It brings the outcomes along for which alone it was not woken.
func (l *lane) await(life lifetimes) (isDue bool) {
	isDue = l.sleep(life)
	l.gather()
	return isDue
}

func (l *lane) sleep(life lifetimes) (isDue bool) {
	timer := time.NewTimer(l.patience(life.stop))
	defer timer.Stop()
	wake, lingers := l.wake, len(l.settled) > 0
	if l.pending.any() {
		wake, lingers = nil, true // it keeps: a claim under way may have looked before what it tells of
	}
	stopped := life.stop.Done()
	if life.stop.Err() != nil {
		stopped = nil
	}
	for l.gather(); !l.turnIsDue(life.stop); l.gather() {
		if len(l.settled) > 0 && !lingers {
			timer.Reset(linger)
			lingers = true
		}
		select {
		case <-l.outcomes.whenThere(l.worthWaking(lingers)):
		case news := <-l.pending.claimed:
			l.hearClaimed(news)
			return false
		case news := <-l.pending.confirmed:
			l.hearSettled(news)
			return false
		case <-wake:
			l.idle.woken()
			return true
		case <-stopped:
			return true
		case <-life.giveUp.Done():
			return true
		case <-timer.C:
			return true
		}
	}
	return true
}

// turnIsDue reports whether waiting longer could not make the next turn better.
func (l *lane) turnIsDue(stop context.Context) bool {
	if l.pending.any() {
		return l.maySettle() || l.mayClaim(stop)
	}
	return len(l.settled) >= fullTurn || (len(l.settled) > 0 && l.outstanding == 0)
}

// worthWaking is how many outcomes change something for the lane: the first of all
// begins to linger, and the last, or many, may make a turn due. It is 0 while a
// turn's worth waits: what is not collected is outstanding, and so bounds what is
// claimed.
func (l *lane) worthWaking(lingers bool) int {
	if !lingers {
		return 1
	}
	return max(0, min(l.outstanding, fullTurn-len(l.settled), manyOutcomes))
}

// gather takes what has arrived, as far as one turn can use it.
func (l *lane) gather() {
	before := len(l.settled)
	l.settled = l.outcomes.take(l.settled, max(0, fullTurn-before))
	if arrived := len(l.settled) - before; arrived > 0 {
		l.collected(arrived)
	}
}

// patience is how long to wait for more outcomes before the next look.
func (l *lane) patience(stop context.Context) time.Duration {
	allowed := l.allowance(stop)
	switch {
	case l.pending.any():
		return pollInterval
	case len(l.settled) > 0 || len(l.emptied) > 0:
		return linger
	case allowed.rows == 0:
		return allowed.wait
	case l.scan.again() && l.outstanding > 0:
		return linger
	case l.scan.again():
		return 0
	}
	return l.idle.patience()
}
