package drainer

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// upstream is the way to one provider: its adapter and what limits its use. It
// is shared by all lanes of this process that may send there, the provider's
// own and those that it is the fallback of.
type upstream struct {
	provider Provider
	breaker  *breaker
	slots    *slots
	pace     *rate.Limiter
	shared   atomic.Bool // other workers send there as well
}

func newUpstream(provider Provider) *upstream {
	return &upstream{
		provider: provider,
		breaker:  newBreaker(provider),
		slots:    newSlots(provider.Concurrency),
		pace:     rate.NewLimiter(perSecond(provider), 1), // a restart is no reason for a burst
	}
}

// follow keeps the provider's limits across a handover: what the sessions before
// this one still have under way counts, and so does what they have just sent.
func (u *upstream) follow(elders *roster, session *session) {
	name := u.provider.Name
	u.slots.elsewhere = func() int { return elders.inUse(name, session) }
	if elder := elders.newest(); elder != nil && elder.upstreams[name] != nil {
		u.pace = elder.upstreams[name].pace
	}
}

func perSecond(provider Provider) rate.Limit {
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
