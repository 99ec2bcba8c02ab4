// Package harness is the system into which tests inject faults: an outbox that records its transitions, agents
// that remember the answers to their commits, a simulated provider with its ledger on disk, and daemons of the
// real program.
package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/program"
)

// Rig belongs to one test. Its provider may be changed until the first request.
type Rig struct {
	T        testing.TB
	URL      string        // of the database; daemons may be started behind a proxy instead
	DB       *pgxpool.Pool // the test's own connections
	Provider *dispatchtest.SimulatedProvider
	BaseURL  string // the address of Provider

	// A Plain rig lacks these:
	Program *program.Program
	Config  string // the path of the daemons' configuration
	Clients *history.Clients

	steps atomic.Int64
}

// Plain returns a rig with a database of its own and a provider. It keeps no accounts, and the test configures its
// daemons.
func Plain(t testing.TB, plan dispatchtest.Plan) *Rig {
	t.Helper()
	rig := Without(t)
	rig.Provider, rig.BaseURL = dispatchtest.NewProvider(t, plan)
	return rig
}

// Without returns a rig with a database of its own, for a test with its own provider.
func Without(t testing.TB) *Rig {
	t.Helper()
	url := drainertest.Database(t)
	return &Rig{T: t, URL: url, DB: drainertest.Connect(t, url)}
}

// New returns a rig on a database of its own.
func New(t testing.TB, plan dispatchtest.Plan) *Rig {
	t.Helper()
	return At(t, drainertest.Database(t), plan)
}

// At returns a rig on a database that has the schema.
func At(t testing.TB, url string, plan dispatchtest.Plan) *Rig {
	t.Helper()
	db, err := connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	history.Record(t, db)
	ledger, err := dispatchtest.OpenLedger(filepath.Join(t.TempDir(), "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ledger.Close() })
	provider := &dispatchtest.SimulatedProvider{Ledger: ledger, Plan: plan, Declines: func(path string) bool { return path == declinedPath }}
	baseURL := dispatchtest.Serve(t, provider)
	t.Cleanup(provider.Release)
	return &Rig{
		URL: url, DB: db, Program: program.WithFailpoints(t, url), Config: program.WriteConfig(t, configFor(baseURL)),
		BaseURL: baseURL, Provider: provider, Clients: &history.Clients{}, T: t,
	}
}

// connect allows enough connections for every agent that waits, and for the test itself.
func connect(url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	return pgxpool.NewWithConfig(context.Background(), config)
}

// Broken changes the rig so that its daemons lack a guard.
func (rig *Rig) Broken(mutant string) *Rig {
	rig.T.Helper()
	rig.Program = program.Mutated(rig.T, mutant, rig.URL)
	return rig
}

// Reconfigure changes the configuration for daemons that start from now on.
func (rig *Rig) Reconfigure(change func(config string) string) {
	rig.T.Helper()
	config, err := os.ReadFile(rig.Config)
	if err != nil {
		rig.T.Fatal(err)
	}
	changed := change(string(config))
	if changed == string(config) {
		rig.T.Fatal("the change finds nothing to change in the configuration")
	}
	rig.Config = program.WriteConfig(rig.T, changed)
}

// Start runs a daemon. env are additional variables for this daemon, such as DRAINER_FAILPOINTS=….
func (rig *Rig) Start(env ...string) *program.Daemon {
	rig.T.Helper()
	return rig.Program.Start(rig.Config, env...)
}

// Enqueue commits intents of that tool, each in its own run.
func (rig *Rig) Enqueue(tool string, intents int) {
	rig.T.Helper()
	for range intents {
		rig.Step(rig.NewRun(), 1, tool)
	}
}

// Step commits one step of a run, and returns the agent's answer.
func (rig *Rig) Step(run string, number int, tool string) history.Answer {
	rig.T.Helper()
	return rig.StepOf(rig.DB, run, number, tool)
}

// StepOf is Step by an agent with its own connections to the database.
func (rig *Rig) StepOf(agent history.Beginner, run string, number int, tool string) history.Answer {
	return rig.Clients.Enqueue(context.Background(), agent, Intent(run, number, tool), json.RawMessage(`{"n": 1}`))
}

// Intent returns the identity of a step.
func Intent(run string, number int, tool string) dispatch.Tuple {
	return dispatch.Tuple{AgentRunID: run, StepID: fmt.Sprintf("step-%d", number), ToolName: tool, BusinessScope: "order"}
}

// Exec runs a statement that must succeed.
func (rig *Rig) Exec(sql string, args ...any) {
	rig.T.Helper()
	drainertest.Exec(rig.T, rig.DB, sql, args...)
}

// Count returns the number that a query returns.
func (rig *Rig) Count(sql string, args ...any) int {
	rig.T.Helper()
	return drainertest.Value[int](rig.T, rig.DB, sql, args...)
}

// The tools of every rig except a Plain one. All call the same simulated provider.
const (
	Keyed    = "keyed/act"    // key_idempotent
	Set      = "set/act"      // naturally_idempotent
	Once     = "once/act"     // non_idempotent
	Asked    = "asked/act"    // non_idempotent, with a lookup
	Order    = "shop/order"   // key_idempotent, with a lookup; undone by Cancel
	Declined = "shop/refused" // the same, and the provider always refuses it
	Cancel   = "refunds/cancel"
)

// Tools lists the tools of the configuration with their promises.
var Tools = map[string]history.Tool{
	Keyed:    {Class: dispatch.KeyIdempotent, Stays: true},
	Set:      {Class: dispatch.NaturallyIdempotent, Stays: true},
	Once:     {Class: dispatch.NonIdempotent, Stays: true},
	Asked:    {Class: dispatch.NonIdempotent, Stays: true},
	Order:    {Class: dispatch.KeyIdempotent},
	Declined: {Class: dispatch.KeyIdempotent},
	Cancel:   {Class: dispatch.KeyIdempotent, Stays: true},
}

const declinedPath = "/v1/refused"

// config has a lease of one second, so that no test waits long for a death. Retries are many and quick, so that
// rows outlive a fault.
const config = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {heartbeat: 200ms, lease: 1s, shutdown_timeout: 5s}
providers:
  keyed:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /v1/keyed, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
  set:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: PUT, path: "/v1/set/{.key}", response: {ref: .id}}
        idempotency: {class: naturally_idempotent}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
  once:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /v1/once, response: {ref: .id}}
        idempotency: {class: non_idempotent}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
  asked:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /v1/asked, response: {ref: .id}}
        idempotency: {class: non_idempotent}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        lookup: {tool: find, margin: 500ms}
        compensation: none
      find:
        http: {method: GET, path: "/effects/{.key}", response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}
        idempotency: {class: read_only}
  shop:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      order:
        http: {method: POST, path: /v1/orders, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        lookup: {tool: find, margin: 500ms}
        compensate_with: {tool: refunds/cancel, payload: "{order: .provider_ref}"}
      refused:
        http: {method: POST, path: ` + declinedPath + `, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        lookup: {tool: find, margin: 500ms}
        compensate_with: {tool: refunds/cancel, payload: "{order: .provider_ref}"}
      find:
        http: {method: GET, path: "/effects/{.key}", response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}
        idempotency: {class: read_only}
  refunds:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      cancel:
        http: {method: POST, path: /v1/cancellations, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
`

func configFor(baseURL string) string { return fmt.Sprintf(config, baseURL) }

// agentPause lets an agent commit a few dozen intents a second. That is enough to meet every fault.
const agentPause = 20 * time.Millisecond

// Agents starts one agent for each tool. Each enqueues one intent after another, and repeats each until an answer
// says that it is committed. The agents end with the test, or when stop returns.
func (rig *Rig) Agents(tools ...string) (stop func()) {
	rig.T.Helper()
	done := make(chan struct{})
	var agents sync.WaitGroup
	for _, tool := range tools {
		agents.Go(func() { rig.agent(tool, done) })
	}
	stop = sync.OnceFunc(func() {
		close(done)
		agents.Wait()
	})
	rig.T.Cleanup(stop)
	return stop
}

func (rig *Rig) agent(tool string, done <-chan struct{}) {
	pause := time.NewTicker(agentPause)
	defer pause.Stop()
	run := rig.NewRun()
	for {
		select {
		case <-done:
			return
		case <-pause.C:
		}
		if rig.Step(run, 1, tool) == history.Committed {
			run = rig.NewRun()
		}
	}
}

// NewRun returns a run id that no other agent uses.
func (rig *Rig) NewRun() string { return fmt.Sprintf("run-%d", rig.steps.Add(1)) }
