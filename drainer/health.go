package drainer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// stuckAfter is well above what one round of a lane's loop can take: a turn's
// timeout, for what was lost, and the longest backoff. A round counts as none while
// a turn is overdue.
const stuckAfter = time.Minute

// pulse is when a loop last went round: nothing before it has begun, and after it
// has ended.
type pulse struct{ last atomic.Pointer[time.Time] }

func (p *pulse) beat() {
	now := time.Now() // with its monotonic reading: a clock that jumps makes nobody stuck
	p.last.Store(&now)
}

func (p *pulse) end() { p.last.Store(nil) }

func (p *pulse) stuck() bool {
	last := p.last.Load()
	return last != nil && time.Since(*last) > stuckAfter
}

var errNotJoined = errors.New("this worker has not joined: the database is unreachable, or the daemon is starting or stopping")

// Live reports a loop that no longer goes round: a bug, cured by a restart. It
// never asks the database: restarting cures no outage. A session that was
// retired may take as long as its dispatches may.
func (d *Daemon) Live() error {
	for _, session := range d.roster.all() {
		for route, lane := range session.lanes {
			if lane.pulse.stuck() {
				return fmt.Errorf("the lane of provider %q has been stuck for over %s; restart this process", route.provider, stuckAfter)
			}
		}
	}
	return nil
}

// Ready reports why this process may not claim rows right now.
func (d *Daemon) Ready() error {
	session := d.roster.newest()
	if session == nil || session.stopping.Load() || !session.lease.holds() {
		return errNotJoined
	}
	return nil
}
