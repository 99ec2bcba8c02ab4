package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// patience limits a wait for a lock, where a test must not wait for one.
const patience = drainertest.Patience

// outbox is a store with its own database, and a pool with which tests read that database.
type outbox struct {
	*postgres.Store
	t        testing.TB
	db       *pgxpool.Pool
	takeover string // see successor
}

func newOutbox(t testing.TB) *outbox {
	t.Helper()
	url := drainertest.Database(t)
	return openOutbox(t, url, url)
}

// openOutbox opens an outbox whose store reaches the database at storeURL.
func openOutbox(t testing.TB, url, storeURL string) *outbox {
	t.Helper()
	store, err := postgres.Open(t.Context(), pgpool.At(storeURL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	o := &outbox{Store: store, t: t, db: drainertest.Connect(t, url)}
	drainertest.Tenant(t, o.db)
	return o
}

// join returns the id of a new worker with a heartbeat.
func (o *outbox) join() string {
	o.t.Helper()
	worker := uuid.NewString()
	if err := o.Join(o.t.Context(), worker, []string{"sim"}, nil); err != nil {
		o.t.Fatal(err)
	}
	return worker
}

// successor returns one worker that takes over from all the others.
func (o *outbox) successor() string {
	o.t.Helper()
	if o.takeover == "" {
		o.takeover = o.join()
	}
	return o.takeover
}

// declareDead declares the worker dead, even if its heartbeat is fresh.
func (o *outbox) declareDead(worker string) {
	o.t.Helper()
	o.exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, worker)
}

func (o *outbox) exec(sql string, args ...any) {
	o.t.Helper()
	drainertest.Exec(o.t, o.db, sql, args...)
}

// enqueue commits the steps from to to-1 of one run.
func (o *outbox) enqueue(run string, from, to int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT $1, 'step-' || n, 'sim/act', 'scope', jsonb_build_object('n', n) FROM generate_series($2::int, $3::int - 1) n`,
		run, from, to)
}

// enqueueTool commits steps of one run that call the tool.
func (o *outbox) enqueueTool(tool, run string, steps int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT $1, $2 || n, $2, 'scope', '{}' FROM generate_series(1, $3::int) n`, run, tool, steps)
}

func (o *outbox) batch(worker string, batch drainer.Batch) drainer.BatchReply {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	reply, err := o.Commit(ctx, worker, batch)
	if err != nil {
		o.t.Fatal(err)
	}
	drainertest.AssertInvariant(o.t, o.db)
	return reply
}

func (o *outbox) claim(worker string, limit int) []*drainer.Row {
	o.t.Helper()
	return o.batch(worker, claimOf(limit)).Claimed[0].Rows
}

// beginning is a cursor before all rows. A claim after it is no full scan, and shares its statement with other claims.
var beginning = drainer.Cursor{NextAttemptAt: time.Unix(1, 0)}

// after returns a part for the rows of every tenant that come after the cursor.
func after(cursor drainer.Cursor) []drainer.Part {
	if cursor.IsZero() {
		return nil // a full scan
	}
	return []drainer.Part{{Last: drainer.LastTenant, Limit: 1000, After: cursor}}
}

// last returns the place of the last row that a claim of one tenant found.
func last(reply drainer.ClaimReply) (place drainer.Cursor) {
	for _, taken := range reply.Of {
		place = taken.Next
	}
	return place
}

func claimOf(limit int) drainer.Batch {
	return drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: limit}}}
}

// settle settles all rows with the outcome and finishes their claims.
func (o *outbox) settle(worker string, outcome dispatch.Outcome, rows ...*drainer.Row) drainer.BatchReply {
	o.t.Helper()
	return o.batch(worker, settling(outcome, rows...))
}

func settling(outcome dispatch.Outcome, rows ...*drainer.Row) drainer.Batch {
	var batch drainer.Batch
	for _, row := range rows {
		batch.Settle = append(batch.Settle, ended(row, outcome))
		batch.Finish = append(batch.Finish, row.ClaimID)
	}
	return batch
}

var policy = dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour, MaxAttempts: 5}

func ended(row *drainer.Row, outcome dispatch.Outcome) drainer.Settlement {
	result := dispatch.Result{Outcome: outcome}
	return drainer.Settlement{
		Row:        row,
		StartedAt:  time.Now(),
		FinishedAt: time.Now(),
		Result:     result,
		Decision:   policy.Decide(dispatch.History{Tries: row.Tries, MaybeApplied: row.MaybeApplied}, result, 0),
	}
}

func as(outcome dispatch.Outcome) drainer.Judge {
	return func(row *drainer.Row) (drainer.Settlement, bool) { return ended(row, outcome), true }
}

func (o *outbox) reap() []drainer.Settlement {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), patience)
	defer cancel()
	settled, err := o.Reap(ctx, []string{"sim"}, as(dispatch.Lost))
	if err != nil {
		o.t.Fatal(err)
	}
	return settled
}

// halfReaped returns a dead worker and the four rows of its claim. A reaper has settled the rows with odd ids, as
// judge decides, and left the claim to another reaper.
func (o *outbox) halfReaped(judge drainer.Judge) (dead string, rows []*drainer.Row) {
	o.t.Helper()
	dead = o.join()
	o.enqueue("run", 0, 4)
	rows = o.claim(dead, 4)
	o.declareDead(dead)
	settled, err := o.Reap(o.t.Context(), []string{"sim"}, func(row *drainer.Row) (drainer.Settlement, bool) {
		settlement, _ := judge(row)
		return settlement, row.IntentID%2 == 1
	})
	if err != nil || len(settled) != 2 {
		o.t.Fatalf("%d rows settled, %v; want the 2 odd ones", len(settled), err)
	}
	return dead, rows
}

// stored returns one column of one row.
func stored[V any](o *outbox, sql string, args ...any) V {
	o.t.Helper()
	return drainertest.Value[V](o.t, o.db, sql, args...)
}

func (o *outbox) statuses() map[string]int {
	o.t.Helper()
	rows, err := o.db.Query(o.t.Context(), `SELECT status, count(*) FROM outbox.status GROUP BY status`)
	if err != nil {
		o.t.Fatal(err)
	}
	counts := map[string]int{}
	var status string
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&status, &count}, func() error { counts[status] = count; return nil }); err != nil {
		o.t.Fatal(err)
	}
	return counts
}

func (o *outbox) assertStatuses(want map[string]int) {
	o.t.Helper()
	got := o.statuses()
	for status, count := range want {
		if got[status] != count {
			o.t.Errorf("%d intents are %s, want %d (all: %v)", got[status], status, count, got)
		}
	}
}

func ids(rows []*drainer.Row) []int64 {
	var ids []int64
	for _, row := range rows {
		ids = append(ids, row.IntentID)
	}
	return ids
}
