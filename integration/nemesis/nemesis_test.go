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
//	trial    a whole run: storm, healing, rest, judgement
//	arena    the rig with all that can be broken in it
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

// trial is a storm, and what is left of it.
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

// isRaced tells whether this test was built with -race: then its daemons are, too.
func isRaced() bool {
	built, _ := debug.ReadBuildInfo()
	return slices.Contains(built.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// startFleet returns once each replica serves.
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

// everyDaemon serves, and is so.
func (a *arena) everyDaemon(is func(*life) bool) bool {
	all := true
	for _, replica := range a.fleet {
		life, err := replica.serving()
		all = err == nil && is(life) && all
	}
	return all
}

func (a *arena) any(random *rand.Rand) *replica { return a.fleet[random.IntN(replicas)] }

// mortal is one that does not endure.
func (a *arena) mortal(random *rand.Rand) *replica { return a.fleet[1+random.IntN(replicas-1)] }

// someLines are those of one, two or all replicas.
func (a *arena) someLines(random *rand.Rand) (lines []*pgproxy.Proxy) {
	for _, number := range random.Perm(replicas)[:1+random.IntN(replicas)] {
		lines = append(lines, a.fleet[number].line)
	}
	return lines
}

var errNoSuch = errors.New("there is none")

// oneOf is one of what the query finds, as text. It waits a while for there to
// be one, and for a database that is away.
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

// hands are who does harm.
var hands = []hand{processes, database, outside}

// storm breaks things for that long, while agents work, and on a slow machine
// until every fault has come up. Once it returns, each has been undone.
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

// overtime is how many times as long a storm may last.
const overtime = 3

// full is a run long enough for each fault to come up once.
const full = 40 * time.Second

// often is enough of each fault, however long it lasts.
const often = 5

// missing are the faults that came up too rarely, bad luck aside.
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
		_ = decide(ctx, a.Rig) // the database may be away; there will be a next time
	}
}

// heal takes the mines away with the daemons that carry them, and waits until
// the fleet is whole.
func (a *arena) heal() {
	a.t.Helper()
	a.mines.swept.Store(true)
	a.DB.Reset()
	drainertest.Eventually(a.t, "every replica serves again, without a mine", func() bool {
		return a.everyDaemon(func(life *life) bool { return !life.disarm() })
	})
}
