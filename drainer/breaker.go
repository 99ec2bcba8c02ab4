package drainer

import (
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

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

// passage is what a provider's gate lets through.
type passage int

const (
	passRows  passage = iota
	passProbe         // one row, to try the provider
	passNothing
	passPaused // nothing, and no fallback either
)

func newBreaker(provider Provider) *breaker {
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

// saw counts what an attempt says of the provider's health. An overload shuts
// this process's gate at once; the change that it returns shuts all the others.
func (b *breaker) saw(result dispatch.Result, probe bool) *BreakerChange {
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

// unproven hands on the turn of a probe that was never sent.
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
