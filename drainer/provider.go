package drainer

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Provider is one configured upstream and gets one lane.
type Provider struct {
	Name        string
	Adapter     dispatch.Adapter
	Concurrency int           // dispatches under way at once, over all workers together
	Timeout     time.Duration // the longest one dispatch may take
	RateLimit   dispatch.RateLimit
	Breaker     dispatch.BreakerPolicy
	Fallback    string // a provider that serves while this one's breaker is open; empty for none
	Tools       map[string]dispatch.Policy
}

// mayPrefetch reports whether rows may be claimed before they can start. A
// claimed row counts as sent once its worker dies, and a lost row of a
// non-idempotent tool needs a human. Where a rate limits, waiting rows gain
// nothing.
func (p Provider) mayPrefetch() bool {
	if p.RateLimit.PerSecond > 0 {
		return false
	}
	for _, policy := range p.Tools {
		if policy.Class == dispatch.NonIdempotent {
			return false
		}
	}
	return true
}
