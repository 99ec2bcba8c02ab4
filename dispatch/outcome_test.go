package dispatch

import (
	"errors"
	"slices"
	"testing"
)

func TestOnlyTheProvidersOwnTroubleCountsTowardsItsBreaker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result             Result
		overloaded, failed bool
	}{
		"it cannot be reached":             {Result{Outcome: NotSent}, true, true},
		"it does not answer":               {Result{Outcome: Ambiguous}, false, true},
		"it answers with an error":         {Result{Outcome: Ambiguous, HTTPStatus: 500}, false, true},
		"its answer cannot be read":        {Result{Outcome: Ambiguous, HTTPStatus: 200}, false, false},
		"it has no room":                   {Result{Outcome: Throttled, HTTPStatus: 503}, true, true},
		"it is overloaded":                 {Result{Outcome: Throttled, HTTPStatus: 529}, true, true},
		"it limits the caller":             {Result{Outcome: Throttled, HTTPStatus: 429}, true, true},
		"it refuses for now":               {Result{Outcome: Throttled}, true, true},
		"it refuses this intent for now":   {Result{Outcome: Throttled, Healthy: true}, false, false},
		"it answers without a status":      {Result{Outcome: Ambiguous, Healthy: true}, false, false},
		"it refuses":                       {Result{Outcome: Rejected}, false, false},
		"it is still at an earlier try":    {Result{Outcome: InFlight}, false, false},
		"it takes it":                      {Result{Outcome: Completed}, false, false},
		"it says that there is no such":    {Result{Outcome: Absent}, false, false},
		"it was not sent":                  {Result{Outcome: Released}, false, false},
		"it was refused here":              {Result{Outcome: NotSent, Unsent: true}, false, false},
		"its worker died":                  {Result{Outcome: Lost}, false, false},
		"out of reach, whatever it claims": {Result{Outcome: NotSent, Healthy: true}, true, true},
	} {
		if got := test.result.Failed(); got != test.failed {
			t.Errorf("%s: counts against its operation %v", name, got)
		}
		if got := test.result.Overloaded(); got != test.overloaded {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnAdaptersNameIsTakenOnce(t *testing.T) {
	t.Parallel()
	registry, err := NewRegistry(Kind{Name: "smtp"}, Kind{Name: "http"})
	if err != nil || !slices.Equal(registry.Names(), []string{"http", "smtp"}) {
		t.Errorf("%v, %v; want both, in alphabetical order", registry.Names(), err)
	}
	if _, err := NewRegistry(Kind{Name: "http"}, Kind{Name: "http"}); err == nil {
		t.Error("two adapters have one name")
	}
}

func TestAToolsErrorNamesTheToolAndKeepsItsCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("path is missing")
	var err error = &ToolError{Operation: "charge", Err: cause}
	if !errors.Is(err, cause) || err.Error() != "tool charge: path is missing" {
		t.Errorf("%q, of its cause: %v", err, errors.Is(err, cause))
	}
}
