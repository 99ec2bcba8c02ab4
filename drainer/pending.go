package drainer

import (
	"slices"
	"time"
)

// turnsAtOnce is how many of a lane's turns may claim, and how many may settle, at
// the same time: while one waits for its commit or is being read, the database has
// another one to work on.
const turnsAtOnce = 2

// pending are the turns of a lane that it has not heard of in full: one may have
// claimed already and still be settling.
type pending struct {
	claiming, settling []*laneTurn
	claimed            chan claimNews
	confirmed          chan settleNews
}

func newPending() pending {
	return pending{claimed: make(chan claimNews, turnsAtOnce), confirmed: make(chan settleNews, turnsAtOnce)}
}

func (p *pending) any() bool { return len(p.claiming) > 0 || len(p.settling) > 0 }

func (p *pending) add(turn *laneTurn) {
	if turn.claims() {
		p.claiming = append(p.claiming, turn)
	}
	if turn.settles() {
		p.settling = append(p.settling, turn)
	}
}

func (p *pending) hasClaimed(turn *laneTurn) { p.claiming = without(p.claiming, turn) }

func (p *pending) hasSettled(turn *laneTurn) { p.settling = without(p.settling, turn) }

func without(turns []*laneTurn, heard *laneTurn) []*laneTurn {
	return slices.DeleteFunc(turns, func(t *laneTurn) bool { return t == heard })
}

// rows is how many its claims may bring.
func (p *pending) rows() (rows int) {
	for _, turn := range p.claiming {
		rows += turn.claim.Limit
	}
	return rows
}

// overdue holds where a turn was begun that nobody can still be working on.
func (p *pending) overdue() bool {
	return slices.ContainsFunc(slices.Concat(p.claiming, p.settling), func(t *laneTurn) bool {
		return time.Since(t.begunAt) > 2*turnTimeout // for a committer, and for the turn
	})
}
