package integration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

// world is an outbox and a provider; daemons come and go in it.
type world struct {
	t        *testing.T
	url      string
	db       *pgxpool.Pool
	provider *dispatchtest.SimulatedProvider
	baseURL  string
}

func newWorld(t *testing.T, plan dispatchtest.Plan) *world {
	t.Helper()
	return worldAt(t, drainertest.Database(t), plan)
}

func worldAt(t *testing.T, url string, plan dispatchtest.Plan) *world {
	t.Helper()
	provider, baseURL := dispatchtest.NewProvider(t, plan)
	return &world{t: t, url: url, db: drainertest.Connect(t, url), provider: provider, baseURL: baseURL}
}

// setup has one provider, "sim", of that class.
func (w *world) setup(class dispatch.Class, worker drainer.WorkerSettings) setup {
	return setup{DatabaseURL: w.url, Worker: worker, Providers: []providerSetup{w.sim(class)}}
}

func (w *world) sim(class dispatch.Class) providerSetup {
	return providerSetup{Name: "sim", BaseURL: w.baseURL, Class: class, Concurrency: 8, MaxAttempts: 20, Timeout: drainertest.Patience}
}

// enqueue commits intents of the tool, steps from to to-1 of one run.
func (w *world) enqueue(tool string, from, to int) {
	w.t.Helper()
	enqueue(w.t, w.db, tool, from, to)
}

func enqueue(t testing.TB, db *pgxpool.Pool, tool string, from, to int) {
	t.Helper()
	drainertest.Exec(t, db, `
		INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-1', 'step-' || n, $1::text, 'order-' || n, jsonb_build_object('n', n)
		FROM generate_series($2::int, $3::int - 1) n`, tool, from, to)
}

// stored is one column of one row; not finding it fails the test.
func stored[V any](w *world, sql string, args ...any) V {
	w.t.Helper()
	return drainertest.Value[V](w.t, w.db, sql, args...)
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	drainertest.Exec(w.t, w.db, sql, args...)
}

// count is how many intents have that status.
func (w *world) count(status string) int {
	w.t.Helper()
	return stored[int](w, `SELECT count(*) FROM outbox.status WHERE status = $1`, status)
}

// awaitCount also checks the invariant at every look.
func (w *world) awaitCount(status string, want int) {
	w.t.Helper()
	drainertest.Eventually(w.t, fmt.Sprintf("%d intents are %s", want, status), func() bool {
		drainertest.AssertInvariant(w.t, w.db)
		return w.count(status) == want
	})
}

// history is the outcomes of the only intent's attempts, in order. What was given
// back unsent is left out: on a busy machine a worker may lose its lease at any
// time.
func (w *world) history() []string {
	w.t.Helper()
	return stored[[]string](w, `SELECT coalesce(array_agg(outcome ORDER BY attempt), '{}') FROM outbox.attempt WHERE outcome <> 'released'`)
}

func (w *world) assertHistory(want ...string) {
	w.t.Helper()
	if got := w.history(); !slices.Equal(got, want) {
		w.t.Errorf("attempts ended %s, want %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// awaitEffects returns once the ledger holds that many.
func (w *world) awaitEffects(want int) {
	w.t.Helper()
	w.awaitLedger(func(audit dispatchtest.Audit) bool { return audit.TotalEffects() >= want })
}

func (w *world) awaitRequests(want int) {
	w.t.Helper()
	w.awaitLedger(func(audit dispatchtest.Audit) bool { return audit.TotalRequests() >= want })
}

func (w *world) awaitLedger(condition func(dispatchtest.Audit) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), drainertest.Patience)
	defer cancel()
	if err := w.provider.Ledger.Wait(ctx, condition); err != nil {
		w.t.Fatal(err)
	}
}

// assertOneEffectEach compares the ledger with the intents: every completed
// one has exactly one effect, and there is no other.
func (w *world) assertOneEffectEach() {
	w.t.Helper()
	drainertest.AssertInvariant(w.t, w.db)
	completed := stored[[]string](w, `SELECT coalesce(array_agg(idempotency_key), '{}') FROM outbox.status WHERE status = 'completed'`)
	effects := w.provider.Ledger.Audit().Effects
	for _, key := range completed {
		if effects[key] != 1 {
			w.t.Errorf("a completed intent had %d effects", effects[key])
		}
		delete(effects, key)
	}
	if len(effects) > 0 {
		w.t.Errorf("%d effects of intents that are not completed", len(effects))
	}
}

func (w *world) assertNoClaims() {
	w.t.Helper()
	if claims := stored[int](w, `SELECT count(*) FROM outbox.claim`); claims != 0 {
		w.t.Errorf("%d claims are left", claims)
	}
}
