package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/integration/program"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

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

// sagaWorld has a run of five orders, whose fifth is refused.
type sagaWorld struct {
	*world
	shell  *program.Program
	config string
	ledger string // the provider's, a file
	orders []int64
}

// newSagaWorld fails the first request for the newest order's cancellation.
func newSagaWorld(t *testing.T, fault dispatchtest.Fault) *sagaWorld {
	t.Helper()
	url := drainertest.Database(t)
	w := &sagaWorld{
		world:  &world{t: t, url: url, db: drainertest.Connect(t, url)},
		shell:  program.New(t, url),
		ledger: filepath.Join(t.TempDir(), "ledger"),
	}
	for n := range completedSteps + 1 {
		w.orders = append(w.orders, int64(n+1)) // a new database numbers them so
	}
	ledger, err := dispatchtest.OpenLedger(w.ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ledger.Close() })
	w.provider = &dispatchtest.SimulatedProvider{Ledger: ledger, Plan: dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		w.orderKey(completedSteps):    {dispatchtest.Taken},
		w.undoKey(completedSteps - 1): {fault},
	})}
	w.config = program.WriteConfig(t, fmt.Sprintf(sagaConfig, dispatchtest.Serve(t, w.provider)))
	t.Cleanup(w.provider.Release)
	return w
}

func (w *sagaWorld) start() *program.Daemon {
	w.t.Helper()
	return w.shell.Start(w.config)
}

// enqueueRun commits all five orders at once; the first four have happened
// before the fifth is claimed.
func (w *sagaWorld) enqueueRun() {
	w.t.Helper()
	for n := range w.orders {
		id := stored[int64](w.world, `SELECT intent_id FROM outbox.enqueue($1, $2, 'shop/order', 'order-1', '{}')`, sagaRun, step(n))
		if id != w.orders[n] {
			w.t.Fatalf("order %d is intent %d, want %d", n, id, w.orders[n])
		}
	}
}

func step(n int) string { return fmt.Sprintf("step-%d", n+1) }

func (w *sagaWorld) orderKey(n int) string {
	return dispatch.Tuple{AgentRunID: sagaRun, StepID: step(n), ToolName: "shop/order", BusinessScope: "order-1"}.IdempotencyKey()
}

func (w *sagaWorld) undoKey(n int) string {
	return dispatch.Tuple{
		AgentRunID: sagaRun, StepID: fmt.Sprintf("compensate:%d", w.orders[n]), ToolName: "refunds/cancel", BusinessScope: "order-1",
	}.IdempotencyKey()
}

// awaitUndoRequests returns once that many undos were asked for.
func (w *sagaWorld) awaitUndoRequests(want int) {
	w.t.Helper()
	w.awaitLedger(func(audit dispatchtest.Audit) bool {
		asked := 0
		for n := range completedSteps {
			if audit.Requests[w.undoKey(n)] > 0 {
				asked++
			}
		}
		return asked >= want
	})
}

func (w *sagaWorld) awaitSagaEnd() {
	w.t.Helper()
	drainertest.Eventually(w.t, "the saga ends", func() bool {
		drainertest.AssertInvariant(w.t, w.db)
		return stored[int](w.world, `SELECT count(*) FROM outbox.saga WHERE state <> 'begun'`) == 1
	})
}

// assertWentBack compares the ledger with the run: four orders, each undone
// once under a key of its own, the newest first, and nothing else.
func (w *sagaWorld) assertWentBack() {
	w.t.Helper()
	var orders, undos []string
	for n := range completedSteps {
		orders = append(orders, w.orderKey(n))
		undos = append(undos, w.undoKey(completedSteps-1-n))
	}
	made := w.effects("/v1/orders")
	slices.Sort(orders)
	slices.Sort(made)
	if !slices.Equal(made, orders) {
		w.t.Errorf("the orders made are %v, want %v", made, orders)
	}
	if cancelled := w.effects("/v1/cancellations"); !slices.Equal(cancelled, undos) {
		w.t.Errorf("the orders cancelled are %v, want %v", cancelled, undos)
	}
	statuses := stored[[]string](w.world, `SELECT array_agg(status ORDER BY intent_id) FROM outbox.status WHERE step_id LIKE 'step-%'`)
	if want := []string{"compensated", "compensated", "compensated", "compensated", "failed"}; !slices.Equal(statuses, want) {
		w.t.Errorf("the steps are %v, want %v", statuses, want)
	}
	if state := stored[string](w.world, `SELECT state FROM outbox.saga`); state != "compensated" {
		w.t.Errorf("the saga is %s, want compensated", state)
	}
	if incidents := stored[int](w.world, `SELECT count(*) FROM outbox.incident`); incidents != 0 {
		w.t.Errorf("%d incidents, want none", incidents)
	}
	w.assertNoClaims()
}

// effects are the keys of the effects at the path, in their order.
func (w *sagaWorld) effects(path string) (keys []string) {
	w.t.Helper()
	file, err := os.Open(w.ledger)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var entry dispatchtest.Entry
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			w.t.Fatal(err)
		}
		if entry.Kind == "effect" && entry.Path == path {
			keys = append(keys, entry.Key)
		}
	}
	return keys
}

// standstill holds a statement before its commit.
type standstill struct {
	w      *sagaWorld
	holder *pgx.Conn // nil: nothing stands
}

const standstillLock = 4711

// standAt makes the moment's statement stand, for whoever comes to it, until
// the standstill ends.
func (w *sagaWorld) standAt(moment sagaMoment) *standstill {
	w.t.Helper()
	if moment.event == "" {
		return &standstill{w: w}
	}
	condition := ""
	if moment.when != "" {
		condition = "WHEN (" + moment.when + ")"
	}
	w.exec(fmt.Sprintf(`CREATE FUNCTION public.stand() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  PERFORM pg_advisory_xact_lock_shared(%d);
		  RETURN NEW;
		END $$`, standstillLock))
	w.exec(fmt.Sprintf(`CREATE TRIGGER stand BEFORE %s FOR EACH ROW %s EXECUTE FUNCTION public.stand()`, moment.event, condition))
	holder, err := pgx.Connect(context.Background(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { holder.Close(context.Background()) })
	if _, err := holder.Exec(context.Background(), `SELECT pg_advisory_lock($1)`, standstillLock); err != nil {
		w.t.Fatal(err)
	}
	return &standstill{w: w, holder: holder}
}

// await returns once the statement stands.
func (s *standstill) await() {
	s.w.t.Helper()
	drainertest.Eventually(s.w.t, "the statement stands", func() bool { return len(s.standing()) > 0 })
}

// standing lists the database's processes that stand.
func (s *standstill) standing() []int {
	s.w.t.Helper()
	return stored[[]int](s.w.world, `
		SELECT coalesce(array_agg(pid), '{}') FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// end lets the statement go on: to its commit, if the database has been told
// of one, or nowhere.
func (s *standstill) end(with fate) {
	s.w.t.Helper()
	if s.holder == nil {
		return
	}
	if with == rolledBack {
		for _, pid := range s.standing() {
			s.w.exec(`SELECT pg_terminate_backend($1)`, pid)
		}
		drainertest.Eventually(s.w.t, "the transaction is rolled back", func() bool { return len(s.standing()) == 0 })
	}
	if err := s.holder.Close(context.Background()); err != nil {
		s.w.t.Fatal(err)
	}
}
