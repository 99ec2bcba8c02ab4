// Package nemesis_test lets three daemons of the real program do their work
// while all that can break does, at random from a seed; then heals everything,
// waits for rest, and holds the accounts of what happened against each other.
//
//	go test ./integration/nemesis                                  # one seed, in CI
//	CHAOS_SEED=42 CHAOS_DURATION=2m go test ./integration/nemesis  # that one again, longer
//	DRAINER_MUTANT=doubt_repeated go test ./integration/nemesis    # a broken program: must fail
//	make soak                                                      # an hour
//
// A seed decides what is broken, in which order and how; when it hits whom is
// left to the machine. The words for it:
//
//	ordeal   a whole run: storm, healing, rest, judgement
//	arena    the world with all that can be broken in it
//	storm    the time in which things break
//	hand     who breaks things: one for processes, one for the database, one for the rest
//	deck     a hand's faults, dealt to the end before it is shuffled again
//	card     a fault in a deck, as often as it has cards
//	lucky    a fault that may find nothing to break for a whole run
//	mine     a failpoint that the next daemon of a replica starts with
//	replica  a place in the fleet; a life is one daemon in that place
//	line     the proxy through which a replica, or the agents, talk to Postgres
//	gauge    what each daemon takes of the machine, every second
//	watch    looks for secrets in all that daemons say
package nemesis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func TestNothingIsLostOrDoubledWhateverBreaks(t *testing.T) {
	lasts := lengthFrom(t, "CHAOS_DURATION", 40*time.Second)
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprintf("CHAOS_SEED=%d", seed), func(t *testing.T) { ordeal(t, seed, lasts) })
	}
}

// ordeal is a storm, and what is left of it.
func ordeal(t *testing.T, seed uint64, lasts time.Duration) *gauge {
	t.Helper()
	a := newArena(t, seed)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("CHAOS_SEED=%d; the last of what was broken:", seed)
			a.chronicle.print(t)
		}
	})
	gauge := newGauge(a)
	watching, cancel := context.WithCancel(context.Background())
	var watchers sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		watchers.Wait()
	})
	watchers.Go(func() { gauge.run(watching) })
	watchers.Go(func() { a.report(watching, gauge) })
	a.storm(lasts)
	a.heal()
	a.awaitRest()
	a.everyReplicaWorks()
	a.awaitRest()
	a.judge(gauge, lasts)
	return gauge
}

func seeds(t *testing.T) []uint64 {
	t.Helper()
	chosen := os.Getenv("CHAOS_SEED")
	if chosen == "" {
		return []uint64{rand.Uint64N(1_000_000)}
	}
	var seeds []uint64
	for _, text := range strings.Split(chosen, ",") {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("CHAOS_SEED is no number: %s", text)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

func lengthFrom(t *testing.T, variable string, usual time.Duration) time.Duration {
	t.Helper()
	chosen := os.Getenv(variable)
	if chosen == "" {
		return usual
	}
	length, err := time.ParseDuration(chosen)
	if err != nil {
		t.Fatalf("%s is no duration: %s", variable, chosen)
	}
	return length
}
