package dispatch

import "testing"

func TestOnlyTheProvidersOwnTroubleCountsTowardsItsBreaker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result     Result
		overloaded bool
	}{
		"it cannot be reached":             {Result{Outcome: NotSent}, true},
		"it does not answer":               {Result{Outcome: Ambiguous}, true},
		"it answers with an error":         {Result{Outcome: Ambiguous, HTTPStatus: 500}, false},
		"it has no room":                   {Result{Outcome: Throttled, HTTPStatus: 503}, true},
		"it is overloaded":                 {Result{Outcome: Throttled, HTTPStatus: 529}, true},
		"it limits the caller":             {Result{Outcome: Throttled, HTTPStatus: 429}, false},
		"it refuses for now":               {Result{Outcome: Throttled}, true},
		"it refuses this intent for now":   {Result{Outcome: Throttled, Healthy: true}, false},
		"it answers without a status":      {Result{Outcome: Ambiguous, Healthy: true}, false},
		"it refuses":                       {Result{Outcome: Rejected}, false},
		"it is still at an earlier try":    {Result{Outcome: InFlight}, false},
		"it takes it":                      {Result{Outcome: Completed}, false},
		"it says that there is no such":    {Result{Outcome: Absent}, false},
		"it was not sent":                  {Result{Outcome: Released}, false},
		"its worker died":                  {Result{Outcome: Lost}, false},
		"out of reach, whatever it claims": {Result{Outcome: NotSent, Healthy: true}, true},
	} {
		if got := test.result.Overloaded(); got != test.overloaded {
			t.Errorf("%s: %v", name, got)
		}
	}
}
