package integration_test

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/program"
)

const credentialConfig = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {heartbeat: 200ms, lease: 1s}
providers:
  shop:
    adapter: http
    http:
      base_url: %s
      headers: {Authorization: "Bearer ${file:%s}"}
    tools:
      charge:
        http: {method: POST, path: /v1/charges, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensate_with: {tool: shop/refund, payload: "{charge: .provider_ref}"}
      note:
        http: {method: POST, path: "/v1/notes/{.payload.book}"}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
      refund:
        http: {method: POST, path: /v1/refunds}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
`

// guarded is a shop that refuses some requests with a status.
type guarded struct {
	*program.Program
	t        *testing.T
	provider *dispatchtest.SimulatedProvider
	db       *pgxpool.Pool
	config   string
	secret   *volume
	key      atomic.Pointer[string]
	refuses  atomic.Pointer[func(*http.Request) int] // 0 accepts the request
	refused  atomic.Int64
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	database := drainertest.Database(t)
	provider, behind := dispatchtest.NewProvider(t, nil)
	g := &guarded{
		t: t, Program: program.New(t, database, "USER=on-call"), provider: provider, db: drainertest.Connect(t, database), secret: newVolume(t),
	}
	g.changeKey("one")
	g.secret.publish(map[string]string{"key": "one"})
	target, err := url.Parse(behind)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := 0
		if r.Header.Get("Authorization") != "Bearer "+*g.key.Load() {
			status = http.StatusUnauthorized
		} else if refuses := g.refuses.Load(); refuses != nil {
			status = (*refuses)(r)
		}
		if status != 0 {
			g.refused.Add(1)
			w.WriteHeader(status)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	g.config = program.WriteConfig(t, fmt.Sprintf(credentialConfig, baseURL, g.secret.path("key")))
	return g
}

func (g *guarded) changeKey(key string) { g.key.Store(&key) }

func (g *guarded) step(step string, runs int) {
	g.t.Helper()
	drainertest.Exec(g.t, g.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-' || n, $1, 'shop/charge', 'x', '{"amount": 7}' FROM generate_series(1, $2::int) n`, step, runs)
}

func (g *guarded) await(what string, want int, sql string) {
	g.t.Helper()
	drainertest.Eventually(g.t, what, func() bool { return g.count(sql) == want })
}

func (g *guarded) count(sql string) int {
	g.t.Helper()
	return drainertest.Value[int](g.t, g.db, sql)
}

// bringForward makes all rows due. A row that was refused before the gate was shut would wait for a minute.
func (g *guarded) bringForward() {
	g.t.Helper()
	drainertest.Exec(g.t, g.db, `UPDATE outbox.queue SET next_attempt_at = now()`)
}

const (
	completed    = `SELECT count(*)::int FROM outbox.status WHERE status = 'completed'`
	harmed       = `SELECT count(*)::int FROM outbox.status WHERE status IN ('failed', 'unknown', 'cancelled', 'compensation_failed')`
	shopIsShut   = `SELECT count(*)::int FROM outbox.provider WHERE name = 'shop' AND state = 'open' AND reason = 'credentials_refused'`
	refusalsOpen = `SELECT count(*)::int FROM outbox.incident WHERE resolved_at IS NULL AND kind = 'credentials_refused' AND detail = 'shop'`
	triesSpent   = `SELECT coalesce(max(tries), 0)::int FROM outbox.queue`
)

func TestARotatedKeyFailsNoRunAndTheNewOneCompletesThemAll(t *testing.T) {
	t.Parallel()
	const runs = 20
	g := newGuarded(t)
	g.step("first", runs)
	daemon := g.Start(g.config)
	g.await("the old key serves", runs, completed)

	g.changeKey("two")
	g.step("second", runs)
	g.step("third", runs)
	g.Run(0, "compensate", "run-1", "--reason", "the order was cancelled") // its undo meets the refusal, too
	g.await("the provider is shut", 1, shopIsShut)
	g.await("an incident pages", 1, refusalsOpen)
	if g.count(harmed) > 2 || g.count(triesSpent) != 0 { // the two steps of the run that is rolled back
		t.Errorf("%d intents are harmed and %d tries spent", g.count(harmed), g.count(triesSpent))
	}
	if sagas := g.count(`SELECT count(*)::int FROM outbox.saga`); sagas != 1 {
		t.Errorf("%d sagas, want the operator's alone", sagas)
	}

	g.secret.publish(map[string]string{"key": "two"})
	daemon.Signal(syscall.SIGHUP)
	daemon.WaitFor("handing over to a new configuration")
	g.await("the provider takes the new key", 0, `SELECT count(*)::int FROM outbox.provider WHERE name = 'shop' AND state <> 'closed'`)
	g.bringForward()
	g.await("the run is rolled back", 1, `SELECT count(*)::int FROM outbox.saga WHERE state = 'compensated'`)
	g.await("nothing waits", 0, `SELECT count(*)::int FROM outbox.queue`)
	g.await("all others completed", 3*(runs-1), completed+` AND agent_run_id <> 'run-1'`)
	g.await("the incident resolves itself", 0, refusalsOpen)
	daemon.Terminate()
	if failed := g.count(`SELECT count(*)::int FROM outbox.status WHERE status IN ('failed', 'unknown', 'compensation_failed')`); failed != 0 {
		t.Errorf("%d intents failed", failed)
	}
	if audit := g.provider.Ledger.Audit(); audit.DuplicateEffects() != 0 {
		t.Errorf("%d effects happened twice", audit.DuplicateEffects())
	}
	drainertest.AssertInvariant(t, g.db)
}

func TestAnOperationThatIsForbiddenWaitsAndItsNeighbourDoesNot(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	forbidden := func(r *http.Request) int {
		if r.URL.Path == "/v1/charges" {
			return http.StatusForbidden
		}
		return 0
	}
	g.refuses.Store(&forbidden)
	g.step("first", 5)
	daemon := g.Start(g.config)
	g.await("the operation is shut", 1, `SELECT count(*)::int FROM outbox.tool WHERE name = 'shop/charge' AND state = 'open' AND reason = 'forbidden'`)
	drainertest.Exec(t, g.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		VALUES ('other', 's', 'shop/note', 'x', '{"book": "a"}')`)
	g.await("its neighbour is served", 1, completed)
	if g.count(harmed) != 0 || g.count(triesSpent) != 0 {
		t.Errorf("%d intents are harmed and %d tries spent", g.count(harmed), g.count(triesSpent))
	}
	g.await("an incident pages", 1, `SELECT count(*)::int FROM outbox.incident WHERE resolved_at IS NULL AND kind = 'forbidden' AND detail = 'shop/charge'`)

	g.refuses.Store(nil)
	g.bringForward()
	g.Run(0, "providers", "resume", "shop", "--reason", "permission given")
	g.await("the operation is open", 0, `SELECT count(*)::int FROM outbox.tool WHERE name = 'shop/charge' AND state <> 'closed'`)
	g.bringForward()
	g.await("all completed", 6, completed)
	daemon.Terminate()
	drainertest.AssertInvariant(t, g.db)
}

func TestAnOperationThatCanRenderNoIntentWaitsForAConfigurationThatCan(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	drainertest.Exec(t, g.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-' || n, 's', 'shop/note', 'x', '{"title": "a"}' FROM generate_series(1, 10) n`)
	daemon := g.Start(g.config)
	g.await("the operation is shut", 1, `SELECT count(*)::int FROM outbox.tool WHERE name = 'shop/note' AND state = 'open' AND reason = 'misconfigured'`)
	g.await("the others wait", 8, `SELECT count(*)::int FROM outbox.queue`)         // two were dead-lettered alone
	drainertest.Exec(t, g.db, `UPDATE outbox.intent SET payload = '{"book": "a"}'`) // as if the path was corrected
	g.Run(0, "providers", "resume", "shop", "--reason", "path corrected")
	g.await("they are sent", 8, completed)
	daemon.Terminate()
	drainertest.AssertInvariant(t, g.db)
}

// A worker that has just started knows that another worker with the same configuration has rendered an intent. A
// worker with another configuration does not know it.
func TestBadPayloadsShutNoOperationOfWhichTheConfigurationHasRenderedAnIntent(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	notes := func(step, payload string, runs int) {
		drainertest.Exec(t, g.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'run-' || n, $1, 'shop/note', 'x', $2::jsonb FROM generate_series(1, $3::int) n`, step, payload, runs)
	}
	const failed, wasShut = `SELECT count(*)::int FROM outbox.status WHERE status = 'failed' AND last_error = 'unrenderable_request'`,
		`SELECT count(*)::int FROM outbox.breaker_change WHERE name = 'shop/note'`
	notes("good", `{"book": "a"}`, 1)
	daemon := g.Start(g.config)
	g.await("a note is sent", 1, completed)
	daemon.Terminate()

	notes("bad", `{"title": "a"}`, 5)
	daemon = g.Start(g.config)
	g.await("all bad ones fail alone", 5, failed)
	notes("next", `{"book": "a"}`, 1)
	g.await("the next one is sent", 2, completed)
	if g.count(wasShut) != 0 {
		t.Error("the operation was shut")
	}

	drainertest.Exec(t, g.db, `UPDATE outbox.tool SET state = 'open', reason = 'misconfigured', open_until = now(), shut_at = now(), refused_at = now()
		WHERE name = 'shop/note'`) // as by a replica with another configuration
	daemon.WaitFor("circuit breaker of an operation open")
	notes("worse", `{"title": "a"}`, 5)
	g.await("a bad one that tries it does not keep it shut", 10, failed)
	g.await("it is open", 0, `SELECT count(*)::int FROM outbox.tool WHERE state <> 'closed'`)
	daemon.Terminate()
	drainertest.AssertInvariant(t, g.db)

	notes("worst", `{"title": "a"}`, 5)
	config, err := os.ReadFile(g.config)
	if err != nil {
		t.Fatal(err)
	}
	daemon = g.Start(program.WriteConfig(t, strings.Replace(string(config), ".payload.book", ".payload.author", 1)))
	g.await("another configuration that renders none is shut", 1, `SELECT count(*)::int FROM outbox.tool WHERE state <> 'closed' AND reason = 'misconfigured'`)
	daemon.Terminate()
}
