// Package nemesis_test injects all kinds of faults into three daemons of the real program while they work. The faults
// are random and come from a seed. Then the test repairs everything, waits until no work remains, and compares the
// accounts of what happened.
//
//	go test ./integration/nemesis                                  # one seed, in CI
//	CHAOS_SEED=42 CHAOS_DURATION=2m go test ./integration/nemesis  # that one again, longer
//	DRAINER_MUTANT=doubt_repeated go test ./integration/nemesis    # a broken program: must fail
//	make soak                                                      # an hour
//
// A seed decides the faults, their order and their details. The time of each fault, and what it hits, also depend on
// the machine. The code uses these words:
//
//	trial    a whole run: storm, repair, rest, judgement
//	arena    the rig with everything that can be broken
//	storm    the time in which faults are injected
//	hand     a source of faults: one for processes, one for the database, one for the rest
//	deck     the faults of a hand; all are injected before the deck is shuffled again
//	card     one entry of a deck; a fault may have several
//	lucky    a fault that may find nothing to break in a whole run
//	mine     a failpoint that the next daemon of a replica starts with
//	replica  a place in the fleet; a life is one daemon in that place
//	line     the proxy between Postgres and a replica, or the agents
//	gauge    each daemon's use of memory and other resources, every second
//	watch    looks for secrets in all output of the daemons
package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func TestNothingIsLostOrDoubledWhateverBreaks(t *testing.T) {
	lasts := lengthFrom(t, "CHAOS_DURATION", 40*time.Second)
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprintf("CHAOS_SEED=%d", seed), func(t *testing.T) { trial(t, seed, lasts) })
	}
}

// trial runs a storm, and checks the outbox after it.
func trial(t *testing.T, seed uint64, lasts time.Duration) *gauge {
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

func TestAnHourOfFaultsLeavesNoTrace(t *testing.T) {
	if os.Getenv("SOAK") == "" {
		t.Skip("SOAK=1h is not set; see make soak")
	}
	seed := rand.Uint64N(1_000_000)
	if os.Getenv("CHAOS_SEED") != "" {
		given := seeds(t)
		if len(given) != 1 {
			t.Fatalf("CHAOS_SEED has %d seeds, and a soak takes one", len(given))
		}
		seed = given[0]
	}
	t.Logf("CHAOS_SEED=%d", seed)
	trial(t, seed, lengthFrom(t, "SOAK", time.Hour)).assertNoGrowth(t)
}

// arena is a rig in which everything can be broken.
type arena struct {
	*harness.Rig

	t             testing.TB
	seed          uint64
	chronicle     *chronicle
	watch         *watch
	cluster       cluster
	configuration *configuration
	fleet         []*replica
	mines         *mines
	agents        *agents
	pager         *pager
	operator      onCall
	provider      *provider
}

func newArena(t testing.TB, seed uint64) *arena {
	t.Helper()
	cluster, provider, chronicle := startCluster(t), newProvider(seed), newChronicle()
	url := cluster.server.URL
	rig := harness.At(t, url, provider.plan)
	rig.Provider.LookupPlan = lookups(seed)
	rig.Provider.SlowFor = 1200 * time.Millisecond // longer than any daemon waits
	rig.Program.Env = append(rig.Program.Env, credentials...)
	watch := newWatch(t, url)
	pager := newPager(t, watch)
	a := &arena{
		Rig: rig, t: t, seed: seed, chronicle: chronicle, watch: watch, cluster: cluster,
		configuration: newConfiguration(t, rig.Config, pager.url),
		mines:         newMines(seed, chronicle), agents: newAgents(t, rig.Clients, url),
		pager: pager, operator: onCall{rig.Program}, provider: provider,
	}
	a.startFleet()
	return a
}

const replicas = 3

// isRaced reports whether this test was built with -race. Its daemons are then built with it, too.
func isRaced() bool {
	built, _ := debug.ReadBuildInfo()
	return slices.Contains(built.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// startFleet starts the replicas, and returns once each of them serves.
func (a *arena) startFleet() {
	a.t.Helper()
	build := program.WithFailpoints
	if isRaced() {
		build = program.Raced
	}
	daemons := build(a.t, a.URL, credentials...)
	ctx, cancel := context.WithCancel(context.Background())
	a.t.Cleanup(func() {
		cancel()
		for _, replica := range a.fleet {
			replica.end()
		}
	})
	for number := range replicas {
		replica := newReplica(a.t, fmt.Sprintf("replica-%d", number), daemons, a.Config, a.URL, a.watch, a.mines)
		replica.endures = number == 0
		a.fleet = append(a.fleet, replica)
		go replica.run(ctx)
	}
	drainertest.Eventually(a.t, "every replica serves", func() bool {
		return a.everyDaemon(func(*life) bool { return true })
	})
}

// everyDaemon reports whether every replica serves, and every daemon meets the condition.
func (a *arena) everyDaemon(is func(*life) bool) bool {
	all := true
	for _, replica := range a.fleet {
		life, err := replica.serving()
		all = err == nil && is(life) && all
	}
	return all
}

func (a *arena) any(random *rand.Rand) *replica { return a.fleet[random.IntN(replicas)] }

// mortal returns a replica that does not endure.
func (a *arena) mortal(random *rand.Rand) *replica { return a.fleet[1+random.IntN(replicas-1)] }

// someLines returns the lines of one, two or all replicas.
func (a *arena) someLines(random *rand.Rand) (lines []*pgproxy.Proxy) {
	for _, number := range random.Perm(replicas)[:1+random.IntN(replicas)] {
		lines = append(lines, a.fleet[number].line)
	}
	return lines
}

var errNoSuch = errors.New("there is none")

// oneOf returns one of the values that the query finds, as text. It tries again for a while if it finds none, or if
// the database does not answer.
func (a *arena) oneOf(ctx context.Context, random *rand.Rand, sql string, args ...any) (string, error) {
	for range 15 {
		rows, _ := a.DB.Query(ctx, `SELECT found::text FROM (`+sql+`) f (found)`, args...) // CollectRows returns the error too
		if found, err := pgx.CollectRows(rows, pgx.RowTo[string]); err == nil && len(found) > 0 {
			return found[random.IntN(len(found))], nil
		}
		linger(ctx, 200*time.Millisecond)
	}
	return "", errNoSuch
}

// hands are the sources of faults. They work at the same time.
var hands = []hand{processes, database, outside}

// storm injects faults for that long, while agents work. On a slow machine it continues until every fault has come
// up. When it returns, each fault has been undone.
func (a *arena) storm(lasts time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), overtime*lasts)
	defer cancel()
	a.chronicle.begin()
	var all sync.WaitGroup
	all.Go(func() { a.agents.work(ctx, a.seed) })
	for _, hand := range hands {
		all.Go(func() { hand.play(ctx, a) })
	}
	all.Go(func() { a.decideNowAndThen(ctx) })
	for linger(ctx, lasts); ctx.Err() == nil && len(a.missing(lasts)) > 0; {
		linger(ctx, time.Second)
	}
	cancel()
	all.Wait()
}

// overtime limits a storm to this multiple of its length.
const overtime = 3

// full is the length of a run in which each fault comes up at least once.
const full = 40 * time.Second

// often limits how often a fault must come up, also in a long run.
const often = 5

// missing returns the faults that came up too rarely, except for the lucky ones.
func (a *arena) missing(lasted time.Duration) (kinds []string) {
	for _, fault := range a.faults() {
		if !fault.lucky && a.chronicle.count(fault.name) < min(int(lasted/full), often) {
			kinds = append(kinds, fault.name)
		}
	}
	return kinds
}

func (a *arena) faults() []fault {
	all := []fault{{name: failpoints}}
	for _, hand := range hands {
		all = append(all, hand.deck...)
	}
	return all
}

func (a *arena) decideNowAndThen(ctx context.Context) {
	for ctx.Err() == nil {
		linger(ctx, 3*time.Second)
		_ = decide(ctx, a.Rig) // the database may not answer; the next call tries again
	}
}

// heal ends the daemons that carry a mine, and waits until every replica serves again.
func (a *arena) heal() {
	a.t.Helper()
	a.mines.swept.Store(true)
	a.DB.Reset()
	drainertest.Eventually(a.t, "every replica serves again, without a mine", func() bool {
		return a.everyDaemon(func(life *life) bool { return !life.disarm() })
	})
}
