package nemesis_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
)

// agents commit runs of one step and of several, through a line of their own on
// which commits may go unheard.
type agents struct {
	clients *history.Clients
	db      *pgxpool.Pool
	line    *pgproxy.Proxy

	mu     sync.Mutex
	recent []string // runs, the newest last
}

const (
	howMany = 3
	pace    = 100 * time.Millisecond // between two commits of one agent
	patient = 3 * time.Second        // until an agent gives a commit up
)

var (
	alone = []string{world.Keyed, world.Set, world.Once, world.Asked, world.Order}
	steps = []string{world.Order, world.Order, world.Order, world.Keyed, world.Set, world.Asked, world.Once}
)

func newAgents(t testing.TB, clients *history.Clients, databaseURL string) *agents {
	t.Helper()
	line := pgproxy.New(t, databaseURL)
	db, err := pgxpool.New(context.Background(), line.Behind(t, databaseURL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return &agents{clients: clients, db: db, line: line}
}

// work goes on until ctx ends, and lets each agent end its run.
func (a *agents) work(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	for number := range howMany {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, hashed(fmt.Sprint("agent", number))))
			for run := 0; ctx.Err() == nil; run++ {
				a.take(fmt.Sprintf("run-%d-%d", number, run), plan(random))
			}
		})
	}
	all.Wait()
}

// plan is the tools of a run's steps. A third of those with several come to one
// that is refused.
func plan(random *rand.Rand) []string {
	if random.IntN(2) == 0 {
		return []string{alone[random.IntN(len(alone))]}
	}
	var tools []string
	for range 2 + random.IntN(4) {
		tools = append(tools, steps[random.IntN(len(steps))])
	}
	if random.IntN(3) == 0 {
		tools = append(tools, world.Declined)
	}
	return tools
}

func (a *agents) take(run string, tools []string) {
	a.remember(run)
	for number, tool := range tools {
		time.Sleep(pace)
		intent := dispatch.Tuple{AgentRunID: run, StepID: fmt.Sprintf("step-%d", number), ToolName: tool, BusinessScope: "order"}
		if a.commit(intent) == history.Refused {
			return // the run is closed, or the database away
		}
	}
}

// commit asks again as long as it hears nothing, as an agent may: the key is
// the same.
func (a *agents) commit(intent dispatch.Tuple) history.Answer {
	var answer history.Answer
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		answer = a.clients.Enqueue(ctx, a.db, intent, json.RawMessage(`{"n": 1, "card": "`+canary+`"}`))
		cancel()
		if answer != history.Unheard {
			break
		}
	}
	return answer
}

const recently = 20

func (a *agents) remember(run string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recent = append(a.recent, run)
	a.recent = a.recent[max(0, len(a.recent)-recently):]
}

func (a *agents) recentRun(random *rand.Rand) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.recent) == 0 {
		return "none yet"
	}
	return a.recent[random.IntN(len(a.recent))]
}
