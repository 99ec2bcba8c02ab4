package operator_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
)

var onCall = operator.Signature{Operator: "on-call", Reason: "because"}

// outbox is a real one, with the engine's own store to move its rows.
type outbox struct {
	t      *testing.T
	url    string
	db     *pgxpool.Pool
	store  *postgres.Store
	worker string
}

func newOutbox(t *testing.T) *outbox {
	t.Helper()
	url := drainertest.Database(t)
	store, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	db := drainertest.Connect(t, url)
	o := &outbox{t: t, url: url, db: db, store: store}
	o.worker = o.join()
	return o
}

func (o *outbox) join() string {
	o.t.Helper()
	worker := uuid.NewString()
	if err := o.store.Join(o.t.Context(), worker, []string{"sim", "spare"}); err != nil {
		o.t.Fatal(err)
	}
	return worker
}

func (o *outbox) console() *operator.Console { return o.consoleAt(o.url) }

func (o *outbox) consoleAt(url string) *operator.Console {
	o.t.Helper()
	conn, err := pgx.Connect(o.t.Context(), url)
	if err != nil {
		o.t.Fatal(err)
	}
	console := operator.Open(conn)
	o.t.Cleanup(func() { console.Close(o.t.Context()) })
	return console
}

// enqueue commits that many intents of one run, and returns their ids.
func (o *outbox) enqueue(run string, intents int) []int64 {
	o.t.Helper()
	return all[int64](o, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT $1, 'step-' || n, 'sim/act', 'scope', '{}' FROM generate_series(1, $2::int) n RETURNING id`, run, intents)
}

func (o *outbox) exec(sql string, args ...any) {
	o.t.Helper()
	drainertest.Exec(o.t, o.db, sql, args...)
}

// all is one column.
func all[V any](o *outbox, sql string, args ...any) []V {
	o.t.Helper()
	return drainertest.Column[V](o.t, o.db, sql, args...)
}

// one is one column of one row.
func one[V any](o *outbox, sql string, args ...any) V {
	o.t.Helper()
	return drainertest.Value[V](o.t, o.db, sql, args...)
}

func (o *outbox) claim() []*drainer.Row {
	o.t.Helper()
	reply, err := o.store.Turn(o.t.Context(), o.worker, drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1000}}})
	if err != nil {
		o.t.Fatal(err)
	}
	return reply.Claimed[0].Rows
}

// settle ends claimed rows as an engine with that policy would.
func (o *outbox) settle(policy dispatch.Policy, outcome dispatch.Outcome, rows ...*drainer.Row) {
	o.t.Helper()
	if _, err := o.store.Turn(o.t.Context(), o.worker, settling(policy, outcome, rows...)); err != nil {
		o.t.Fatal(err)
	}
}

func settling(policy dispatch.Policy, outcome dispatch.Outcome, rows ...*drainer.Row) drainer.Turn {
	var turn drainer.Turn
	for _, row := range rows {
		result := dispatch.Result{Outcome: outcome}
		history := dispatch.History{Tries: row.Tries, SinceFirstSend: row.SinceFirstSend, MaybeApplied: row.MaybeApplied, Lookup: row.Lookup}
		turn.Settle = append(turn.Settle, drainer.Settlement{
			Row: row, StartedAt: time.Now(), FinishedAt: time.Now(), Result: result, Decision: policy.Decide(history, result, 0),
		})
		turn.Finish = append(turn.Finish, row.ClaimID)
	}
	return turn
}

// end claims what is due and settles it all alike.
func (o *outbox) end(policy dispatch.Policy, outcome dispatch.Outcome) {
	o.t.Helper()
	rows := o.claim()
	if len(rows) == 0 {
		o.t.Fatal("nothing is due")
	}
	o.settle(policy, outcome, rows...)
}

var (
	keyed = dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, MaxAttempts: 5}
	once  = dispatch.Policy{Class: dispatch.NonIdempotent, MaxAttempts: 5}
	asked = dispatch.Policy{Class: dispatch.NonIdempotent, MaxAttempts: 5, Lookup: &dispatch.Lookup{Operation: "find"}}
)

func configured(policy dispatch.Policy) func(string, string) (dispatch.Policy, bool) {
	return func(string, string) (dispatch.Policy, bool) { return policy, true }
}

// change takes an action on one intent.
func (o *outbox) change(action operator.Action, intent int64) operator.Verdict {
	o.t.Helper()
	verdicts, err := o.console().Change(o.t.Context(), action, onCall, []int64{intent})
	if err != nil || len(verdicts) != 1 {
		o.t.Fatalf("%d verdicts, %v; want one", len(verdicts), err)
	}
	drainertest.AssertInvariant(o.t, o.db)
	return verdicts[0]
}

func (o *outbox) mustChange(action operator.Action, intent int64) {
	o.t.Helper()
	if verdict := o.change(action, intent); verdict.Refused != "" {
		o.t.Fatalf("%T of intent %d was refused: %s", action, intent, verdict.Refused)
	}
}

func (o *outbox) assertRefused(action operator.Action, intent int64) {
	o.t.Helper()
	before := o.history(intent)
	if verdict := o.change(action, intent); verdict.Refused == "" {
		o.t.Errorf("%T of an intent that is %s was not refused", action, verdict.Before)
	}
	if after := o.history(intent); len(after) != len(before) {
		o.t.Errorf("a refused %T left a trace: %q", action, after)
	}
}

func (o *outbox) status(intent int64) string {
	o.t.Helper()
	return one[string](o, `SELECT status FROM outbox.status WHERE intent_id = $1`, intent)
}

func (o *outbox) assertStatus(intent int64, want string) {
	o.t.Helper()
	if got := o.status(intent); got != want {
		o.t.Errorf("intent %d is %s, want %s", intent, got, want)
	}
}

// history tells each entry as "number who outcome status".
func (o *outbox) history(intent int64) []string {
	o.t.Helper()
	return all[string](o, `SELECT attempt || ' ' || CASE WHEN worker LIKE 'operator:%' THEN worker ELSE 'worker' END || ' ' || outcome || ' ' || status
		FROM outbox.attempt WHERE intent_id = $1 ORDER BY attempt`, intent)
}

func (o *outbox) openIncidents(intent int64) int {
	o.t.Helper()
	return one[int](o, `SELECT count(*) FROM outbox.incident WHERE intent_id = $1 AND kind = 'outcome_unknown' AND acknowledged_at IS NULL AND resolved_at IS NULL`, intent)
}
