package config

import (
	"math"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func (t toolBlock) policy(timeout time.Duration) dispatch.Policy {
	policy := dispatch.Policy{
		Class:       t.Idempotency.Class,
		Timeout:     timeout,
		Lookup:      t.Lookup.lookup(),
		Reversal:    t.reversal(),
		BeginsSaga:  t.OnFailure == compensate,
		KeyTTL:      t.Idempotency.TTL,
		MaxAttempts: t.Retry.MaxAttempts,
		Backoff:     dispatch.Backoff{Base: t.Retry.Base, Cap: t.Retry.Cap},
	}
	if t.PayloadSchema != nil {
		policy.Payload = t.PayloadSchema.Schema
	}
	return policy
}

func (t toolBlock) reversal() dispatch.Reversal {
	reversal := dispatch.Reversal{None: t.Compensation == nothingToUndo}
	if t.CompensateWith != nil {
		reversal.Tool, reversal.Payload = t.CompensateWith.Tool, t.CompensateWith.Payload
	}
	if t.ReversalWindow != nil {
		reversal.Window = *t.ReversalWindow
	}
	return reversal
}

// What is left out of a block that is optional as a whole gets its value here.

func (l *lookupBlock) lookup() *dispatch.Lookup {
	if l == nil {
		return nil
	}
	lookup := &dispatch.Lookup{Operation: l.Tool, Margin: 30 * time.Second}
	if l.Margin != nil {
		lookup.Margin = *l.Margin
	}
	return lookup
}

func (l *rateLimitBlock) limit() dispatch.RateLimit {
	if l == nil {
		return dispatch.RateLimit{}
	}
	limit := dispatch.RateLimit{PerSecond: l.PerSecond, Burst: int(math.Ceil(l.PerSecond))}
	if l.Burst != nil {
		limit.Burst = *l.Burst
	}
	return limit
}
