package drainer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentoutbox/drainer/dispatch"
)

// upstream is the way to one provider: its adapter and what limits its use. It
// is shared by all lanes of this process that may send there, the provider's
// own and those that it is the fallback of.
type upstream struct {
	provider   dispatch.Provider
	breaker    *breaker
	overloads  run
	refusals   refusals
	operations map[string]*operation // by name; written by newUpstream alone
	slots      *slots
	pace       *rate.Limiter
	shared     atomic.Bool // other workers send there as well

	isRendered func(ctx context.Context, operation string) (bool, error) // see fleetStore

	shutOperations atomic.Int64 // as the fleet last told
}

func newUpstream(provider dispatch.Provider) *upstream {
	u := &upstream{
		provider:   provider,
		breaker:    newBreaker(provider.Name, provider.Breaker.CoolDown),
		overloads:  run{enough: provider.Breaker.ConsecutiveFailures},
		refusals:   refusals{trusts: true},
		operations: make(map[string]*operation, len(provider.Tools)),
		slots:      newSlots(provider.Concurrency),
		pace:       rate.NewLimiter(perSecond(provider), 1), // a restart is no reason for a burst
		isRendered: func(context.Context, string) (bool, error) { return false, nil },
	}
	for name := range provider.Tools {
		u.operations[name] = &operation{
			breaker: newBreaker(provider.Name+"/"+name, provider.Breaker.CoolDown),
			window:  window{policy: provider.Breaker},
			missing: run{enough: provider.Breaker.ConsecutiveFailures},
		}
	}
	return u
}

// follow keeps the provider's limits across a handover: what the sessions before
// this one still have under way counts, and so does what they have just sent.
func (u *upstream) follow(roster *roster, session *session) {
	name := u.provider.Name
	u.slots.elsewhere = func() int { return roster.inUse(name, session) }
	if before := roster.newest(); before != nil && before.upstreams[name] != nil {
		u.pace = before.upstreams[name].pace
	}
}

func perSecond(provider dispatch.Provider) rate.Limit {
	if provider.RateLimit.PerSecond == 0 {
		return rate.Inf
	}
	return rate.Limit(provider.RateLimit.PerSecond)
}

// applyGate takes over what the fleet knows, with this worker's share of what all
// may do together, and returns what was known before.
func (u *upstream) applyGate(gate Gate) (before Gate) {
	u.shared.Store(gate.Workers > 1)
	u.slots.resize(gate.share(u.provider.Concurrency))
	if limit := perSecond(u.provider); limit != rate.Inf {
		u.pace.SetLimit(limit / rate.Limit(max(1, gate.Workers)))
		u.pace.SetBurst(max(1, gate.share(u.provider.RateLimit.Burst)))
	} else {
		u.pace.SetLimit(rate.Inf)
	}
	return u.breaker.applyGate(gate)
}

// applyOperationGates takes over which operations the fleet has shut; it has all others open.
func (u *upstream) applyOperationGates(shut map[string]Gate) (changed []gateChange) {
	count := 0
	for _, of := range u.operations {
		gate, is := shut[of.breaker.name]
		if is {
			count++
		} else {
			gate = Gate{Name: of.breaker.name, Breaker: BreakerClosed}
		}
		if before := of.breaker.applyGate(gate); before.Breaker != gate.Breaker {
			changed = append(changed, gateChange{before, gate})
		}
	}
	u.shutOperations.Store(int64(count))
	return changed
}

// gateChange has the states of a gate by two looks at the fleet.
type gateChange struct{ before, now Gate }

// budget is how many dispatches may begin now, and, if none, when one may.
func (u *upstream) budget() (dispatches int, wait time.Duration) {
	if u.pace.Limit() == rate.Inf {
		return maxPrefetch + u.provider.Concurrency, 0
	}
	tokens := u.pace.Tokens()
	if tokens < 1 {
		return 0, time.Duration((1 - tokens) / float64(u.pace.Limit()) * float64(time.Second))
	}
	return int(tokens), 0
}

// spend takes one dispatch off the budget.
func (u *upstream) spend() {
	if u.pace.Limit() != rate.Inf {
		u.pace.Reserve()
	}
}

// admits reports whether a claimed row may be sent now, as far as the provider as a whole goes.
func (u *upstream) admits(row *Row) bool { return u.breaker.admits(row) }

// shut returns the breaker that keeps this operation's rows back, or nil. What tries the
// provider passes it.
func (u *upstream) shut(row *Row, operation string) *breaker {
	of := u.operations[operation]
	if of == nil || row.Probe == u.provider.Name || of.breaker.admits(row) {
		return nil
	}
	return of.breaker
}

// record counts what came of an attempt, and returns what that means for breakers. What was
// refused on this side, or took too long here, says nothing of the provider: a payload could
// otherwise shut a provider off, or keep the gate of one that is away open.
//
// Only a refusal for lack of room, or a connection that could not be made, speaks for the
// whole provider. A timeout or a 5xx speaks for its operation, and for the provider once most of its
// operations are shut. A refusal of one operation speaks for the provider once all are shut: a broker
// without a quorum lacks all its queues.
func (u *upstream) record(row *Row, operation string, result dispatch.Result) (changes []BreakerChange) {
	if result.Unsent {
		return u.unproven(row)
	}
	add := func(change *BreakerChange) {
		if change != nil {
			changes = append(changes, *change)
		}
	}
	if len(u.operations) == 1 {
		result.OfOperation = false // it is all that the provider does: its fallback may serve
	}
	of, overloaded, failed := u.operations[operation], result.Overloaded(), result.Failed()
	answered := !failed || result.HTTPStatus != 0 || result.OfOperation
	switch {
	case row.Probe == u.provider.Name:
		// Any answer proves that it lives, a 500 as well. Where it is shut because all operations are, one that is refused is no answer.
		reason, stillRefused := OpenReason(""), result.OfOperation && u.breaker.isFor(FailureRate)
		if stillRefused {
			reason = FailureRate
		}
		add(u.breaker.verdict(overloaded || !answered || stillRefused, reason, result.RetryAfter))
		return changes
	case row.Probe != "" && of != nil && row.Probe == of.breaker.name:
		reason := OpenReason("")
		if failed { // whatever it was shut for before
			reason = FailureRate
		}
		add(of.breaker.verdict(failed, reason, result.RetryAfter))
	case of != nil && of.breaker.passage() == passRows && of.fails(row, result, failed, answered):
		if u.failsWith(of, result.OfOperation) {
			add(u.breaker.open(FailureRate, 0))
		} else {
			add(of.breaker.open(FailureRate, 0))
		}
	}
	if u.overloads.add(overloaded, answered) {
		add(u.breaker.open(Overloaded, result.RetryAfter))
	}
	return changes
}

// spares reports that a probe uses none of its row's tries: it tried a gate on behalf of all workers, and an outage
// must not use the row up. Where the row that failed least is the next probe, that holds for its last try alone: else
// one row that cannot be sent would be each probe.
func (u *upstream) spares(row *Row, result dispatch.Result, isLast bool) bool {
	meets := (result.Overloaded() || result.OfOperation) && !result.Outcome.LeavesDoubt()
	return row.Probe != "" && meets && (isLast || !u.gate(row.Probe).isFor(FailureRate))
}

func (u *upstream) gate(name string) *breaker {
	for _, of := range u.operations {
		if of.breaker.name == name {
			return of.breaker
		}
	}
	return u.breaker
}

// unproven lets another worker try what this row was to try: it was never sent.
func (u *upstream) unproven(row *Row) []BreakerChange {
	if row.Probe == "" {
		return nil
	}
	return []BreakerChange{{Gate: row.Probe, Open: true, Probe: true}}
}

// failsWith reports whether it is the provider that fails, with this operation: most operations that are in
// use are shut, or all of them where they were refused one by one. One that has a single operation fails with it.
func (u *upstream) failsWith(with *operation, refused bool) bool {
	if len(u.operations) == 1 {
		return true
	}
	shut, inUse, now := 1, 1, time.Now()
	for _, other := range u.operations {
		switch {
		case other == with:
		case other.breaker.passage() != passRows:
			shut, inUse = shut+1, inUse+1
		case !other.window.isIdle(now):
			inUse++
		}
	}
	if refused {
		return shut > 1 && shut == inUse
	}
	return shut > 1 && 2*shut > inUse
}

// run counts overloads in a row, or refusals of one operation.
type run struct {
	enough int // 0: any number is well

	mu     sync.Mutex
	length int
}

// add reports that there are enough of them; then it begins again. An attempt without an
// answer neither continues a run nor ends it.
func (r *run) add(overloaded, answered bool) bool {
	if r.enough == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case overloaded:
		r.length++
	case answered:
		r.length = 0
	}
	if r.length < r.enough {
		return false
	}
	r.length = 0
	return true
}

// probes are the operations whose breakers are to be tried now.
func (u *upstream) probes() (operations []string) {
	if u.shutOperations.Load() == 0 {
		return nil
	}
	for name, of := range u.operations {
		if of.breaker.passage() == passProbe {
			operations = append(operations, name)
		}
	}
	return operations
}

// slots bounds the dispatches under way at one provider. The bound follows the
// size of the fleet, so it may shrink below what is in use.
type slots struct {
	elsewhere func() int // how many of them other sessions of this process use; nil for none

	mu     sync.Mutex
	freed  sync.Cond
	limit  int
	used   atomic.Int64 // written under mu; other sessions read it without
	lifted bool
}

func newSlots(limit int) *slots {
	s := &slots{limit: limit}
	s.freed.L = &s.mu
	return s
}

// acquire waits for a slot. It reports false, and takes none, where this worker
// has none to wait for.
func (s *slots) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.lifted {
		room := s.room()
		if room == 0 {
			return false
		}
		if int(s.used.Load()) < room {
			break
		}
		s.freed.Wait()
	}
	s.used.Add(1)
	return true
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used.Add(-1)
	s.freed.Signal()
}

func (s *slots) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room()
}

func (s *slots) room() int {
	if s.elsewhere == nil {
		return s.limit
	}
	return max(0, s.limit-s.elsewhere())
}

func (s *slots) inUse() int { return int(s.used.Load()) }

func (s *slots) resize(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.freed.Broadcast()
}

// lift lets everybody through: who waits must see that it is time to stop.
func (s *slots) lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifted = true
	s.freed.Broadcast()
}
