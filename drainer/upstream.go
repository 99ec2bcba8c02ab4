package drainer

import (
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
	provider dispatch.Provider
	breaker  *breaker
	slots    *slots
	pace     *rate.Limiter
	shared   atomic.Bool // other workers send there as well
}

func newUpstream(provider dispatch.Provider) *upstream {
	return &upstream{
		provider: provider,
		breaker:  newBreaker(provider),
		slots:    newSlots(provider.Concurrency),
		pace:     rate.NewLimiter(perSecond(provider), 1), // a restart is no reason for a burst
	}
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

// learn takes over what the fleet knows, with this worker's share of what all
// may do together, and returns what was known before.
func (u *upstream) learn(gate Gate) (before Gate) {
	u.shared.Store(gate.Workers > 1)
	u.slots.resize(gate.share(u.provider.Concurrency))
	if limit := perSecond(u.provider); limit != rate.Inf {
		u.pace.SetLimit(limit / rate.Limit(max(1, gate.Workers)))
		u.pace.SetBurst(max(1, gate.share(u.provider.RateLimit.Burst)))
	} else {
		u.pace.SetLimit(rate.Inf)
	}
	return u.breaker.learn(gate)
}

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

// breaker is one process's part in a provider's circuit breaker. The state is
// shared by all workers, in the store; counting is each worker's own.
//
//	closed ── overloads in a row ──▶ open ── cool-down over ──▶ half-open: one row is tried
//	  ▲                               ▲                            │            │
//	  └───────────────────────────────┼───────── an answer ────────┘            │
//	                                  └───────── another overload ──────────────┘
type breaker struct {
	provider string
	policy   dispatch.BreakerPolicy

	mu        sync.Mutex
	overloads int       // in a row
	shutUntil time.Time // opened here; the others may not know yet
	gate      Gate      // as the fleet last told
	openUntil time.Time // the gate's, by this process's clock
}

const (
	// longestCoolDown bounds how long one answer can shut a provider off. The
	// row that got it waits as long as it was told.
	longestCoolDown = time.Hour
	// knownWithin is ample for an opening to be committed, and read back.
	knownWithin = 4 * fleetInterval
)

// passage says how much a provider's gate lets through.
type passage int

const (
	passRows  passage = iota
	passProbe         // one row, to try the provider
	passNothing
	passPaused // nothing, and no fallback either
)

func newBreaker(provider dispatch.Provider) *breaker {
	return &breaker{provider: provider.Name, policy: provider.Breaker, gate: Gate{Breaker: BreakerClosed}}
}

func (b *breaker) passage() passage {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.gate.Paused:
		return passPaused
	case !b.shutUntil.IsZero() && time.Now().Before(b.shutUntil):
		return passNothing
	case b.gate.Breaker == BreakerClosed:
		return passRows
	case time.Now().Before(b.openUntil):
		return passNothing
	}
	return passProbe
}

// passes reports whether a claimed row may be sent now.
func (b *breaker) passes(row *Row) bool {
	passage := b.passage()
	return passage == passRows || (row.Probe && passage != passPaused)
}

// saw counts overloads. An overload shuts this process's gate at once. The change
// that saw returns shuts the gates of the other processes, once it is committed.
// A refusal on this side, or a slow expression, says nothing of the provider: a payload
// could otherwise shut a provider off, or keep the gate of one that is away open.
func (b *breaker) saw(result dispatch.Result, probe bool) *BreakerChange {
	if result.Unsent {
		return b.unproven(&Row{Probe: probe})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	overloaded := result.Overloaded()
	coolDown := min(max(b.policy.CoolDown, result.RetryAfter), longestCoolDown)
	if probe {
		return &BreakerChange{Provider: b.provider, Open: overloaded, For: coolDown, Probe: true}
	}
	if !overloaded || b.policy.ConsecutiveFailures == 0 {
		b.overloads = 0
		return nil
	}
	b.overloads++
	if b.overloads < b.policy.ConsecutiveFailures || time.Now().Before(b.shutUntil) {
		return nil
	}
	b.overloads = 0
	b.shutUntil = time.Now().Add(min(coolDown, knownWithin))
	return &BreakerChange{Provider: b.provider, Open: true, For: coolDown}
}

// unproven lets another worker try the provider: this probe was never sent.
func (b *breaker) unproven(row *Row) *BreakerChange {
	if !row.Probe {
		return nil
	}
	return &BreakerChange{Provider: b.provider, Open: true, Probe: true}
}

// learn takes over what the fleet knows, and returns what was known before.
func (b *breaker) learn(gate Gate) (before Gate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, b.gate = b.gate, gate
	b.openUntil = time.Now().Add(gate.OpenFor)
	return before
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
