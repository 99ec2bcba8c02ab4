package drainer

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestTheSharesOfAFleetAddUpToTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 50).Draw(t, "workers")
		limit := rapid.IntRange(0, 500).Draw(t, "limit")
		sum, least, most := 0, limit, 0
		for rank := range workers {
			share := Gate{Workers: workers, Rank: rank}.share(limit)
			sum, least, most = sum+share, min(least, share), max(most, share)
		}
		if sum != limit || most-least > 1 {
			t.Fatalf("the shares add up to %d, and range from %d to %d", sum, least, most)
		}
	})
}

func TestAWorkerKeepsToItsShare(t *testing.T) {
	t.Parallel()
	u := newUpstream(Provider{Concurrency: 10, RateLimit: dispatch.RateLimit{PerSecond: 90, Burst: 9}})
	u.learn(Gate{Workers: 3, Rank: 0})
	if slots, rate, burst := u.slots.size(), u.pace.Limit(), u.pace.Burst(); slots != 4 || rate != 30 || burst != 3 {
		t.Errorf("%d slots, %v a second, bursts of %d; want 4, 30 and 3", slots, rate, burst)
	}
	u.learn(Gate{Workers: 20, Rank: 19})
	if slots := u.slots.size(); slots != 0 {
		t.Errorf("the last of twenty has %d of ten slots", slots)
	}
}

func TestABudgetIsSpentAndComesBack(t *testing.T) {
	t.Parallel()
	u := newUpstream(Provider{Concurrency: 10, RateLimit: dispatch.RateLimit{PerSecond: 0.001, Burst: 2}})
	u.learn(Gate{Workers: 1}) // and it starts with one, not with a burst
	for _, want := range []int{1, 0} {
		got, wait := u.budget()
		if got != want || (got == 0) != (wait > 0) {
			t.Errorf("a budget of %d and a wait of %s, want %d", got, wait, want)
		}
		u.spend()
	}
}
