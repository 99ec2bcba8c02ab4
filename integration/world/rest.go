package world

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/history"
)

// backlog is what is left to do: rows that wait or are in progress, and sagas
// under way.
const backlog = `SELECT (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.claim) + (SELECT count(*) FROM outbox.saga WHERE state = 'begun')`

// AwaitRest returns once nothing is left to do. A database that does not
// answer yet is waited for, too.
func (w *World) AwaitRest() {
	w.t.Helper()
	drainertest.Eventually(w.t, "nothing is left to do", w.Rests)
}

// Rests reports whether nothing is left to do.
func (w *World) Rests() bool {
	var left int
	err := w.DB.QueryRow(context.Background(), backlog).Scan(&left)
	return err == nil && left == 0
}

// AwaitCount returns once the query gives that number, or a greater one.
func (w *World) AwaitCount(what string, least int, sql string, args ...any) {
	w.t.Helper()
	drainertest.Eventually(w.t, what, func() bool { return w.Count(sql, args...) >= least })
}

// AwaitEffects returns once the provider has had so many.
func (w *World) AwaitEffects(least int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), drainertest.Patience)
	defer cancel()
	if err := w.Provider.Ledger.Wait(ctx, func(a dispatchtest.Audit) bool { return a.TotalEffects() >= least }); err != nil {
		w.t.Fatal(err)
	}
}

// AwaitMoreEffects returns once the provider has had that many more.
func (w *World) AwaitMoreEffects(more int) {
	w.t.Helper()
	w.AwaitEffects(w.Provider.Ledger.Audit().TotalEffects() + more)
}

// Violations holds the three accounts against each other.
func (w *World) Violations() []history.Violation {
	w.t.Helper()
	return history.Check(history.Collect(w.t, w.Clients, w.Provider.Ledger, w.DB), Tools)
}

// Check fails the test for each violation.
func (w *World) Check() {
	w.t.Helper()
	drainertest.AssertInvariant(w.t, w.DB)
	for _, violation := range w.Violations() {
		w.t.Error(violation)
	}
}

const claims = `
	SELECT i.idempotency_key, count(t.seq) FROM outbox.status i
	LEFT JOIN history.transition t ON t.intent_id = i.intent_id AND t.place = 'claim' AND t.change = 'INSERT' GROUP BY 1`

// CheckClaimed fails the test for each intent that was sent more often than its
// claims were committed. It holds of a database that forgot nothing.
func (w *World) CheckClaimed() {
	w.t.Helper()
	requests := w.Provider.Ledger.Audit().Requests
	var key string
	var claimed int
	rows, _ := w.DB.Query(context.Background(), claims) // ForEachRow returns the error too
	if _, err := pgx.ForEachRow(rows, []any{&key, &claimed}, func() error {
		if requests[key] > claimed {
			w.t.Errorf("an intent that was claimed %d times was sent %d times", claimed, requests[key])
		}
		return nil
	}); err != nil {
		w.t.Fatalf("reading the claims: %v", err)
	}
}
