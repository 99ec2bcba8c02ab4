// Package world has what a fault is injected into: an outbox that records its
// transitions, agents that remember what they were told, a simulated provider
// with its ledger on disk, and daemons of the real program between them.
package world

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/program"
)

// World is for one test. Its provider may be changed until the first request.
type World struct {
	URL      string        // of the database; daemons may be started behind something else
	DB       *pgxpool.Pool // the test's own way to it
	Program  *program.Program
	Config   string // the path of the daemons' configuration
	BaseURL  string // where Provider listens
	Provider *dispatchtest.SimulatedProvider
	Clients  *history.Clients

	t     testing.TB
	steps atomic.Int64
}

// New is a world on a database of its own.
func New(t testing.TB, plan dispatchtest.Plan) *World {
	t.Helper()
	return At(t, drainertest.Database(t), plan)
}

// At is a world on a database that has the schema.
func At(t testing.TB, url string, plan dispatchtest.Plan) *World {
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
	return &World{
		URL: url, DB: db, Program: program.WithFailpoints(t, url), Config: program.WriteConfig(t, configFor(baseURL)),
		BaseURL: baseURL, Provider: provider, Clients: &history.Clients{}, t: t,
	}
}

// connect has room for every agent that waits and for whoever looks meanwhile.
func connect(url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	return pgxpool.NewWithConfig(context.Background(), config)
}

// Broken is the same world with daemons that lack a guard.
func (w *World) Broken(mutant string) *World {
	w.t.Helper()
	w.Program = program.Mutated(w.t, mutant, w.URL)
	return w
}

// Reconfigure changes the text of the configuration, for daemons that start
// from now on.
func (w *World) Reconfigure(change func(config string) string) {
	w.t.Helper()
	config, err := os.ReadFile(w.Config)
	if err != nil {
		w.t.Fatal(err)
	}
	changed := change(string(config))
	if changed == string(config) {
		w.t.Fatal("the change finds nothing to change in the configuration")
	}
	w.Config = program.WriteConfig(w.t, changed)
}

// Start runs a daemon. env are variables of its own, such as DRAINER_FAILPOINTS=….
func (w *World) Start(env ...string) *program.Daemon {
	w.t.Helper()
	return w.Program.Start(w.Config, env...)
}

// Enqueue commits intents of that tool, each of a run of its own.
func (w *World) Enqueue(tool string, intents int) {
	w.t.Helper()
	for range intents {
		w.Step(w.NewRun(), 1, tool)
	}
}

// Step commits one step of a run, and returns the agent's answer.
func (w *World) Step(run string, number int, tool string) history.Answer {
	w.t.Helper()
	return w.StepOf(w.DB, run, number, tool)
}

// StepOf is Step by an agent with a way of its own to the database.
func (w *World) StepOf(agent history.Beginner, run string, number int, tool string) history.Answer {
	return w.Clients.Enqueue(context.Background(), agent, Intent(run, number, tool), json.RawMessage(`{"n": 1}`))
}

// Intent is what identifies a step.
func Intent(run string, number int, tool string) dispatch.Tuple {
	return dispatch.Tuple{AgentRunID: run, StepID: fmt.Sprintf("step-%d", number), ToolName: tool, BusinessScope: "order"}
}

// Exec runs a statement for what it does.
func (w *World) Exec(sql string, args ...any) {
	w.t.Helper()
	drainertest.Exec(w.t, w.DB, sql, args...)
}

// Count is the number that a query gives.
func (w *World) Count(sql string, args ...any) int {
	w.t.Helper()
	return drainertest.Value[int](w.t, w.DB, sql, args...)
}
