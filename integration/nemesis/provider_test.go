package nemesis_test

import (
	"sync/atomic"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// provider fails a quarter of the requests, in every way there is, and all of
// them while it is out.
type provider struct {
	outage atomic.Pointer[dispatchtest.Fault] // nil while there is none
	first  dispatchtest.Plan
	again  dispatchtest.Plan // of requests that had others before them
}

func newProvider(seed uint64) *provider {
	odds, later := map[dispatchtest.Fault]float64{}, map[dispatchtest.Fault]float64{}
	for _, fault := range dispatchtest.Faults() {
		odds[fault] = 0.25 / float64(len(dispatchtest.Faults()))
		later[fault] = odds[fault]
	}
	odds[dispatchtest.Taken] += 0.03 // so that some undos fail, too
	later[dispatchtest.Taken] += 0.1 // a refusal after a doubt is what must not be believed
	return &provider{first: dispatchtest.Random(seed, odds), again: dispatchtest.Random(seed, later)}
}

func (p *provider) plan(key string, request int) dispatchtest.Fault {
	if fault := p.outage.Load(); fault != nil {
		return *fault
	}
	if request > 1 {
		return p.again(key, request)
	}
	return p.first(key, request)
}

// lookups are answered a little more often.
func lookups(seed uint64) dispatchtest.Plan {
	return dispatchtest.Random(seed+1, map[dispatchtest.Fault]float64{dispatchtest.Unavailable: 0.1, dispatchtest.DropBefore: 0.1})
}
