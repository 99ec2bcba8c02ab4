package integration_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/program"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

const (
	goodLanes     = 3
	loadLasts     = 10 * time.Second
	betweenLoads  = 20 * time.Millisecond // one intent for each lane
	crashAfter    = 500 * time.Millisecond
	lanesOfConfig = `version: 1
server: {listen: "127.0.0.1:0"}
providers:
`
	goodLane = `  good%d:
    adapter: http
    http: {base_url: %s}
    tools: {act: {http: {path: /v1/act}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}}
`
	// A breaker that hardly ever opens lets the crash loop go on.
	crashingLanes = `  sidecar:
    adapter: sidecar
    circuit_breaker: {consecutive_failures: 10000}
    sidecar: {url: "unix://%s"}
    tools: {open_ticket: {idempotency: {class: key_idempotent, ttl: 24h, scope: tickets}, on_failure: dead_letter, retry: {max_attempts: 1000, cap: 1s}}}
  child:
    adapter: exec
    circuit_breaker: {consecutive_failures: 10000}
    exec: {command: [timeout, -s, KILL, "0.5", python3, %q]}
    tools: {open_ticket: {idempotency: {class: key_idempotent, ttl: 24h, scope: tickets}, on_failure: dead_letter, retry: {max_attempts: 1000, cap: 1s}}}
`
)

// BenchmarkLanesBesideACrashLoop measures how late intents of good lanes are
// completed beside a sidecar and a child in Python that die again and again:
// in turns, as lanes of the daemon and as strangers to it, which cost the same
// processor time. p99-ratio is what matters; 2 is the most it may be.
func BenchmarkLanesBesideACrashLoop(b *testing.B) {
	if _, err := exec.LookPath("python3"); err != nil {
		b.Skip("no python3 here; it runs the example whose crashes are the subject")
	}
	var strangers, lanes, pairs float64
	for b.Loop() {
		strangers += p99(b, false)
		lanes += p99(b, true)
		pairs++
	}
	b.ReportMetric(strangers/pairs, "p99-strangers-ms")
	b.ReportMetric(lanes/pairs, "p99-lanes-ms")
	b.ReportMetric(lanes/strangers, "p99-ratio")
	b.ReportMetric(0, "ns/op")
}

// p99 is in milliseconds, from the commit of an intent to that of its end.
func p99(b *testing.B, crashing bool) float64 {
	b.Helper()
	url := drainertest.Database(b)
	db := drainertest.Connect(b, url)
	ledger := dispatchtest.NewLedger()
	config := lanesOfConfig
	for n := range goodLanes {
		config += fmt.Sprintf(goodLane, n, dispatchtest.Serve(b, &dispatchtest.SimulatedProvider{Ledger: ledger}))
	}
	ctx, cancel := context.WithCancel(b.Context())
	var loop sync.WaitGroup
	crashes, err := filepath.Abs("../examples/adapters/python/tickets.py")
	if err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(b.TempDir(), "s")
	loop.Go(func() { crashAgainAndAgain(ctx, crashes, "--unix", socket) })
	if crashing {
		config += fmt.Sprintf(crashingLanes, socket, crashes)
	} else {
		loop.Go(func() { crashAgainAndAgain(ctx, crashes) })
	}
	shell := program.New(b, url)
	daemon := shell.Start(program.WriteConfig(b, config))
	load(b, url, crashing)
	var left int
	for deadline := time.Now().Add(drainertest.Patience); ; {
		if err := db.QueryRow(b.Context(), `SELECT count(*) FROM outbox.status WHERE provider LIKE 'good%' AND status <> 'completed'`).Scan(&left); err != nil {
			b.Fatal(err)
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			b.Fatalf("%d intents of good lanes are not completed", left)
		}
	}
	var milliseconds float64
	if err := db.QueryRow(b.Context(), `
		SELECT 1000 * percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at))
		FROM outbox.status WHERE provider LIKE 'good%'`).Scan(&milliseconds); err != nil {
		b.Fatal(err)
	}
	if crashing {
		assertCrashes(b, db)
	}
	cancel()
	loop.Wait()
	daemon.Kill()
	return milliseconds
}

// assertCrashes makes sure that both were met by attempts.
func assertCrashes(b *testing.B, db *pgxpool.Pool) {
	b.Helper()
	var sidecar, child int
	if err := db.QueryRow(b.Context(), `
		SELECT count(*) FILTER (WHERE provider = 'sidecar'), count(*) FILTER (WHERE provider = 'child')
		FROM outbox.attempt JOIN outbox.intent ON id = intent_id
		WHERE outcome IN ('not_sent', 'ambiguous')`).Scan(&sidecar, &child); err != nil {
		b.Fatal(err)
	}
	if sidecar < 10 || child < 10 {
		b.Fatalf("%d attempts met a dead sidecar and %d a dead child: too few to show anything", sidecar, child)
	}
}

// load enqueues at a steady pace, whatever becomes of it.
func load(b *testing.B, url string, crashing bool) {
	b.Helper()
	db := drainertest.Connect(b, url)
	ticker := time.NewTicker(betweenLoads)
	defer ticker.Stop()
	for step := range int(loadLasts / betweenLoads) {
		<-ticker.C
		for n := range goodLanes {
			enqueue(b, db, fmt.Sprintf("good%d/act", n), step, step+1)
		}
		if crashing && step%5 == 0 {
			if _, err := db.Exec(b.Context(), `
				INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
				SELECT 'run-2', 'step-' || $1::int, tool, 'desk', '{"title": "down"}'
				FROM unnest('{sidecar/open_ticket,child/open_ticket}'::text[]) tool`, step); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// crashAgainAndAgain keeps its program's stdin open, as a daemon would.
func crashAgainAndAgain(ctx context.Context, command ...string) {
	for ctx.Err() == nil {
		life, end := context.WithTimeout(ctx, crashAfter)
		child := exec.CommandContext(life, "python3", command...)
		if stdin, err := child.StdinPipe(); err == nil {
			defer stdin.Close()
		}
		_ = child.Run() // killed when its life is over
		end()
	}
}
