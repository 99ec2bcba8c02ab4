package integration_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

const (
	matrixTimeout = 3 * time.Second // nothing that answers takes so long, on a busy machine either
	matrixMargin  = 2 * time.Second // in which a late effect is released, too
)

// matrixWorld is an outbox with one intent for each cell, and one provider for
// each class, which honours keys only where the class says so.
type matrixWorld struct {
	*world
	cells     []cell
	providers map[dispatch.Class]*dispatchtest.SimulatedProvider
	baseURLs  map[dispatch.Class]string
	closed    string // where no provider is
}

func newMatrixWorld(t *testing.T, cells []cell) *matrixWorld {
	t.Helper()
	url := drainertest.Database(t)
	m := &matrixWorld{
		world:     &world{t: t, url: url, db: drainertest.Connect(t, url)},
		cells:     cells,
		providers: map[dispatch.Class]*dispatchtest.SimulatedProvider{},
		baseURLs:  map[dispatch.Class]string{},
		closed:    closedPort(t),
	}
	for _, class := range dispatch.Classes() {
		provider := &dispatchtest.SimulatedProvider{
			Ledger:     dispatchtest.NewLedger(),
			Plan:       dispatchtest.ScriptKeys(m.scripts()),
			LookupPlan: m.lookupPlan(),
			IgnoreKeys: class != dispatch.KeyIdempotent,
		}
		m.providers[class], m.baseURLs[class] = provider, dispatchtest.Serve(t, provider)
		t.Cleanup(provider.Release)
	}
	for _, cell := range cells {
		tuple := cell.tuple()
		_, err := m.db.Exec(context.Background(), `SELECT outbox.enqueue($1, $2, $3, $4, '{}')`,
			tuple.AgentRunID, tuple.StepID, tuple.ToolName, tuple.BusinessScope)
		if err != nil {
			t.Fatalf("enqueueing: %v", err)
		}
	}
	return m
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "http://" + listener.Addr().String()
}

func (m *matrixWorld) scripts() map[string][]dispatchtest.Fault {
	scripts := map[string][]dispatchtest.Fault{}
	for _, cell := range m.cells {
		scripts[cell.key()] = cell.script()
	}
	return scripts
}

func (m *matrixWorld) lookupPlan() dispatchtest.Plan {
	silent := map[string]bool{}
	for _, cell := range m.cells {
		silent[cell.key()] = cell.lookup == mute
	}
	return func(key string, _ int) dispatchtest.Fault {
		if silent[key] {
			return dispatchtest.ErrorBefore
		}
		return dispatchtest.None
	}
}

// drainerProviders are the same providers as the daemon knows them.
func (m *matrixWorld) drainerProviders() (providers []drainer.Provider) {
	for _, class := range dispatch.Classes() {
		providers = append(providers, drainer.Provider{
			Name:        string(class),
			Adapter:     absentAtFirst{there: m.adapter(class, m.baseURLs[class]), gone: m.adapter(class, m.closed)},
			Concurrency: len(m.cells), // so that nobody waits behind what hangs
			Timeout:     matrixTimeout,
			Breaker:     dispatch.BreakerPolicy{ConsecutiveFailures: math.MaxInt, CoolDown: time.Second},
			Tools: map[string]dispatch.Policy{
				string(nobody):  matrixPolicy(class, nil),
				string(mute):    matrixPolicy(class, &dispatch.Lookup{Operation: "find", Margin: matrixMargin}),
				string(telling): matrixPolicy(class, &dispatch.Lookup{Operation: "find", Margin: matrixMargin}),
				"find":          matrixPolicy(dispatch.ReadOnly, nil),
			},
		})
	}
	return providers
}

func matrixPolicy(class dispatch.Class, lookup *dispatch.Lookup) dispatch.Policy {
	policy := quickPolicy(class, 5)
	policy.Timeout, policy.Lookup = matrixTimeout, lookup
	return policy
}

var methods = map[dispatch.Class]string{
	dispatch.ReadOnly:            "GET",
	dispatch.NaturallyIdempotent: "PUT",
	dispatch.KeyIdempotent:       "POST",
	dispatch.NonIdempotent:       "POST",
}

func (m *matrixWorld) adapter(class dispatch.Class, baseURL string) dispatch.Adapter {
	act := dispatch.ToolSpec{Class: class, Settings: block(fmt.Sprintf("{method: %s, path: '/v1/{.key}', response: {ref: .id}}", methods[class]))}
	find := dispatch.ToolSpec{
		Class:    dispatch.ReadOnly,
		Settings: block("{method: GET, path: '/effects/{.key}', response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}"),
	}
	adapter, err := dispatchhttp.New(dispatch.Spec{
		Provider: string(class),
		Timeout:  matrixTimeout,
		Settings: block(fmt.Sprintf("{base_url: %q, should_retry_header: Stripe-Should-Retry}", baseURL)),
		Tools:    map[string]dispatch.ToolSpec{string(nobody): act, string(mute): act, string(telling): act, "find": find},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return adapter
}

// absentAtFirst finds nobody at the provider's port for the first attempt of
// the intents that are to meet that.
type absentAtFirst struct{ there, gone dispatch.Adapter }

func (a absentAtFirst) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	if request.Tuple.StepID == string(notSent) && request.Attempt == 1 {
		return a.gone.Dispatch(ctx, request)
	}
	return a.there.Dispatch(ctx, request)
}

// releaseLateEffects lets the effects happen whose answers nobody waits for
// any more, once the key-idempotent ones were met by a retry: in flight.
func (m *matrixWorld) releaseLateEffects() {
	m.t.Helper()
	late, keyed := 0, 0
	for _, cell := range m.cells {
		if cell.fault == dispatchtest.HangBefore {
			late++
			if cell.class == dispatch.KeyIdempotent {
				keyed++
			}
		}
	}
	outcomes := func(column, value string) int {
		return stored[int](m.world, `SELECT count(DISTINCT intent_id) FROM outbox.attempt JOIN outbox.intent ON id = intent_id
			WHERE step_id = 'hang_before' AND $2 = CASE $1 WHEN 'error' THEN error ELSE outcome END`, column, value)
	}
	drainertest.Eventually(m.t, "the late ones time out", func() bool { return outcomes("error", "timeout") == late })
	drainertest.Eventually(m.t, "the keyed ones are in flight", func() bool { return outcomes("outcome", "in_flight") == keyed })
	for _, provider := range m.providers {
		provider.Release()
	}
}

// endings is what became of each key.
func (m *matrixWorld) endings() map[string]ending {
	m.t.Helper()
	audits := map[string]dispatchtest.Audit{}
	for class, provider := range m.providers {
		audits[string(class)] = provider.Ledger.Audit()
	}
	rows, _ := m.db.Query(context.Background(), `SELECT provider, idempotency_key, status FROM outbox.status`)
	endings := map[string]ending{}
	var provider, key, status string
	_, err := pgx.ForEachRow(rows, []any{&provider, &key, &status}, func() error {
		endings[key] = ending{status, audits[provider].Effects[key], audits[provider].Requests[key]}
		return nil
	})
	if err != nil {
		m.t.Fatalf("asking the database: %v", err)
	}
	return endings
}

func (m *matrixWorld) assertEveryUnknownIsAnIncident() {
	m.t.Helper()
	const silent = `SELECT count(*) FROM outbox.status s JOIN outbox.intent i USING (agent_run_id, step_id, tool_name, business_scope)
		WHERE (s.status = 'unknown') <> EXISTS (SELECT FROM outbox.incident WHERE kind = 'outcome_unknown' AND intent_id = i.id)`
	if got := stored[int](m.world, silent); got != 0 {
		m.t.Errorf("%d intents are unknown without an incident, or the other way round", got)
	}
}

func (m *matrixWorld) assertRetryAfterWasHeeded() {
	m.t.Helper()
	const waits = `SELECT count(*) FILTER (WHERE waited < asked), count(*) FROM (
		SELECT extract(epoch FROM lead(started_at) OVER following - finished_at)::float8 AS waited, retry_after_seconds AS asked
		FROM outbox.attempt WINDOW following AS (PARTITION BY intent_id ORDER BY attempt)) w WHERE asked > 0`
	var early, asked int
	if err := m.db.QueryRow(context.Background(), waits).Scan(&early, &asked); err != nil {
		m.t.Fatal(err)
	}
	if early != 0 || asked == 0 {
		m.t.Errorf("%d of %d attempts came before the Retry-After was over", early, asked)
	}
}
