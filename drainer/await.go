package drainer

import (
	"context"
	"time"
)

// await returns once a turn is worth its round trip.
func (l *lane) await(life lifetimes) {
	timer := time.NewTimer(l.patience(life.stop))
	defer timer.Stop()
	lingers := len(l.settled) > 0
	stopped := life.stop.Done()
	if life.stop.Err() != nil {
		stopped = nil
	}
	for l.gather(); !l.turnIsDue(); l.gather() {
		if len(l.settled) > 0 && !lingers {
			timer.Reset(linger)
			lingers = true
		}
		select {
		case outcome := <-l.outcomes:
			l.collect(outcome)
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
	return len(l.settled) >= fullTurn || (len(l.settled) > 0 && l.outstanding == 0)
}

// gather takes what has arrived, as far as one turn can use it.
func (l *lane) gather() {
	for len(l.settled) < fullTurn {
		select {
		case outcome := <-l.outcomes:
			l.collect(outcome)
		default:
			return
		}
	}
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
