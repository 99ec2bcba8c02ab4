package nemesis_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
)

// agents commit runs with one step and with several steps. They use their own line, which may lose the answers to
// commits.
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
	patient = 3 * time.Second        // after which an agent gives up a commit
)

var (
	alone = []string{harness.Keyed, harness.Set, harness.Once, harness.Asked, harness.Order}
	steps = []string{harness.Order, harness.Order, harness.Order, harness.Keyed, harness.Set, harness.Asked, harness.Once}
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

// work runs the agents until ctx ends. Then each agent completes its run.
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

// plan returns the tools of a run's steps. A third of the runs with several steps end with a step that is refused.
func plan(random *rand.Rand) []string {
	if random.IntN(2) == 0 {
		return []string{alone[random.IntN(len(alone))]}
	}
	var tools []string
	for range 2 + random.IntN(4) {
		tools = append(tools, steps[random.IntN(len(steps))])
	}
	if random.IntN(3) == 0 {
		tools = append(tools, harness.Declined)
	}
	return tools
}

func (a *agents) take(run string, tools []string) {
	a.remember(run)
	for number, tool := range tools {
		time.Sleep(pace)
		intent := dispatch.Tuple{AgentRunID: run, StepID: fmt.Sprintf("step-%d", number), ToolName: tool, BusinessScope: "order"}
		if a.commit(intent) == history.Refused {
			return // the run is closed, or the database does not answer
		}
	}
}

// commit tries again while it gets no answer. An agent may do so, because the key stays the same.
func (a *agents) commit(intent dispatch.Tuple) history.Answer {
	var answer history.Answer
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		answer = a.clients.Enqueue(ctx, a.db, intent, json.RawMessage(`{"n": 1, "card": "`+canary+`"}`))
		cancel()
		if answer != history.NoAnswer {
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

// provider fails about a quarter of the requests, with every kind of fault. During an outage it fails all of them.
type provider struct {
	outage atomic.Pointer[dispatchtest.Fault] // nil without an outage
	first  dispatchtest.Plan
	again  dispatchtest.Plan // for requests after the first one of a key
}

func newProvider(seed uint64) *provider {
	odds, later := map[dispatchtest.Fault]float64{}, map[dispatchtest.Fault]float64{}
	for _, fault := range dispatchtest.Faults() {
		odds[fault] = 0.25 / float64(len(dispatchtest.Faults()))
		later[fault] = odds[fault]
	}
	odds[dispatchtest.Taken] += 0.03 // so that some undos fail, too
	later[dispatchtest.Taken] += 0.1 // a refusal after a doubt must not be believed
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

// lookups returns the plan of the lookups: a fifth of them fail.
func lookups(seed uint64) dispatchtest.Plan {
	return dispatchtest.Random(seed+1, map[dispatchtest.Fault]float64{dispatchtest.Unavailable: 0.1, dispatchtest.DropBefore: 0.1})
}

// onCall is an operator at the command line during the storm.
type onCall struct{ program *program.Program }

// does runs a command, which may be refused.
func (o onCall) does(args ...string) error {
	output, err := o.program.Command(append(args, "--operator", "nemesis", "--reason", "because")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %.120s", err, output)
	}
	return nil
}

// insists repeats a command until it succeeds, because the database may not answer.
func (o onCall) insists(args ...string) {
	for begun := time.Now(); o.does(args...) != nil && time.Since(begun) < patience; {
		time.Sleep(100 * time.Millisecond)
	}
}

// undecided selects the unknown steps and undos that block a saga, and whose requests can no longer arrive.
const undecided = `
	SELECT s.intent_id, s.idempotency_key FROM outbox.saga g JOIN outbox.status s USING (agent_run_id)
	WHERE g.state = 'begun' AND s.status = 'unknown' AND s.finished_at < now() - interval '6 seconds' ORDER BY 1 LIMIT 100`

// decide does what only people can do. It looks at the provider's ledger, and resolves the steps that sagas wait for.
func decide(ctx context.Context, rig *harness.Rig) error {
	rows, err := rig.DB.Query(ctx, undecided)
	if err != nil {
		return err
	}
	type step struct {
		ID  int64
		Key string
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[step])
	if err != nil || len(steps) == 0 {
		return err
	}
	refs := map[string]string{}
	for _, effect := range rig.Provider.Ledger.Effects() {
		refs[effect.Key] = effect.ID
	}
	conn, err := pgx.Connect(ctx, rig.URL)
	if err != nil {
		return err
	}
	console := operator.Open(conn)
	defer console.Close(context.WithoutCancel(ctx))
	for _, step := range steps {
		resolution := operator.Resolve{As: dispatch.StatusFailed}
		if ref, happened := refs[step.Key]; happened {
			resolution = operator.Resolve{As: dispatch.StatusCompleted, ProviderRef: ref}
		}
		by := operator.Signature{Operator: "nemesis", Reason: "looked at the ledger"}
		if _, err := console.Change(ctx, resolution, by, []int64{step.ID}); err != nil {
			return err
		}
	}
	return nil
}
