package compensations_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// patience limits a wait for a lock, where a test must not wait for one.
const patience = drainertest.Patience

// tools are the tools of the provider "shop".
var tools = map[string]dispatch.Policy{
	"order":    keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "{order: .response.id}"}),
	"hold":     keyed(dispatch.Reversal{Tool: "shop/release", Window: time.Hour}),
	"ship":     keyed(dispatch.Reversal{}),
	"transfer": asked(dispatch.Reversal{Tool: "shop/return"}),
	"wire":     once(dispatch.Reversal{Tool: "shop/release"}),
	"parcel":   keyed(dispatch.Reversal{Tool: "shop/recall"}),
	"reserve":  findable(keyed(dispatch.Reversal{Tool: "shop/release"})),
	"cancel":   keyed(dispatch.Reversal{None: true}),
	"release":  keyed(dispatch.Reversal{None: true}),
	"recall":   once(dispatch.Reversal{None: true}),
	"return":   asked(dispatch.Reversal{None: true}),
	"find":     {Class: dispatch.ReadOnly, MaxAttempts: 3},
}

func keyed(reversal dispatch.Reversal) dispatch.Policy {
	return dispatch.Policy{
		Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, MaxAttempts: 50, Timeout: time.Second,
		Backoff: dispatch.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond}, BeginsSaga: true, Reversal: reversal,
	}
}

func once(reversal dispatch.Reversal) dispatch.Policy {
	policy := keyed(reversal)
	policy.Class = dispatch.NonIdempotent
	return policy
}

func asked(reversal dispatch.Reversal) dispatch.Policy { return findable(once(reversal)) }

// findable makes the effect of a policy known to a lookup at once.
func findable(policy dispatch.Policy) dispatch.Policy {
	policy.Timeout = 0
	policy.Lookup = &dispatch.Lookup{Operation: "find"}
	return policy
}

// world is an outbox with its sagas and a provider.
type world struct {
	t     *testing.T
	url   string
	db    *pgxpool.Pool
	store *postgres.Store // of all workers: a new one for each would open connections each time
	saga  *compensations.Saga
	shop  *provider
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, url: drainertest.Database(t), shop: &provider{answers: map[string]dispatch.Result{}}}
	w.db = drainertest.Connect(t, w.url)
	drainertest.Tenant(t, w.db)
	var err error
	if w.store, err = postgres.Open(t.Context(), pgpool.At(w.url)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	w.saga = newSaga(t, w.db)
	return w
}

func newSaga(t *testing.T, pool *pgxpool.Pool) *compensations.Saga {
	t.Helper()
	saga, err := compensations.New(pool, compensations.Policies{"shop": tools}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return saga
}

// enqueue commits a step of run-1, and returns its intent.
func (w *world) enqueue(step, tool string) int64 {
	w.t.Helper()
	return stored[int64](w, `SELECT intent_id FROM outbox.enqueue('run-1', $1, $2, 'order-1', '{"amount": 1}')`, step, tool)
}

// completed commits steps of the tool, drains them and returns their intents.
func (w *world) completed(tool string, steps int) (intents []int64) {
	w.t.Helper()
	for n := range steps {
		intents = append(intents, w.enqueue(fmt.Sprintf("step-%d", n+1), tool))
		w.drain() // so that each completes after the one before
	}
	return intents
}

// rejected commits a step that is rejected for good, so that the saga of its run begins.
func (w *world) rejected() int64 {
	w.t.Helper()
	w.shop.answer("rejected", dispatch.Rejected)
	intent := w.enqueue("rejected", "shop/order")
	w.drain()
	w.assertSaga("begun")
	return intent
}

// drain runs a worker until nothing is due.
func (w *world) drain() {
	w.t.Helper()
	shop := dispatch.Provider{Name: "shop", Adapter: w.shop, Concurrency: 8, Timeout: patience, Tools: tools}
	settings := drainer.Settings{Once: true, Worker: drainer.WorkerSettings{Heartbeat: time.Second, Lease: patience, ShutdownTimeout: patience}}
	daemon := drainer.New(w.store, []dispatch.Provider{shop}, settings, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := daemon.Run(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	drainertest.AssertInvariant(w.t, w.db)
}

func (w *world) advance() {
	w.t.Helper()
	if err := w.saga.Advance(w.t.Context(), "run-1"); err != nil {
		w.t.Fatal(err)
	}
	drainertest.AssertInvariant(w.t, w.db)
}

// goBack advances the saga and drains the undos until the saga has ended.
func (w *world) goBack() {
	w.t.Helper()
	for range 20 {
		w.advance()
		if stored[string](w, `SELECT state FROM outbox.saga`) != "begun" {
			return
		}
		w.drain()
	}
	w.t.Fatalf("the saga does not end; the steps are %v", w.statuses())
}

// claim claims the due rows for a new worker that does nothing else by itself.
func (w *world) claim(store *postgres.Store) (worker string, rows []*drainer.Row) {
	w.t.Helper()
	worker = uuid.NewString()
	if err := store.Join(w.t.Context(), worker, []string{"shop"}, nil); err != nil {
		w.t.Fatal(err)
	}
	reply := w.batch(store, worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "shop", Server: "shop", Limit: 100}}})
	return worker, reply.Claimed[0].Rows
}

func (w *world) batch(store *postgres.Store, worker string, batch drainer.Batch) drainer.BatchReply {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	reply, err := store.Commit(ctx, worker, batch)
	if err != nil {
		w.t.Fatal(err)
	}
	drainertest.AssertInvariant(w.t, w.db)
	return reply
}

// settling returns a batch that settles the rows of one claim, as a lane would.
func settling(rows []*drainer.Row, outcomes ...dispatch.Outcome) (batch drainer.Batch) {
	for i, row := range rows {
		batch.Settle = append(batch.Settle, ended(row, dispatch.Result{Outcome: outcomes[i]}))
	}
	batch.Finish = []int64{rows[0].ClaimID}
	return batch
}

func ended(row *drainer.Row, result dispatch.Result) drainer.Settlement {
	policy := tools[row.Tuple.Operation()]
	decision := policy.Decide(dispatch.History{Tries: row.Tries, MaybeApplied: row.MaybeApplied, Lookup: row.Lookup}, result, 0)
	return drainer.Settlement{
		Row: row, StartedAt: time.Now(), FinishedAt: time.Now(), Result: result, Decision: decision,
		Acts:       policy.Class != dispatch.ReadOnly,
		BeginsSaga: policy.BeginsSaga && row.Undoes == nil && decision.Status == dispatch.StatusFailed,
	}
}

var ann = operator.Signature{Operator: "ann", Reason: "asked the shop"}

func (w *world) console() *operator.Console {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	console := operator.Open(conn)
	w.t.Cleanup(func() { console.Close(context.Background()) })
	return console
}

// retry retries the saga for an operator who undid some steps by hand. With newKeys, failed undos may get new
// keys.
func (w *world) retry(byHand []int64, newKeys bool) {
	w.t.Helper()
	if err := w.console().RetrySaga(w.t.Context(), "run-1", byHand, newKeys, ann); err != nil {
		w.t.Fatal(err)
	}
}

// resolve resolves the intent for an operator who found out its status.
func (w *world) resolve(as dispatch.Status, intent int64) {
	w.t.Helper()
	verdicts, err := w.console().Change(w.t.Context(), operator.Resolve{As: as}, ann, []int64{intent})
	if err != nil || len(verdicts) != 1 || verdicts[0].Refused != "" {
		w.t.Fatalf("%+v, %v", verdicts, err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	drainertest.Exec(w.t, w.db, sql, args...)
}

// stored returns one column of one row.
func stored[V any](w *world, sql string, args ...any) V {
	w.t.Helper()
	return drainertest.Value[V](w.t, w.db, sql, args...)
}

func all[V any](w *world, sql string, args ...any) []V {
	w.t.Helper()
	return drainertest.Column[V](w.t, w.db, sql, args...)
}

// await waits until a count is no longer zero.
func (w *world) await(what, count string, args ...any) {
	w.t.Helper()
	drainertest.Eventually(w.t, what, func() bool { return stored[int](w, count, args...) > 0 })
}

// statuses returns the statuses of the forward steps, in the order of their ids.
func (w *world) statuses() []string {
	w.t.Helper()
	return all[string](w, `SELECT s.status FROM outbox.status s JOIN outbox.intent i ON i.id = s.intent_id WHERE i.compensates IS NULL ORDER BY i.id`)
}

// undoOf returns the intent that undoes the step.
func (w *world) undoOf(intent int64) int64 {
	w.t.Helper()
	return stored[int64](w, `SELECT id FROM outbox.intent WHERE compensates = $1`, intent)
}

// undoKey returns the key under which a step of run-1 is undone.
func (w *world) undoKey(intent int64, tool string) string {
	forward := stored[string](w, `SELECT idempotency_key FROM outbox.status WHERE intent_id = $1`, intent)
	return dispatch.Tuple{AgentRunID: "run-1", StepID: "compensate:" + forward, ToolName: tool, BusinessScope: "order-1"}.IdempotencyKey()
}

func sqlState(err error) string {
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) {
		return ""
	}
	return refusal.Code
}

// provider is an adapter that records every call. It answers as the test sets, and otherwise with success.
type provider struct {
	mu      sync.Mutex
	calls   []dispatch.Request
	answers map[string]dispatch.Result // by step and by tool
}

func (p *provider) Dispatch(_ context.Context, request dispatch.Request) dispatch.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, request)
	for _, name := range []string{request.Tuple.StepID, request.Tuple.ToolName} {
		if answer, said := p.answers[name]; said {
			return answer
		}
	}
	id := fmt.Sprintf("eff_%d", len(p.calls))
	return dispatch.Result{Outcome: dispatch.Completed, ProviderRef: id, Response: []byte(`{"id": "` + id + `"}`)}
}

// answer sets the reply for a step, or for all steps of a tool, from now on.
func (p *provider) answer(name string, outcome dispatch.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[name] = dispatch.Result{Outcome: outcome, ErrorClass: "test_" + string(outcome)}
}

// called returns the keys of the calls of a tool, in order.
func (p *provider) called(tool string) (keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, call := range p.calls {
		if call.Tuple.ToolName == tool {
			keys = append(keys, call.IdempotencyKey)
		}
	}
	return keys
}

// wasCalled reports whether the step was sent or looked up.
func (p *provider) wasCalled(step string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.calls, func(call dispatch.Request) bool { return call.Tuple.StepID == step })
}
