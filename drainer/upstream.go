package drainer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentoutbox/drainer/dispatch"
)

// upstream is one provider with everything that limits its use. All lanes of this process that may send there
// share it: the provider's own lane and the lanes of which it is the fallback.
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

	shutOperations atomic.Int64 // how many operations were shut at the last look at the fleet
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

// follow keeps the provider's limits across a reload: the requests that earlier sessions still have under way count,
// and so do those that they have just sent.
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

// applyGate takes over the provider's shared state, and this worker's share of its limits. It returns the state
// before.
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

// applyOperationGates takes over which operations are shut. All others are open.
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

// gateChange is a gate's state at two successive looks at the fleet.
type gateChange struct{ before, now Gate }

// budget is how many dispatches may start now; if none may, wait is when the next one may.
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

// spend takes one dispatch from the budget.
func (u *upstream) spend() {
	if u.pace.Limit() != rate.Inf {
		u.pace.Reserve()
	}
}

// admits reports whether the provider's own breaker lets a claimed row through now.
func (u *upstream) admits(row *Row) bool { return u.breaker.admits(row) }

// shut returns the breaker of the operation if it does not let the row through, or nil. The probe of the provider passes it.
func (u *upstream) shut(row *Row, operation string) *breaker {
	of := u.operations[operation]
	if of == nil || row.Probe == u.provider.Name || of.breaker.admits(row) {
		return nil
	}
	return of.breaker
}

// record counts the result of an attempt, and returns what it means for breakers. A request that was refused on this
// side, or took too long here, says nothing about the provider: otherwise a payload could shut a provider
// off, or keep the breaker closed for one that is away.
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
		result.OfOperation = false // the only operation is the whole provider, so its fallback may serve
	}
	of, overloaded, failed := u.operations[operation], result.Overloaded(), result.Failed()
	answered := !failed || result.HTTPStatus != 0 || result.OfOperation
	switch {
	case row.Probe == u.provider.Name:
		// Any answer proves that the provider is there, even a 500. If it is shut because all its operations are, the
		// refusal of one operation proves nothing.
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

// spares reports that a probe does not count against its row's max_attempts: it tried a breaker on behalf of all
// workers, and an outage must not use up the row's attempts. For a breaker that opened by failure rate, only the last
// attempt is spared: there the row with the fewest failures becomes the probe, so one row that can never
// be sent would otherwise be every probe.
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

// unproven gives up a probe that was not sent, so that another worker may probe.
func (u *upstream) unproven(row *Row) []BreakerChange {
	if row.Probe == "" {
		return nil
	}
	return []BreakerChange{{Gate: row.Probe, Open: true, Probe: true}}
}

// failsWith reports whether the provider as a whole fails when this operation is shut: most of the operations in use are
// shut then or, if they were refused one by one, all of them. A provider with a single operation fails with it.
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

// run counts consecutive overloads, or consecutive refusals of one operation.
type run struct {
	enough int // 0 for no limit

	mu     sync.Mutex
	length int
}

// add reports that the count has reached enough, and starts again from 0. An attempt without an answer neither
// adds to the count nor resets it.
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

// probes lists the operations whose breakers should be probed now.
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

// slots bounds the dispatches under way at one provider. The limit depends on how many workers there are, so it
// may shrink below the number in use.
type slots struct {
	elsewhere func() int // how many slots other sessions of this process use; nil for none

	mu     sync.Mutex
	freed  sync.Cond
	limit  int
	used   atomic.Int64 // written under mu; other sessions read it without the lock
	lifted bool
}

func newSlots(limit int) *slots {
	s := &slots{limit: limit}
	s.freed.L = &s.mu
	return s
}

// acquire waits for a slot. It returns false at once if this worker's share of the limit is 0.
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

// lift ends all waiting, so that the dispatchers see that the session stops.
func (s *slots) lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifted = true
	s.freed.Broadcast()
}
