package dispatchtest

import (
	"context"
	"fmt"
	"maps"
)

// Audit is a ledger in numbers. Requests and effects that carried no key
// stand under "".
type Audit struct {
	Requests map[string]int // by key; lookups are not among them
	Lookups  map[string]int // by the key asked about
	Effects  map[string]int // by key
	Faults   map[Fault]int  // requests by fault
}

func newAudit() Audit {
	return Audit{map[string]int{}, map[string]int{}, map[string]int{}, map[Fault]int{}}
}

func (a Audit) count(entry Entry) {
	switch entry.Kind {
	case requestKind:
		a.Requests[entry.Key]++
		a.Faults[entry.Fault]++
	case lookupKind:
		a.Lookups[entry.Key]++
	case effectKind:
		a.Effects[entry.Key]++
	}
}

// TotalRequests counts every request.
func (a Audit) TotalRequests() int { return sum(a.Requests) }

// TotalEffects counts every effect, duplicates too.
func (a Audit) TotalEffects() int { return sum(a.Effects) }

// DuplicateEffects counts the effects beyond the first of each key. Effects
// without a key cannot be told apart and are not counted.
func (a Audit) DuplicateEffects() (duplicates int) {
	for key, effects := range a.Effects {
		if key != "" {
			duplicates += max(effects-1, 0)
		}
	}
	return duplicates
}

func sum(counts map[string]int) (total int) {
	for _, count := range counts {
		total += count
	}
	return total
}

// Audit counts what is recorded so far.
func (l *Ledger) Audit() Audit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Audit{
		Requests: maps.Clone(l.audit.Requests),
		Lookups:  maps.Clone(l.audit.Lookups),
		Effects:  maps.Clone(l.audit.Effects),
		Faults:   maps.Clone(l.audit.Faults),
	}
}

// Wait returns once the ledger satisfies the condition, or with the context's
// error. The condition is checked at every new entry.
func (l *Ledger) Wait(ctx context.Context, condition func(Audit) bool) error {
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		if condition(l.Audit()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the ledger: %w", ctx.Err())
		}
	}
}
