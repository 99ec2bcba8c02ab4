package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
)

// fate is the end of a transaction whose daemon was killed.
type fate string

const (
	undecided  fate = ""
	committed  fate = "committed"   // the database had received the whole transaction
	rolledBack fate = "rolled back" // the connection broke before the database received the commit
)

// sagaMoment is the moment of a rollback at which the daemon is killed: at a statement, before its commit, or while
// the provider handles the newest step's undo.
type sagaMoment struct {
	name  string
	event string // of the trigger that holds the statement
	when  string
	fate  fate
	fault dispatchtest.Fault
}

var sagaMoments = []sagaMoment{
	{name: "begin", event: "INSERT ON outbox.saga", fate: committed},
	{name: "begin, undone", event: "INSERT ON outbox.saga", fate: rolledBack},
	{name: "undo enqueued", event: "INSERT ON outbox.intent", when: "NEW.compensates IS NOT NULL"},
	{name: "undo claimed", event: "INSERT ON outbox.claim", when: "NEW.provider = 'refunds'", fate: committed},
	{name: "undo claimed, undone", event: "INSERT ON outbox.claim", when: "NEW.provider = 'refunds'", fate: rolledBack},
	{name: "undo sent", fault: dispatchtest.HangBefore},
	{name: "undo done", fault: dispatchtest.HangAfter},
	{name: "undo settled", event: "INSERT ON outbox.attempt", when: "NEW.status = 'compensated'", fate: committed},
	{name: "undo settled, undone", event: "INSERT ON outbox.attempt", when: "NEW.status = 'compensated'", fate: rolledBack},
	{name: "finish", event: "UPDATE ON outbox.saga", when: "NEW.state = 'compensated'"},
}

// River would take an hour to rescue a job that it believes to be running. The test waits far less.
func TestAKilledDaemonsSagaIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, moment := range sagaMoments {
		t.Run(moment.name, func(t *testing.T) {
			t.Parallel()
			w := newSagaRig(t, moment.fault)
			stands := w.standAt(moment)
			victim := w.start()
			w.enqueueRun()
			if moment.event == "" {
				w.awaitUndoRequests(1)
			} else {
				stands.await()
			}
			victim.Kill()
			killed := time.Now()
			w.Provider.Release()
			stands.end(moment.fate)

			next := w.start()
			w.awaitSagaEnd()
			t.Logf("the saga ended %s after the kill", time.Since(killed).Round(time.Millisecond))
			w.assertWentBack()
			next.Terminate()
		})
	}
}

// Two daemons advance the saga. The test also advances it again and again, in two goroutines.
func TestASagaThatManyMoveAtOnceUndoesOnce(t *testing.T) {
	t.Parallel()
	w := newSagaRig(t, dispatchtest.None)
	keyed := dispatch.Policy{Class: dispatch.KeyIdempotent}
	order, cancel := keyed, keyed
	order.Reversal = dispatch.Reversal{Tool: "refunds/cancel", Payload: "{order: .provider_ref}"}
	cancel.Reversal.None = true
	policies := compensations.Policies{"shop": {"order": order}, "refunds": {"cancel": cancel}}
	daemons := []*program.Daemon{w.start(), w.start()}
	w.enqueueRun()
	for undone := range completedSteps {
		w.awaitUndoRequests(undone)
		var others sync.WaitGroup
		for range 2 {
			saga, err := compensations.New(w.DB, policies, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			others.Go(func() {
				for range 10 {
					if err := saga.Advance(t.Context(), sagaRun); err != nil {
						t.Error(err)
					}
				}
			})
		}
		others.Wait()
		fault.Injected(t, 58, 20)
	}
	w.awaitSagaEnd()
	w.assertWentBack()
	for _, daemon := range daemons {
		daemon.Terminate()
	}
}

const (
	sagaRun        = "run-1"
	completedSteps = 4 // and a fifth that is rejected
)

const sagaConfig = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {heartbeat: 200ms, lease: 1s}
providers:
  shop:
    adapter: http
    concurrency: 1
    timeout: 1s
    http: {base_url: %[1]s}
    tools:
      order:
        http: {method: POST, path: /v1/orders, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        lookup: {tool: find_order, margin: 100ms} # a worker that dies takes a refusal with it
        compensate_with: {tool: refunds/cancel, payload: "{order: .provider_ref}"}
      find_order:
        http: {method: GET, path: "/effects/{.key}", response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}
        idempotency: {class: read_only}
  refunds:
    adapter: http
    http: {base_url: %[1]s}
    tools:
      cancel:
        http: {method: POST, path: /v1/cancellations}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 20, base: 10ms, cap: 100ms}
        compensation: none
`

// sagaRig has a run of five orders, whose fifth is refused.
type sagaRig struct {
	*harness.Rig
	shell  *program.Program
	config string
	ledger string // the file of the provider's ledger
	orders []int64
}

// newSagaRig injects the fault into the first request that cancels the newest order.
func newSagaRig(t *testing.T, fault dispatchtest.Fault) *sagaRig {
	t.Helper()
	w := &sagaRig{Rig: harness.Without(t)}
	w.shell = program.New(t, w.URL)
	w.ledger = filepath.Join(t.TempDir(), "ledger")
	for n := range completedSteps + 1 {
		w.orders = append(w.orders, int64(n+1)) // a new database counts intents from 1
	}
	ledger, err := dispatchtest.OpenLedger(w.ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ledger.Close() })
	w.Provider = &dispatchtest.SimulatedProvider{Ledger: ledger, Plan: dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		w.orderKey(completedSteps):    {dispatchtest.Taken},
		w.undoKey(completedSteps - 1): {fault},
	})}
	w.config = program.WriteConfig(t, fmt.Sprintf(sagaConfig, dispatchtest.Serve(t, w.Provider)))
	t.Cleanup(w.Provider.Release)
	return w
}

func (w *sagaRig) start() *program.Daemon {
	w.T.Helper()
	return w.shell.Start(w.config)
}

// enqueueRun commits the fifth order when the first four are completed. Otherwise a worker that loses its lease could
// take up the orders in another order.
func (w *sagaRig) enqueueRun() {
	w.T.Helper()
	for n := range w.orders {
		if n == completedSteps {
			drainertest.Eventually(w.T, "four orders are completed", func() bool {
				return harness.Stored[int](w.Rig, `SELECT count(*) FROM outbox.status WHERE status = 'completed'`) == completedSteps
			})
		}
		id := harness.Stored[int64](w.Rig, `SELECT intent_id FROM outbox.enqueue($1, $2, 'shop/order', 'order-1', '{}')`, sagaRun, step(n))
		if id != w.orders[n] {
			w.T.Fatalf("order %d is intent %d, want %d", n, id, w.orders[n])
		}
	}
}

func step(n int) string { return fmt.Sprintf("step-%d", n+1) }

func (w *sagaRig) orderKey(n int) string {
	return dispatch.Tuple{AgentRunID: sagaRun, StepID: step(n), ToolName: "shop/order", BusinessScope: "order-1"}.IdempotencyKey()
}

func (w *sagaRig) undoKey(n int) string {
	return dispatch.Tuple{
		AgentRunID: sagaRun, StepID: "compensate:" + w.orderKey(n), ToolName: "refunds/cancel", BusinessScope: "order-1",
	}.IdempotencyKey()
}

// awaitUndoRequests returns once the provider has received requests for that many undos.
func (w *sagaRig) awaitUndoRequests(want int) {
	w.T.Helper()
	w.AwaitLedger(func(audit dispatchtest.Audit) bool {
		asked := 0
		for n := range completedSteps {
			if audit.Requests[w.undoKey(n)] > 0 {
				asked++
			}
		}
		return asked >= want
	})
}

func (w *sagaRig) awaitSagaEnd() {
	w.T.Helper()
	drainertest.Eventually(w.T, "the saga ends", func() bool {
		drainertest.AssertInvariant(w.T, w.DB)
		return harness.Stored[int](w.Rig, `SELECT count(*) FROM outbox.saga WHERE state <> 'begun'`) == 1
	})
}

// assertWentBack compares the ledger with the run. There are four orders and nothing else. Each is undone once under
// its own key, and the order that completed last is undone first.
func (w *sagaRig) assertWentBack() {
	w.T.Helper()
	var orders, undos []string
	for n := range completedSteps {
		orders = append(orders, w.orderKey(n))
	}
	// All orders may have been in the queue at once, so the attempts tell which one completed last.
	for _, id := range harness.Stored[[]int64](w.Rig, `SELECT array_agg(intent_id ORDER BY finished_at DESC, intent_id DESC) FROM outbox.attempt WHERE outcome IN ('completed', 'resolved')
		AND intent_id IN (SELECT id FROM outbox.intent WHERE compensates IS NULL)`) {
		undos = append(undos, w.undoKey(slices.Index(w.orders, id)))
	}
	made := w.effects("/v1/orders")
	slices.Sort(orders)
	slices.Sort(made)
	if !slices.Equal(made, orders) {
		w.T.Errorf("the orders made are %v, want %v", made, orders)
	}
	if cancelled := w.effects("/v1/cancellations"); !slices.Equal(cancelled, undos) {
		w.T.Errorf("the orders cancelled are %v, want %v", cancelled, undos)
	}
	statuses := harness.Stored[[]string](w.Rig, `SELECT array_agg(status ORDER BY intent_id) FROM outbox.status WHERE step_id LIKE 'step-%'`)
	if want := []string{"compensated", "compensated", "compensated", "compensated", "failed"}; !slices.Equal(statuses, want) {
		w.T.Errorf("the steps are %v, want %v", statuses, want)
	}
	if state := harness.Stored[string](w.Rig, `SELECT state FROM outbox.saga`); state != "compensated" {
		w.T.Errorf("the saga is %s, want compensated", state)
	}
	if incidents := harness.Stored[int](w.Rig, `SELECT count(*) FROM outbox.incident`); incidents != 0 {
		w.T.Errorf("%d incidents, want none", incidents)
	}
	w.AssertNoClaims()
}

// effects returns the keys of the effects at the path, in their order.
func (w *sagaRig) effects(path string) (keys []string) {
	w.T.Helper()
	file, err := os.Open(w.ledger)
	if err != nil {
		w.T.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var entry dispatchtest.Entry
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			w.T.Fatal(err)
		}
		if entry.Kind == "effect" && entry.Path == path {
			keys = append(keys, entry.Key)
		}
	}
	return keys
}

// standstill holds a statement before its commit.
type standstill struct {
	w      *sagaRig
	holder *pgx.Conn // nil if no statement is held
}

const standstillLock = 4711

// standAt holds the moment's statement in every daemon that reaches it, until end is called.
func (w *sagaRig) standAt(moment sagaMoment) *standstill {
	w.T.Helper()
	if moment.event == "" {
		return &standstill{w: w}
	}
	condition := ""
	if moment.when != "" {
		condition = "WHEN (" + moment.when + ")"
	}
	w.Exec(fmt.Sprintf(`CREATE FUNCTION public.stand() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  PERFORM pg_advisory_xact_lock_shared(%d);
		  RETURN NEW;
		END $$`, standstillLock))
	w.Exec(fmt.Sprintf(`CREATE TRIGGER stand BEFORE %s FOR EACH ROW %s EXECUTE FUNCTION public.stand()`, moment.event, condition))
	holder, err := pgx.Connect(context.Background(), w.URL)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { holder.Close(context.Background()) })
	if _, err := holder.Exec(context.Background(), `SELECT pg_advisory_lock($1)`, standstillLock); err != nil {
		w.T.Fatal(err)
	}
	return &standstill{w: w, holder: holder}
}

// await returns once a statement is held.
func (s *standstill) await() {
	s.w.T.Helper()
	drainertest.Eventually(s.w.T, "the statement stands", func() bool { return len(s.standing()) > 0 })
}

// standing returns the ids of the database's processes whose statement is held.
func (s *standstill) standing() []int {
	s.w.T.Helper()
	return harness.Stored[[]int](s.w.Rig, `
		SELECT coalesce(array_agg(pid), '{}') FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// end releases the statement. With rolledBack it first ends the connections. Otherwise the transaction commits if the
// database has received the commit.
func (s *standstill) end(with fate) {
	s.w.T.Helper()
	if s.holder == nil {
		return
	}
	if with == rolledBack {
		for _, pid := range s.standing() {
			s.w.Exec(`SELECT pg_terminate_backend($1)`, pid)
		}
		drainertest.Eventually(s.w.T, "the transaction is rolled back", func() bool { return len(s.standing()) == 0 })
	}
	if err := s.holder.Close(context.Background()); err != nil {
		s.w.T.Fatal(err)
	}
}
