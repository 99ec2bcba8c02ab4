package saga

import "github.com/agentoutbox/drainer/dispatch"

// claim takes a row out of the queue.
func (r *Row) claim() {
	r.Place = Claimed
	r.Tries++
	if r.Asks {
		r.Tries = min(r.Tries, LookupTries)
	}
}

// end is what follows from an attempt.
func (r *Row) end(decision dispatch.Decision) {
	r.Place, r.Status = Settled, statusOf(decision.Status)
	if decision.Back() {
		r.Place = Queued
	}
	r.Tries, r.Maybe, r.Asks = int8(decision.Tries), decision.MaybeApplied, decision.Lookup
}

func (r *Row) settle(status Status) { r.Place, r.Status = Settled, status }

func (r *Row) cancel() { r.settle(cancelled) }

func (r *Row) putBack() { r.Place = Queued }

// decide asks the engine what follows from an attempt.
func (r *Row) decide(policy dispatch.Policy, outcome dispatch.Outcome) dispatch.Decision {
	return policy.Decide(r.history(), dispatch.Result{Outcome: outcome}, 0)
}

func (r *Row) history() dispatch.History {
	return dispatch.History{Tries: int(r.Tries), MaybeApplied: r.Maybe, Lookup: r.Asks}
}
