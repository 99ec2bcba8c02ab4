package drainer

import (
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// breaker is one process's view of a circuit breaker of a provider or of one of its operations. All workers
// share its state through the store. Each worker counts failures for itself (upstream.record).
//
//	closed ── it fails ──▶ open ── cool-down over ──▶ half-open: one row is tried
//	  ▲                     ▲                            │            │
//	  └─────────────────────┼───────── an answer ────────┘            │
//	                        └───────── it fails again ────────────────┘
type breaker struct {
	name     string // a provider, or provider/operation
	coolDown time.Duration

	mu        sync.Mutex
	shutUntil time.Time  // until when it is shut in this process, before the other workers know
	shutFor   OpenReason // why; empty while a row of this process probes it
	gate      Gate       // the shared state at the last look
	openUntil time.Time  // when the cool-down of that state ends, by this process's clock
}

const (
	// longestCoolDown bounds how long one answer can shut a provider off. The row that got the
	// answer waits as long as the answer asks for.
	longestCoolDown = time.Hour
	// knownWithin is enough time for an opening to be committed and to be read back.
	knownWithin = 4 * fleetInterval
)

// OpenReason says why a circuit breaker is open.
type OpenReason string

const (
	// Overloaded means that consecutive attempts were refused for lack of room, or could not connect.
	Overloaded OpenReason = "overload"
	// FailureRate means that too many intents in the window got no answer, or a 5xx.
	FailureRate OpenReason = "failure_rate"
)

// BreakerChange is the effect of one attempt on a shared breaker. The store applies an opening if no worker probes
// the breaker, and the result of a probe if its worker still is the prober.
type BreakerChange struct {
	Gate   string // a provider, or provider/operation
	Open   bool
	Reason OpenReason    // empty to keep the reason
	For    time.Duration // the cool-down, counted from the commit
	Probe  bool
}

// passage says how much a gate lets through.
type passage int

const (
	passRows  passage = iota
	passProbe         // one row, to try the provider
	passNothing
	passPaused // nothing, and no fallback either
)

func newBreaker(name string, coolDown time.Duration) *breaker {
	return &breaker{name: name, coolDown: coolDown, gate: Gate{Name: name, Breaker: BreakerClosed}}
}

func (b *breaker) passage() passage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.passes(time.Now())
}

func (b *breaker) passes(now time.Time) passage {
	switch {
	case b.gate.Paused:
		return passPaused
	case !b.shutUntil.IsZero() && now.Before(b.shutUntil):
		return passNothing
	case b.gate.Breaker == BreakerClosed:
		return passRows
	case now.Before(b.openUntil):
		return passNothing
	}
	return passProbe
}

// admits reports whether a claimed row may be sent now.
func (b *breaker) admits(row *Row) bool {
	passage := b.passage()
	return passage == passRows || (row.Probe == b.name && passage != passPaused)
}

// takeTurn reports whether the gate may be probed, as far as this process knows. It returns true only once before the
// result of that probe is known.
func (b *breaker) takeTurn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.passes(now) != passProbe {
		return false
	}
	b.shutFor, b.shutUntil = "", now.Add(knownWithin)
	return true
}

// remaining is for how long the breaker will let nothing through, as far as this process knows. While a probe is under
// way it is short, since the probe may end long before its time is over.
func (b *breaker) remaining() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := time.Until(b.openUntil)
	if b.gate.Breaker == BreakerHalfOpen {
		open = min(open, knownWithin)
	}
	return max(0, open, time.Until(b.shutUntil))
}

// open shuts the breaker for this process at once. The returned change shuts it for the other workers once it is
// committed. open returns nil if the breaker was opened for this reason a moment ago.
func (b *breaker) open(reason OpenReason, asked time.Duration) *BreakerChange {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(b.shutUntil) && b.shutFor == reason {
		return nil
	}
	change := &BreakerChange{Gate: b.name, Open: true, Reason: reason, For: b.coolDownFor(asked)}
	b.shutFor, b.shutUntil = reason, time.Now().Add(min(change.For, knownWithin))
	return change
}

// verdict ends a probe. The reason is empty if the breaker closes, or stays open for the same reason.
func (b *breaker) verdict(open bool, reason OpenReason, asked time.Duration) *BreakerChange {
	return &BreakerChange{Gate: b.name, Open: open, Reason: reason, For: b.coolDownFor(asked), Probe: true}
}

// isFor reports that the fleet has it shut for that reason.
func (b *breaker) isFor(reason OpenReason) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gate.Breaker != BreakerClosed && b.gate.Reason == reason
}

// coolDownFor is longer where the provider asks for it.
func (b *breaker) coolDownFor(asked time.Duration) time.Duration {
	return min(max(b.coolDown, asked), longestCoolDown)
}

// applyGate takes over what the fleet knows, and returns what was known before.
func (b *breaker) applyGate(gate Gate) (before Gate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, b.gate = b.gate, gate
	if before.Breaker != BreakerClosed && gate.Breaker == BreakerClosed && b.shutFor == "" {
		b.shutUntil = time.Time{} // its probe succeeded
	}
	b.openUntil = time.Now().Add(gate.OpenFor)
	return before
}

// operation is one operation of a provider: its breaker, and what this process saw of it.
type operation struct {
	breaker   *breaker
	window    window
	missing   run // of its destination: few intents are enough, else they would use up their tries
	refusals  refusals
	rendering rendering
}

// fails counts an attempt and reports whether the operation is to be shut.
func (o *operation) fails(row *Row, result dispatch.Result, failed, answered bool) bool {
	tooMany := o.window.add(time.Now(), row.IntentID, failed)
	return o.missing.add(result.OfOperation, answered) || tooMany
}

// window keeps the newest result of each intent of a while. An intent counts once,
// however often it is tried.
type window struct {
	policy dispatch.BreakerPolicy

	mu       sync.Mutex
	samples  []sample      // in the order of time
	dropped  int           // samples that came before these
	newest   map[int64]int // of each intent: the number of its newest sample
	failures int           // of the newest samples
}

// mostSamples bounds a window's memory. Where more come in its time, the newest count.
const mostSamples = 1024

type sample struct {
	at     time.Time
	intent int64
	failed bool
}

// add counts an attempt and reports whether too many intents fail. Then it forgets all of them.
func (w *window) add(now time.Time, intent int64, failed bool) (tooMany bool) {
	if w.policy.FailureRate == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.samples) > 0 && (len(w.samples) == mostSamples || now.Sub(w.samples[0].at) > w.policy.Window) {
		w.drop()
	}
	if before, known := w.newest[intent]; known {
		w.uncount(w.samples[before-w.dropped])
	}
	if w.newest == nil {
		w.newest = map[int64]int{}
	}
	w.newest[intent] = w.dropped + len(w.samples)
	w.samples = append(w.samples, sample{now, intent, failed})
	if !failed {
		return false
	}
	w.failures++
	if len(w.newest) < w.policy.MinimumIntents || float64(w.failures) < w.policy.FailureRate*float64(len(w.newest)) {
		return false
	}
	w.samples, w.newest, w.dropped, w.failures = nil, nil, 0, 0
	return true
}

// drop takes away the oldest sample. Its intent may have a newer one.
func (w *window) drop() {
	oldest := w.samples[0]
	if w.newest[oldest.intent] == w.dropped {
		w.uncount(oldest)
		delete(w.newest, oldest.intent)
	}
	w.samples = w.samples[1:]
	w.dropped++
}

func (w *window) uncount(s sample) {
	if s.failed {
		w.failures--
	}
}

// isIdle reports that it saw nothing in its time.
func (w *window) isIdle(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.samples) == 0 || now.Sub(w.samples[len(w.samples)-1].at) > w.policy.Window
}
