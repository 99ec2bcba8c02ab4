package operator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

var onCall = operator.Signature{Operator: "on-call", Reason: "because"}

// outbox is a real outbox, with the engine's own store to move its rows.
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
	store, err := postgres.Open(t.Context(), pgpool.At(url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	db := drainertest.Connect(t, url)
	o := &outbox{t: t, url: url, db: db, store: store}
	drainertest.Tenant(t, db)
	o.worker = o.join()
	return o
}

func (o *outbox) join() string {
	o.t.Helper()
	worker := uuid.NewString()
	if err := o.store.Join(o.t.Context(), worker, []string{"sim", "spare"}, nil); err != nil {
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

// vacuum returns once every page of intents and attempts is known to be visible. An index-only scan of such a page
// does not count as reading rows.
func (o *outbox) vacuum() {
	o.t.Helper()
	drainertest.Eventually(o.t, "all pages are visible", func() bool {
		o.exec(`VACUUM (FREEZE, ANALYZE) outbox.intent, outbox.attempt`)
		return one[bool](o, `SELECT bool_and(relallvisible = relpages) FROM pg_class
			WHERE oid IN ('outbox.intent'::regclass, 'outbox.attempt'::regclass)`)
	})
}

// all returns one column of all rows.
func all[V any](o *outbox, sql string, args ...any) []V {
	o.t.Helper()
	return drainertest.Column[V](o.t, o.db, sql, args...)
}

// one returns one column of one row.
func one[V any](o *outbox, sql string, args ...any) V {
	o.t.Helper()
	return drainertest.Value[V](o.t, o.db, sql, args...)
}

func (o *outbox) claim() []*drainer.Row {
	o.t.Helper()
	reply, err := o.store.Commit(o.t.Context(), o.worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1000}}})
	if err != nil {
		o.t.Fatal(err)
	}
	return reply.Claimed[0].Rows
}

// settle settles claimed rows as an engine with that policy would.
func (o *outbox) settle(policy dispatch.Policy, outcome dispatch.Outcome, rows ...*drainer.Row) {
	o.t.Helper()
	if _, err := o.store.Commit(o.t.Context(), o.worker, settling(policy, outcome, rows...)); err != nil {
		o.t.Fatal(err)
	}
}

func settling(policy dispatch.Policy, outcome dispatch.Outcome, rows ...*drainer.Row) drainer.Batch {
	var batch drainer.Batch
	for _, row := range rows {
		result := dispatch.Result{Outcome: outcome}
		history := dispatch.History{Tries: row.Tries, SinceFirstSend: row.SinceFirstSend, MaybeApplied: row.MaybeApplied, Lookup: row.Lookup}
		batch.Settle = append(batch.Settle, drainer.Settlement{
			Row: row, StartedAt: time.Now(), FinishedAt: time.Now(), Result: result, Decision: policy.Decide(history, result, 0),
		})
		batch.Finish = append(batch.Finish, row.ClaimID)
	}
	return batch
}

// end claims the due rows and settles all of them with the outcome.
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

// history returns each entry as "number who outcome status".
func (o *outbox) history(intent int64) []string {
	o.t.Helper()
	return all[string](o, `SELECT attempt || ' ' || coalesce(operator, 'worker') || ' ' || outcome || ' ' || status
		FROM outbox.attempt WHERE intent_id = $1 ORDER BY attempt`, intent)
}

func (o *outbox) openIncidents(intent int64) int {
	o.t.Helper()
	return one[int](o, `SELECT count(*) FROM outbox.incident WHERE intent_id = $1 AND kind = 'outcome_unknown' AND acknowledged_at IS NULL AND resolved_at IS NULL`, intent)
}

func (o *outbox) key(intent int64) string {
	o.t.Helper()
	return one[string](o, `SELECT idempotency_key FROM outbox.status WHERE intent_id = $1`, intent)
}

func TestALoginThatIsOnlyAMemberOfTheOperatorsRoleMayDoAllOfIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(drainertest.Login(t, o.url, "outbox_operator"))
	intents := o.enqueue("run", 3)
	mustDo := func(action operator.Action, intents ...int64) {
		t.Helper()
		verdicts, err := console.Change(t.Context(), action, onCall, intents)
		if err != nil || accepted(verdicts) != int64(len(intents)) {
			t.Fatalf("%T: %+v, %v", action, verdicts, err)
		}
	}
	mustDo(operator.Cancel{}, intents[0])
	o.end(once, dispatch.Ambiguous)
	mustDo(operator.Resolve{As: dispatch.StatusCompleted}, intents[1])
	mustDo(operator.Retry{MayDuplicate: true}, intents[0], intents[2])
	if _, _, err := console.Select(t.Context(), operator.Selection{Statuses: []string{"pending"}, Limit: 1}); err != nil {
		t.Error(err)
	}
	if _, err := console.List(t.Context(), operator.Filter{Dead: true, Limit: 1}); err != nil {
		t.Error(err)
	}
}

func TestALoginOfTheOperatorsRoleMayStopThings(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(drainertest.Login(t, o.url, "outbox_operator"))
	o.enqueue("run", 3)
	if _, err := console.Pause(t.Context(), "sim", onCall); err != nil {
		t.Error(err)
	}
	if _, err := console.Providers(t.Context()); err != nil {
		t.Error(err)
	}
	if closed, err := console.CancelRun(t.Context(), "run", false, onCall); err != nil || closed.Cancelled != 3 {
		t.Errorf("%+v, %v", closed, err)
	}
}

func TestALoginOfTheOperatorsRoleMayLetASagaGoOn(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(drainertest.Login(t, o.url, "outbox_operator"))
	steps, _ := failedSaga(o, "failed")
	if _, err := console.Overview(t.Context()); err != nil {
		t.Error(err)
	}
	if run, err := console.RunOf(t.Context(), steps[0]); err != nil || console.RetrySaga(t.Context(), run, steps[:1], false, onCall) != nil {
		t.Errorf("the saga of the run %q does not go on, %v", run, err)
	}
}

// An attacker with the daemon's login must not be able to forge an operator's decisions.
func TestTheDaemonsLoginMayReadAllAndDecideNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(drainertest.Login(t, o.url, "outbox_drainer"))
	steps, _ := failedSaga(o, "failed")
	intent := o.enqueue("run", 1)[0]
	if _, err := console.List(t.Context(), operator.Filter{Limit: 10}); err != nil {
		t.Error(err)
	}
	if _, err := console.Overview(t.Context()); err != nil {
		t.Error(err)
	}
	for name, decide := range map[string]func() error{
		"cancel": func() error {
			_, err := console.Change(t.Context(), operator.Cancel{}, onCall, []int64{intent})
			return err
		},
		"pause":  func() error { _, err := console.Pause(t.Context(), "sim", onCall); return err },
		"close":  func() error { _, err := console.CancelRun(t.Context(), "run", false, onCall); return err },
		"undo":   func() error { return console.Compensate(t.Context(), "run", onCall) },
		"retry":  func() error { return console.RetrySaga(t.Context(), "doomed", steps[:1], false, onCall) },
		"settle": func() error { return console.ResolveSaga(t.Context(), "doomed", onCall) },
		"ack":    func() error { _, err := console.Acknowledge(t.Context(), onCall, []int64{1}, time.Time{}); return err },
	} {
		var refused *pgconn.PgError
		if err := decide(); !errors.As(err, &refused) || refused.Code != "42501" {
			t.Errorf("%s: %v, want that it is not permitted", name, err)
		}
	}
	o.assertStatus(intent, "pending")
}

// An operator can give any name. The login beside it comes from the database.
func TestHistoryShowsTheLoginBesideTheStatedName(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	url := drainertest.Login(t, o.url, "outbox_operator")
	console := o.consoleAt(url)
	intent := o.enqueue("run", 1)[0]
	if _, err := console.Change(t.Context(), operator.Cancel{}, onCall, []int64{intent}); err != nil {
		t.Fatal(err)
	}
	if err := console.Compensate(t.Context(), "run", onCall); err != nil {
		t.Fatal(err)
	}
	dossier, err := console.Show(t.Context(), intent)
	if err != nil {
		t.Fatal(err)
	}
	if entry := dossier.History[0]; entry.Worker != "operator:on-call" || !strings.Contains(url, "//"+entry.Login+":") {
		t.Errorf("the history says %+v, want the name and the login", entry)
	}
	for _, table := range []string{"saga", "operation"} {
		if login := one[string](o, `SELECT login FROM outbox.`+table); !strings.Contains(url, "//"+login+":") {
			t.Errorf("%s says %s, want the login", table, login)
		}
	}
}

func TestAnAgentsLoginMayDoNoneOfIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.consoleAt(drainertest.Login(t, o.url, "outbox_agent"))
	intent := o.enqueue("run", 1)[0]
	if _, err := console.Change(t.Context(), operator.Cancel{}, onCall, []int64{intent}); err == nil {
		t.Error("an agent cancelled an intent")
	}
	o.assertStatus(intent, "pending")
}
