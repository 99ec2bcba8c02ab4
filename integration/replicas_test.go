package integration_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

func TestReplicasThatAreKilledDrainEverythingOnce(t *testing.T) {
	t.Parallel()
	const intents, kills = 20_000, 4
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)

	w := newWorld(t, dispatchtest.Random(seed, map[dispatchtest.Fault]float64{
		dispatchtest.ErrorAfter: 0.005, dispatchtest.DropBefore: 0.005, dispatchtest.DropAfter: 0.005, dispatchtest.Unavailable: 0.005,
	}))
	w.enqueue("sim/act", 0, intents)
	with := w.setup(dispatch.KeyIdempotent, shortLease)
	with.Providers[0].Concurrency = 32
	replicas := []*daemon{start(t, with), start(t, with), start(t, with)}
	for _, effects := range moreAndMore(random, kills, intents*9/10) {
		w.awaitEffects(effects)
		victim := random.IntN(len(replicas))
		replicas[victim].kill()
		drainertest.AssertInvariant(t, w.db)
		replicas[victim] = start(t, with)
	}
	fault.Injected(t, 6, kills)
	w.awaitEffects(intents)
	w.awaitCount("completed", intents)
	w.assertOneEffectEach()
	if lost := stored[int](w, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`); lost == 0 {
		t.Error("no kill met a row in progress, so nothing was shown")
	}
	for _, replica := range replicas {
		if code := replica.terminate(); code != 0 {
			t.Errorf("a replica ended with exit code %d", code)
		}
	}
	w.assertNoClaims()
}

// moreAndMore is n random numbers from 1 to most, in ascending order.
func moreAndMore(random *rand.Rand, n, most int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = 1 + random.IntN(most)
	}
	slices.Sort(numbers)
	return numbers
}
