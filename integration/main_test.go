// Package integration_test runs daemons of the real program against a real Postgres and a simulated provider. A
// daemon runs in the test's own process if the test must see its internal state.
//
//	faults/    each fault of the catalogue, injected on purpose
//	fault/     the catalogue; report/ runs it and prints a table
//	nemesis/   all kinds of faults at random, for a while or for an hour
//	console/   the console in a browser; its screenshots
//	bench/     the daemon against River and a bare client; goals/ judges the figures
//	harness/   the environment of a test: outbox, agents, provider, daemons
//	history/   three accounts of what happened, and the checker that compares them
//	program/   builds and runs drainer: as it ships, with failpoints, or as a mutant
//	cluster/   Postgres servers that crash, fill up, fail over or have a wrong clock
//	pgproxy/   loses or keeps back messages between a daemon and Postgres
//	docblock/  code blocks of the documentation, for tests to run
package integration_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// setup is the configuration of one daemon.
type setup struct {
	DatabaseURL string
	Worker      drainer.WorkerSettings
	Providers   []providerSetup
}

// providerSetup is one HTTP provider with the single operation "act".
type providerSetup struct {
	Name        string
	BaseURL     string
	Class       dispatch.Class
	Concurrency int
	MaxAttempts int
	Timeout     time.Duration
	KeyTTL      time.Duration // 24 h if zero
	Breaker     dispatch.BreakerPolicy
}

// shortLease is for tests about losing a lease. It is long enough that daemons on a busy machine do not lose it by
// themselves. Other tests have patientLease.
var (
	shortLease   = drainer.WorkerSettings{Heartbeat: 200 * time.Millisecond, Lease: 3 * time.Second, ShutdownTimeout: 10 * time.Second}
	patientLease = drainer.WorkerSettings{Heartbeat: time.Second, Lease: 15 * time.Second, ShutdownTimeout: 10 * time.Second}
)

// start runs a daemon of the program in a process of its own, and shows its log if the test fails. env are
// variables of that process, as NAME=value.
func start(t *testing.T, with setup, env ...string) *program.Daemon {
	t.Helper()
	daemon := program.WithFailpoints(t, with.DatabaseURL).Start(program.WriteConfig(t, with.yaml()), env...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of daemon %d without its successes:\n%s", daemon.PID(), daemon.Troubles())
		}
	})
	return daemon
}

func (s setup) yaml() string {
	var text strings.Builder
	fmt.Fprintf(&text, "version: 1\nserver: {listen: \"127.0.0.1:0\"}\nworker: {heartbeat: %s, lease: %s, shutdown_timeout: %s}\nproviders:\n",
		inMilliseconds(s.Worker.Heartbeat), inMilliseconds(s.Worker.Lease), inMilliseconds(s.Worker.ShutdownTimeout))
	for _, p := range s.Providers {
		p.write(&text)
	}
	return text.String()
}

func (p providerSetup) write(text *strings.Builder) {
	fmt.Fprintf(text, "  %s:\n    adapter: http\n    concurrency: %d\n    timeout: %s\n    http: {base_url: %s}\n",
		p.Name, p.Concurrency, inMilliseconds(p.Timeout), p.BaseURL)
	if p.Breaker != (dispatch.BreakerPolicy{}) {
		// no test with this setup opens a breaker by a rate of failures
		fmt.Fprintf(text, "    circuit_breaker: {minimum_intents: 1000, consecutive_failures: %d, cool_down: %s}\n", p.Breaker.ConsecutiveFailures, inMilliseconds(p.Breaker.CoolDown))
	}
	idempotency := fmt.Sprintf("{class: %s}", p.Class)
	if p.Class == dispatch.KeyIdempotent {
		idempotency = fmt.Sprintf("{class: %s, ttl: %s, scope: account}", p.Class, inMilliseconds(cmp.Or(p.KeyTTL, 24*time.Hour)))
	}
	fmt.Fprintf(text, "    tools:\n      act:\n        http: %s\n        idempotency: %s\n        retry: {max_attempts: %d, base: 5ms, cap: 50ms}\n        compensation: none\n",
		act, idempotency, p.MaxAttempts)
}

const act = "{method: POST, path: /v1/act, response: {ref: .id}}"

func inMilliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// setupOf returns a setup with one provider, "sim", of that class.
func setupOf(rig *harness.Rig, class dispatch.Class, worker drainer.WorkerSettings) setup {
	return setup{DatabaseURL: rig.URL, Worker: worker, Providers: []providerSetup{simOf(rig, class)}}
}

func simOf(rig *harness.Rig, class dispatch.Class) providerSetup {
	return providerSetup{Name: "sim", BaseURL: rig.BaseURL, Class: class, Concurrency: 8, MaxAttempts: 20, Timeout: drainertest.Patience}
}

// build makes the provider for a daemon that runs in the test's own process.
func (p providerSetup) build(t testing.TB) dispatch.Provider {
	t.Helper()
	adapter, err := dispatchhttp.New(dispatch.Spec{
		Provider: p.Name,
		Timeout:  p.Timeout,
		Settings: dispatchtest.Block("base_url: " + p.BaseURL),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: p.Class, Settings: dispatchtest.Block(act)}},
	})
	if err != nil {
		t.Fatalf("provider %s: %v", p.Name, err)
	}
	policy := quickPolicy(p.Class, p.MaxAttempts)
	policy.KeyTTL = cmp.Or(p.KeyTTL, policy.KeyTTL)
	return dispatch.Provider{
		Name: p.Name, Adapter: adapter, Concurrency: p.Concurrency, Timeout: p.Timeout, Breaker: p.Breaker,
		Tools: map[string]dispatch.Policy{"act": policy},
	}
}

// quickPolicy retries at once, so that no test waits for a backoff.
func quickPolicy(class dispatch.Class, maxAttempts int) dispatch.Policy {
	return dispatch.Policy{
		Class:       class,
		KeyTTL:      24 * time.Hour,
		MaxAttempts: maxAttempts,
		Backoff:     dispatch.Backoff{Base: 5 * time.Millisecond, Cap: 50 * time.Millisecond},
	}
}
