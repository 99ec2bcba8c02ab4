package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// matrix says how an intent ends whose first request meets the fault, and how
// many effects the ledger has of it then: status/effects. A column with +lookup
// has a lookup that can tell; the others are run without one, and with one that
// always fails. A read has no effect to count, and only the provider of the
// key_idempotent tools honours keys, so that only it saves errors under them.
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

// notSent is the fault of a provider that is not there at first.
const notSent dispatchtest.Fault = "not_sent"

func TestEveryClassMeetsEveryFaultAndEndsAsTheLedgerSays(t *testing.T) {
	t.Parallel()
	m := newMatrixWorld(t, cellsOf(matrix))
	launch(t, m.url, m.drainerProviders()...)
	m.releaseLateEffects()
	drainertest.Eventually(t, "all is settled", func() bool {
		return stored[int](m.world, `SELECT (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.claim)`) == 0
	})
	m.reportInjected()
	drainertest.AssertInvariant(t, m.db)
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

// ending is what became of one intent, by the outbox and by the ledger.
type ending struct {
	status            string
	effects, requests int
}

func (e ending) verdict() string { return fmt.Sprintf("%s/%d", e.status, e.effects) }

// broken lists the promises that an ending breaks, whatever the matrix says.
func (c cell) broken(e ending) (promises []string) {
	mustHold := func(promise string, holds bool) {
		if !holds {
			promises = append(promises, promise)
		}
	}
	mustHold("completed means that it happened", e.status != "completed" || e.effects > 0 || c.class == dispatch.ReadOnly)
	mustHold("failed means that it did not happen", e.status != "failed" || e.effects == 0)
	mustHold("unknown is for what nobody can tell", e.status != "unknown" || c.lookup != telling)
	mustHold("a key has one effect at most", e.effects <= 1)
	mustHold("what must not be repeated is not", c.class != dispatch.NonIdempotent || e.requests <= 1 || c.refusedAtFirst())
	mustHold("an error for good is asked for once", c.fault != dispatchtest.ErrorForGood || e.requests == 1)
	mustHold("a replayed error ends the requests", !c.savesError() || c.lookup == telling || e.requests == 2)
	return promises
}

// table is the matrix as it was seen, with the requests that it took.
func (m *matrixWorld) table(endings map[string]ending) string {
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

// columns are the cells of the first fault, which every class meets.
func (m *matrixWorld) columns() (columns []cell) {
	for _, cell := range m.cells {
		if cell.fault == m.cells[0].fault {
			columns = append(columns, cell)
		}
	}
	return columns
}

func (m *matrixWorld) faults() (faults []dispatchtest.Fault) {
	for _, cell := range m.cells {
		if !slices.Contains(faults, cell.fault) {
			faults = append(faults, cell.fault)
		}
	}
	return faults
}
