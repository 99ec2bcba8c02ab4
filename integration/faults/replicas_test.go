package faults_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

// Its seed comes from CHAOS_SEED, if that is set.
func TestReplicasThatAreKilledAtRandomLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	const kills = 8
	seed := chaosSeed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	w := world.New(t, dispatchtest.Random(seed, map[dispatchtest.Fault]float64{
		dispatchtest.ErrorAfter: 0.01, dispatchtest.DropBefore: 0.01, dispatchtest.DropAfter: 0.01,
	}))
	stop := w.Agents(everyClass...)
	replicas := []*program.Daemon{w.Start(), w.Start(), w.Start()}
	for kill := range kills {
		takeBack(w, fmt.Sprintf("back-%d", kill))
		w.AwaitMoreEffects(1 + random.IntN(40))
		victim := random.IntN(len(replicas))
		replicas[victim].Kill()
		replicas[victim] = w.Start()
	}
	awaitWorkOfEach(t, w, len(replicas))
	stop()
	w.AwaitRest()
	fault.Injected(t, 6, kills)
	if lost(w) == 0 {
		t.Error("no kill met a row in progress, so nothing was shown")
	}
	w.Check()
	w.CheckClaimed()
}

// takeBack enqueues a run that is to be undone.
func takeBack(w *world.World, run string) {
	w.Step(run, 1, world.Order)
	w.Step(run, 2, world.Order)
	w.Step(run, 3, world.Declined)
}

// awaitWorkOfEach returns once each replica has completed a few rows from now on.
func awaitWorkOfEach(t *testing.T, w *world.World, replicas int) {
	t.Helper()
	healed := drainertest.Value[time.Time](t, w.DB, `SELECT clock_timestamp()`)
	drainertest.Eventually(t, "each replica completes a few rows", func() bool {
		return w.Count(`
			SELECT count(*) FROM outbox.worker w WHERE 5 <= (
			  SELECT count(*) FROM outbox.attempt a
			  WHERE a.worker = w.worker_id::text AND a.outcome = 'completed' AND a.started_at > $1)`, healed) == replicas
	})
}

// chaosSeed is logged, so that a run can be repeated.
func chaosSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("CHAOS_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}
	}
	t.Logf("CHAOS_SEED=%d", seed)
	return seed
}
