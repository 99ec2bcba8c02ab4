package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/history"
)

// backlog counts the work that remains: queued and claimed rows, and sagas that are under way.
const backlog = `SELECT (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.claim) + (SELECT count(*) FROM outbox.saga WHERE state = 'begun')`

// AwaitRest returns once no work remains. It also waits for a database that does not answer yet.
func (rig *Rig) AwaitRest() {
	rig.T.Helper()
	drainertest.Eventually(rig.T, "nothing is left to do", rig.Rests)
}

// Rests reports whether no work remains.
func (rig *Rig) Rests() bool {
	var left int
	err := rig.DB.QueryRow(context.Background(), backlog).Scan(&left)
	return err == nil && left == 0
}

// AwaitCount returns once the query returns that number, or a greater one.
func (rig *Rig) AwaitCount(what string, least int, sql string, args ...any) {
	rig.T.Helper()
	drainertest.Eventually(rig.T, what, func() bool { return rig.Count(sql, args...) >= least })
}

// AwaitEffects returns once the provider has had that many effects.
func (rig *Rig) AwaitEffects(least int) {
	rig.T.Helper()
	rig.AwaitLedger(func(a dispatchtest.Audit) bool { return a.TotalEffects() >= least })
}

// AwaitMoreEffects returns once the provider has had that many more effects.
func (rig *Rig) AwaitMoreEffects(more int) {
	rig.T.Helper()
	rig.AwaitEffects(rig.Provider.Ledger.Audit().TotalEffects() + more)
}

// Violations compares the three accounts.
func (rig *Rig) Violations() []history.Violation {
	rig.T.Helper()
	return history.Check(history.Collect(rig.T, rig.Clients, rig.Provider.Ledger, rig.DB), Tools)
}

// Check fails the test for each violation.
func (rig *Rig) Check() {
	rig.T.Helper()
	drainertest.AssertInvariant(rig.T, rig.DB)
	for _, violation := range rig.Violations() {
		rig.T.Error(violation)
	}
}

const claims = `
	SELECT i.idempotency_key, count(t.seq) FROM outbox.status i
	LEFT JOIN history.transition t ON t.intent_id = i.intent_id AND t.place = 'claim' AND t.change = 'INSERT' GROUP BY 1`

// CheckClaimed fails the test for each intent that was sent more often than its claims were committed. It must not
// be used if the database lost commits.
func (rig *Rig) CheckClaimed() {
	rig.T.Helper()
	requests := rig.Provider.Ledger.Audit().Requests
	var key string
	var claimed int
	rows, _ := rig.DB.Query(context.Background(), claims) // ForEachRow returns the error too
	if _, err := pgx.ForEachRow(rows, []any{&key, &claimed}, func() error {
		if requests[key] > claimed {
			rig.T.Errorf("an intent that was claimed %d times was sent %d times", claimed, requests[key])
		}
		return nil
	}); err != nil {
		rig.T.Fatalf("reading the claims: %v", err)
	}
}

// EnqueueSteps commits intents of the tool at once: steps from to to-1 of one run.
func (rig *Rig) EnqueueSteps(tool string, from, to int) {
	rig.T.Helper()
	rig.Exec(`
		INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-1', 'step-' || n, $1::text, 'order-' || n, jsonb_build_object('n', n)
		FROM generate_series($2::int, $3::int - 1) n`, tool, from, to)
}

// Stored returns the only column of the only row of a query. Otherwise the test fails.
func Stored[V any](rig *Rig, sql string, args ...any) V {
	rig.T.Helper()
	return drainertest.Value[V](rig.T, rig.DB, sql, args...)
}

// CountStatus returns how many intents have that status.
func (rig *Rig) CountStatus(status string) int {
	rig.T.Helper()
	return Stored[int](rig, `SELECT count(*) FROM outbox.status WHERE status = $1`, status)
}

// AwaitStatus returns once that many intents have that status. It checks the invariant at each poll.
func (rig *Rig) AwaitStatus(status string, want int) {
	rig.T.Helper()
	drainertest.Eventually(rig.T, fmt.Sprintf("%d intents are %s", want, status), func() bool {
		drainertest.AssertInvariant(rig.T, rig.DB)
		return rig.CountStatus(status) == want
	})
}

// Outcomes returns the outcomes of the only intent's attempts, in order. Releases are left out, because on a busy
// machine a worker may lose its lease at any time.
func (rig *Rig) Outcomes() []string {
	rig.T.Helper()
	return Stored[[]string](rig, `SELECT coalesce(array_agg(outcome ORDER BY attempt), '{}') FROM outbox.attempt WHERE outcome <> 'released'`)
}

// AssertOutcomes compares Outcomes with want.
func (rig *Rig) AssertOutcomes(want ...string) {
	rig.T.Helper()
	if got := rig.Outcomes(); !slices.Equal(got, want) {
		rig.T.Errorf("attempts ended %s, want %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// AwaitRequests returns once the provider has had that many requests.
func (rig *Rig) AwaitRequests(want int) {
	rig.T.Helper()
	rig.AwaitLedger(func(audit dispatchtest.Audit) bool { return audit.TotalRequests() >= want })
}

// AwaitLedger returns once the condition holds for the provider's ledger.
func (rig *Rig) AwaitLedger(condition func(dispatchtest.Audit) bool) {
	rig.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), drainertest.Patience)
	defer cancel()
	if err := rig.Provider.Ledger.Wait(ctx, condition); err != nil {
		rig.T.Fatal(err)
	}
}

// AssertOneEffectEach compares the ledger with the intents: every completed intent has exactly one effect, and
// there are no other effects.
func (rig *Rig) AssertOneEffectEach() {
	rig.T.Helper()
	drainertest.AssertInvariant(rig.T, rig.DB)
	completed := Stored[[]string](rig, `SELECT coalesce(array_agg(idempotency_key), '{}') FROM outbox.status WHERE status = 'completed'`)
	effects := rig.Provider.Ledger.Audit().Effects
	for _, key := range completed {
		if effects[key] != 1 {
			rig.T.Errorf("a completed intent had %d effects", effects[key])
		}
		delete(effects, key)
	}
	if len(effects) > 0 {
		rig.T.Errorf("%d effects of intents that are not completed", len(effects))
	}
}

// AssertNoClaims fails the test if a row is still claimed.
func (rig *Rig) AssertNoClaims() {
	rig.T.Helper()
	if claims := Stored[int](rig, `SELECT count(*) FROM outbox.claim`); claims != 0 {
		rig.T.Errorf("%d claims are left", claims)
	}
}
