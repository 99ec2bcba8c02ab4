package integration_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
)

// matrix lists how an intent ends whose first request meets the fault, and how many effects it then has in the
// ledger: status/effects. A column with +lookup has a lookup that answers. The other columns run without a lookup and
// with a lookup that always fails; see lookupsOf for a third tool. A read has no effect to count. Only the provider
// of the key_idempotent tools honours keys, so only this provider saves errors under them.
const matrix = `
fault               read_only    naturally_idempotent  key_idempotent  key_idempotent+lookup  non_idempotent  non_idempotent+lookup
not_sent            completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
error_before        completed/0  completed/1           completed/1     completed/1            unknown/0       failed/0
error_after         completed/0  completed/1           completed/1     completed/1            unknown/1       completed/1
drop_before         completed/0  completed/1           completed/1     completed/1            unknown/0       failed/0
drop_after          completed/0  completed/1           completed/1     completed/1            unknown/1       completed/1
malformed_reply     completed/0  completed/1           completed/1     completed/1            unknown/1       completed/1
hang_before         completed/0  completed/1           completed/1     completed/1            unknown/1       completed/1
busy                completed/0  completed/1           completed/1     completed/1            unknown/0       failed/0
taken               failed/0     failed/0              failed/0        failed/0               failed/0        failed/0
saved_error_before  completed/0  completed/1           unknown/0       failed/0               unknown/0       failed/0
saved_error_after   completed/0  completed/1           unknown/1       completed/1            unknown/1       completed/1
error_for_good      -            -                     unknown/1       completed/1            unknown/1       completed/1
throttle            completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
throttle_for        completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
throttle_until      completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
unavailable         completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
unavailable_for     completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
unavailable_until   completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
overloaded          completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
overloaded_for      completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
overloaded_until    completed/0  completed/1           completed/1     completed/1            completed/1     completed/1
`

// notSent is the fault of a provider that cannot be reached by the first request.
const notSent dispatchtest.Fault = "not_sent"

func TestEveryClassMeetsEveryFaultAndEndsAsTheLedgerSays(t *testing.T) {
	t.Parallel()
	for _, wire := range dispatchtest.Wires() {
		t.Run(string(wire), func(t *testing.T) {
			everyClassMeetsEveryFault(t, wire)
		})
	}
}

func everyClassMeetsEveryFault(t *testing.T, wire dispatchtest.Wire) {
	m := newMatrixRig(t, wire, cellsOf(matrix))
	launch(t, m.URL, m.drainerProviders()...)
	m.releaseLateEffects()
	drainertest.Eventually(t, "all is settled", func() bool {
		return harness.Stored[int](m.Rig, `SELECT (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.claim)`) == 0
	})
	m.reportInjected()
	drainertest.AssertInvariant(t, m.DB)
	endings := m.endings()
	for _, cell := range m.cells {
		ending := endings[cell.key()]
		if ending.verdict() != cell.want {
			t.Errorf("%s: %s after %d requests, want %s", cell, ending.verdict(), ending.requests, cell.want)
		}
		for _, broken := range cell.broken(ending) {
			t.Errorf("%s: %s", cell, broken)
		}
	}
	m.assertEveryUnknownIsAnIncident()
	m.assertRetryAfterWasHeeded()
	t.Log(m.table(endings))
}

// ending is the result of one intent, by the outbox and by the ledger.
type ending struct {
	status            string
	effects, requests int
}

func (e ending) verdict() string { return fmt.Sprintf("%s/%d", e.status, e.effects) }

// broken lists the promises that an ending breaks, independently of the matrix.
func (c cell) broken(e ending) (promises []string) {
	mustHold := func(promise string, holds bool) {
		if !holds {
			promises = append(promises, promise)
		}
	}
	mustHold("completed means that it happened", e.status != "completed" || e.effects > 0 || c.class == dispatch.ReadOnly)
	mustHold("failed means that it did not happen", e.status != "failed" || e.effects == 0)
	mustHold("unknown is for effects that no lookup can find", e.status != "unknown" || c.lookup != telling)
	mustHold("a key has one effect at most", e.effects <= 1)
	mustHold("what must not be repeated is not", c.class != dispatch.NonIdempotent || e.requests <= 1 || c.refusedAtFirst())
	mustHold("an error for good is asked for once", c.fault != dispatchtest.ErrorForGood || e.requests == 1)
	mustHold("a replayed error ends the requests", !c.savesError() || c.lookup == telling || e.requests == 2)
	return promises
}

// table returns the matrix with the observed endings and the number of requests.
func (m *matrixRig) table(endings map[string]ending) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, column := range m.columns() {
		fmt.Fprintf(table, "\t%s %s", column.class, column.lookup)
	}
	for _, fault := range m.faults() {
		fmt.Fprintf(table, "\n%s", fault)
		for _, column := range m.columns() {
			ending, met := endings[cell{fault: fault, class: column.class, lookup: column.lookup}.key()]
			if !met {
				fmt.Fprint(table, "\t-")
				continue
			}
			fmt.Fprintf(table, "\t%s (%d)", ending.verdict(), ending.requests)
		}
	}
	table.Flush()
	return "status/effects (requests)\n" + text.String()
}

// columns returns the cells of the first fault, which every class meets.
func (m *matrixRig) columns() (columns []cell) {
	for _, cell := range m.cells {
		if cell.fault == m.cells[0].fault {
			columns = append(columns, cell)
		}
	}
	return columns
}

func (m *matrixRig) faults() (faults []dispatchtest.Fault) {
	for _, cell := range m.cells {
		if !slices.Contains(faults, cell.fault) {
			faults = append(faults, cell.fault)
		}
	}
	return faults
}

// cell is one intent of the matrix.
type cell struct {
	fault  dispatchtest.Fault // of its first request
	class  dispatch.Class
	lookup lookup
	want   string // status/effects
}

// lookup is the tool of an intent. The tools differ only in their lookup.
type lookup string

const (
	none    lookup = "act"         // the operation without a lookup
	failing lookup = "act_mute"    // the operation with a lookup that always fails
	telling lookup = "act_telling" // the operation with a lookup that answers from the ledger
)

// cellsOf reads the matrix.
func cellsOf(matrix string) (cells []cell) {
	lines := strings.Split(strings.TrimSpace(matrix), "\n")
	columns := strings.Fields(lines[0])[1:]
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		for i, want := range fields[1:] {
			class, asks, _ := strings.Cut(columns[i], "+")
			for _, lookup := range lookupsOf(dispatch.Class(class), asks != "") {
				if want != "-" {
					cells = append(cells, cell{dispatchtest.Fault(fields[0]), dispatch.Class(class), lookup, want})
				}
			}
		}
	}
	return cells
}

// lookupsOf returns the tools of one column: the one whose lookup answers, or all others. A class that may always be
// repeated needs no lookup, so its column also has the tool whose lookup answers. This lookup must change nothing.
func lookupsOf(class dispatch.Class, asks bool) []lookup {
	switch {
	case asks:
		return []lookup{telling}
	case class == dispatch.ReadOnly || class == dispatch.NaturallyIdempotent:
		return []lookup{none, failing, telling}
	}
	return []lookup{none, failing}
}

func (c cell) String() string { return fmt.Sprintf("%s %s meets %s", c.class, c.lookup, c.fault) }

func (c cell) tuple() dispatch.Tuple {
	return dispatch.Tuple{AgentRunID: "run-1", StepID: string(c.fault), ToolName: string(c.class) + "/" + string(c.lookup), BusinessScope: "matrix"}
}

func (c cell) key() string { return c.tuple().IdempotencyKey() }

// script returns the faults of the cell's requests. Only the first request meets a fault.
func (c cell) script() []dispatchtest.Fault {
	if c.fault == notSent {
		return nil
	}
	return []dispatchtest.Fault{c.fault}
}

// refusedAtFirst reports whether the first request certainly had no effect, so that a second request repeats nothing.
func (c cell) refusedAtFirst() bool {
	return slices.ContainsFunc([]string{"throttle", "unavailable", "overloaded"},
		func(refusal string) bool { return strings.HasPrefix(string(c.fault), refusal) })
}

// savesError reports whether the provider answers a repetition with the first request's error.
func (c cell) savesError() bool {
	return c.class == dispatch.KeyIdempotent && strings.HasPrefix(string(c.fault), "saved_error")
}

const (
	matrixTimeout = 5 * time.Second // longer than any answer takes, also on a busy machine
	matrixMargin  = 2 * time.Second // long enough for a late effect to be released in this time
)

// matrixRig is an outbox with one intent for each cell. Each class has its own provider, which honours keys only if
// the class is key_idempotent.
type matrixRig struct {
	*harness.Rig
	wire      dispatchtest.Wire
	cells     []cell
	providers map[dispatch.Class]*dispatchtest.SimulatedProvider
	baseURLs  map[dispatch.Class]string
	closed    string // a URL without a provider
}

func newMatrixRig(t *testing.T, wire dispatchtest.Wire, cells []cell) *matrixRig {
	t.Helper()
	m := &matrixRig{
		Rig:       harness.Without(t),
		wire:      wire,
		cells:     cells,
		providers: map[dispatch.Class]*dispatchtest.SimulatedProvider{},
		baseURLs:  map[dispatch.Class]string{},
		closed:    "http://" + dispatchtest.Address(t),
	}
	for _, class := range dispatch.Classes() {
		provider := &dispatchtest.SimulatedProvider{
			Ledger:     dispatchtest.NewLedger(),
			Plan:       dispatchtest.ScriptKeys(m.scripts()),
			LookupPlan: m.lookupPlan(),
			IgnoreKeys: class != dispatch.KeyIdempotent,
		}
		m.providers[class], m.baseURLs[class] = provider, wire.Serve(t, provider)
		t.Cleanup(provider.Release)
	}
	for _, cell := range cells {
		tuple := cell.tuple()
		_, err := m.DB.Exec(context.Background(), `SELECT outbox.enqueue($1, $2, $3, $4, '{}')`,
			tuple.AgentRunID, tuple.StepID, tuple.ToolName, tuple.BusinessScope)
		if err != nil {
			t.Fatalf("enqueueing: %v", err)
		}
	}
	return m
}

func (m *matrixRig) scripts() map[string][]dispatchtest.Fault {
	scripts := map[string][]dispatchtest.Fault{}
	for _, cell := range m.cells {
		scripts[cell.key()] = cell.script()
	}
	return scripts
}

func (m *matrixRig) lookupPlan() dispatchtest.Plan {
	silent := map[string]bool{}
	for _, cell := range m.cells {
		silent[cell.key()] = cell.lookup == failing
	}
	return func(key string, _ int) dispatchtest.Fault {
		if silent[key] {
			return dispatchtest.ErrorBefore
		}
		return dispatchtest.None
	}
}

// drainerProviders returns the configuration of the same providers for the daemon.
func (m *matrixRig) drainerProviders() (providers []dispatch.Provider) {
	for _, class := range dispatch.Classes() {
		providers = append(providers, dispatch.Provider{
			Name:        string(class),
			Adapter:     absentAtFirst{there: m.adapter(class, m.baseURLs[class]), gone: m.adapter(class, m.closed)},
			Concurrency: len(m.cells), // so that no row waits behind one that hangs
			Timeout:     matrixTimeout,
			Breaker:     dispatch.BreakerPolicy{ConsecutiveFailures: math.MaxInt, CoolDown: time.Second},
			Tools: map[string]dispatch.Policy{
				string(none):    matrixPolicy(class, nil),
				string(failing): matrixPolicy(class, &dispatch.Lookup{Operation: "find", Margin: matrixMargin}),
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

func (m *matrixRig) adapter(class dispatch.Class, baseURL string) dispatch.Adapter {
	act := dispatch.ToolSpec{Class: class, Settings: dispatchtest.Block(fmt.Sprintf("{method: %s, path: '/v1/{.key}', response: {ref: .id}}", methods[class]))}
	find := dispatch.ToolSpec{
		Class:    dispatch.ReadOnly,
		Settings: dispatchtest.Block("{method: GET, path: '/effects/{.key}', response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}"),
	}
	adapter, err := dispatchhttp.New(dispatch.Spec{
		Provider: string(class),
		Timeout:  matrixTimeout,
		Network:  m.wire.Network(m.T),
		Settings: dispatchtest.Block(fmt.Sprintf("{base_url: %q, should_retry_header: Stripe-Should-Retry}", baseURL)),
		Tools:    map[string]dispatch.ToolSpec{string(none): act, string(failing): act, string(telling): act, "find": find},
	})
	if err != nil {
		m.T.Fatal(err)
	}
	return adapter
}

// absentAtFirst sends the first attempt of the notSent intents to a closed port.
type absentAtFirst struct{ there, gone dispatch.Adapter }

func (a absentAtFirst) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	if request.Tuple.StepID == string(notSent) && request.Attempt == 1 {
		return a.gone.Dispatch(ctx, request)
	}
	return a.there.Dispatch(ctx, request)
}

// releaseLateEffects releases the effects of requests that hang. It first waits until their attempts have timed out,
// and until the provider has answered "in flight" to the retries of the key_idempotent ones.
func (m *matrixRig) releaseLateEffects() {
	m.T.Helper()
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
		return harness.Stored[int](m.Rig, `SELECT count(DISTINCT intent_id) FROM outbox.attempt JOIN outbox.intent ON id = intent_id
			WHERE step_id = 'hang_before' AND $2 = CASE $1 WHEN 'error' THEN error ELSE outcome END`, column, value)
	}
	drainertest.Eventually(m.T, "the late ones time out", func() bool { return outcomes("error", "timeout") == late })
	drainertest.Eventually(m.T, "the keyed ones are in flight", func() bool { return outcomes("outcome", "in_flight") == keyed })
	for _, provider := range m.providers {
		provider.Release()
	}
}

// endings returns the result of each key.
func (m *matrixRig) endings() map[string]ending {
	m.T.Helper()
	audits := map[string]dispatchtest.Audit{}
	for class, provider := range m.providers {
		audits[string(class)] = provider.Ledger.Audit()
	}
	rows, _ := m.DB.Query(context.Background(), `SELECT provider, idempotency_key, status FROM outbox.status`)
	endings := map[string]ending{}
	var provider, key, status string
	_, err := pgx.ForEachRow(rows, []any{&provider, &key, &status}, func() error {
		endings[key] = ending{status, audits[provider].Effects[key], audits[provider].Requests[key]}
		return nil
	})
	if err != nil {
		m.T.Fatalf("asking the database: %v", err)
	}
	return endings
}

func (m *matrixRig) assertEveryUnknownIsAnIncident() {
	m.T.Helper()
	const silent = `SELECT count(*) FROM outbox.status s JOIN outbox.intent i USING (agent_run_id, step_id, tool_name, business_scope)
		WHERE (s.status = 'unknown') <> EXISTS (SELECT FROM outbox.incident WHERE kind = 'outcome_unknown' AND intent_id = i.id)`
	if got := harness.Stored[int](m.Rig, silent); got != 0 {
		m.T.Errorf("%d intents are unknown without an incident, or the other way round", got)
	}
}

func (m *matrixRig) assertRetryAfterWasHeeded() {
	m.T.Helper()
	const waits = `SELECT count(*) FILTER (WHERE waited < asked), count(*) FROM (
		SELECT extract(epoch FROM lead(started_at) OVER following - finished_at)::float8 AS waited, retry_after_seconds AS asked
		FROM outbox.attempt WINDOW following AS (PARTITION BY intent_id ORDER BY attempt)) w WHERE asked > 0`
	var early, asked int
	if err := m.DB.QueryRow(context.Background(), waits).Scan(&early, &asked); err != nil {
		m.T.Fatal(err)
	}
	if early != 0 || asked == 0 {
		m.T.Errorf("%d of %d attempts came before the Retry-After was over", early, asked)
	}
}

// matrixCases are the faults of the matrix, by their number in the catalogue.
var matrixCases = map[int][]dispatchtest.Fault{
	38: {dispatchtest.DropBefore, dispatchtest.DropAfter},
	39: {dispatchtest.HangBefore},
	41: {dispatchtest.Throttle, dispatchtest.ThrottleFor, dispatchtest.ThrottleUntil, dispatchtest.Unavailable, dispatchtest.UnavailableFor, dispatchtest.UnavailableUntil, dispatchtest.Outstanding, dispatchtest.Taken},
	42: {dispatchtest.SavedErrorBefore, dispatchtest.SavedErrorAfter, dispatchtest.ErrorForGood},
}

// reportInjected counts each fault in the ledgers. A provider that could not be reached has no ledger entry, so the
// attempts count for this fault.
func (m *matrixRig) reportInjected() {
	m.T.Helper()
	for number, faults := range matrixCases {
		met := 0
		for _, provider := range m.providers {
			audit := provider.Ledger.Audit()
			for _, f := range faults {
				met += audit.Faults[f]
			}
		}
		fault.Injected(m.T, number, met)
	}
	fault.Injected(m.T, 37, harness.Stored[int](m.Rig, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'not_sent'`))
}
