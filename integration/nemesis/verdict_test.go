package nemesis_test

import (
	"strings"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/world"
)

// judge looks at everything once there is rest.
func (a *arena) judge(gauge *gauge, lasted time.Duration) {
	a.t.Helper()
	a.assertPaged()
	accounts := history.Collect(a.t, a.Clients, a.Provider.Ledger, a.DB)
	drainertest.AssertInvariant(a.t, a.DB)
	violations := history.Check(accounts, world.Tools)
	for _, violation := range violations[:min(len(violations), 20)] {
		a.t.Errorf("%s (1 of %d)", violation, len(violations))
	}
	gauge.assertBounded(a.t)
	a.watch.assertSilence(a.t)
	for _, replica := range a.fleet {
		replica.assertSound(a.t)
	}
	a.assertFaults(lasted)
	tallyOf(accounts).assertEventful(a.t, lasted)
}

// assertFaults fails a run in which some fault never happened.
func (a *arena) assertFaults(lasted time.Duration) {
	a.t.Helper()
	for _, fault := range a.faults() {
		a.t.Logf("%4d × %s", a.chronicle.count(fault.name), fault.name)
	}
	if missing := a.missing(lasted); len(missing) > 0 {
		a.t.Errorf("too rare in %s: %s: the run shows too little", lasted, strings.Join(missing, ", "))
	}
}
