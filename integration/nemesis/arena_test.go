package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
)

// arena is a world in which everything can be broken.
type arena struct {
	*world.World

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
	w := world.At(t, url, provider.plan)
	w.Provider.LookupPlan = lookups(seed)
	w.Provider.SlowFor = 1200 * time.Millisecond // longer than anybody waits
	w.Program.Env = append(w.Program.Env, credentials...)
	watch := newWatch(t, url)
	pager := newPager(t, watch)
	a := &arena{
		World: w, t: t, seed: seed, chronicle: chronicle, watch: watch, cluster: cluster,
		configuration: newConfiguration(t, w.Config, pager.url),
		mines:         newMines(seed, chronicle), agents: newAgents(t, w.Clients, url),
		pager: pager, operator: onCall{w.Program}, provider: provider,
	}
	a.startFleet()
	return a
}

const replicas = 3

// startFleet returns once each replica serves.
func (a *arena) startFleet() {
	a.t.Helper()
	program := build(a.t, a.URL, credentials...)
	ctx, cancel := context.WithCancel(context.Background())
	a.t.Cleanup(func() {
		cancel()
		for _, replica := range a.fleet {
			replica.end()
		}
	})
	for number := range replicas {
		replica := newReplica(a.t, fmt.Sprintf("replica-%d", number), program, a.Config, a.URL, a.watch, a.mines)
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
