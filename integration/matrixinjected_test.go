package integration_test

import (
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// matrixCases are the faults of the matrix, by their number in the catalogue.
var matrixCases = map[int][]dispatchtest.Fault{
	38: {dispatchtest.DropBefore, dispatchtest.DropAfter},
	39: {dispatchtest.HangBefore},
	41: {dispatchtest.Throttle, dispatchtest.ThrottleFor, dispatchtest.ThrottleUntil, dispatchtest.Unavailable, dispatchtest.UnavailableFor, dispatchtest.UnavailableUntil, dispatchtest.Outstanding, dispatchtest.Taken},
	42: {dispatchtest.SavedErrorBefore, dispatchtest.SavedErrorAfter, dispatchtest.ErrorForGood},
}

// reportInjected counts what the ledgers have of each fault. Who was not there
// wrote no ledger.
func (m *matrixWorld) reportInjected() {
	m.t.Helper()
	for number, faults := range matrixCases {
		met := 0
		for _, provider := range m.providers {
			audit := provider.Ledger.Audit()
			for _, f := range faults {
				met += audit.Faults[f]
			}
		}
		fault.Injected(m.t, number, met)
	}
	fault.Injected(m.t, 37, stored[int](m.world, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'not_sent'`))
}
