package dispatchtest_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

func lookUp(t *testing.T, baseURL, key string) reply {
	t.Helper()
	return send(t, http.MethodGet, baseURL+"/effects/"+key, "", "")
}

func TestALookupTellsWhetherTheKeyHadItsEffect(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		"after": {dispatchtest.DropAfter}, "before": {dispatchtest.DropBefore}, "saved": {dispatchtest.SavedErrorAfter}, "taken": {dispatchtest.Taken},
	}))
	for key, found := range map[string]bool{"after": true, "before": false, "saved": true, "taken": false, "never": false} {
		if key != "never" {
			post(t, baseURL, key, "{}")
		}
		got := lookUp(t, baseURL, key)
		if found && (got.status != 200 || !strings.Contains(got.body, `"id":"eff_`)) {
			t.Errorf("%s: %+v, want its effect", key, got)
		}
		if !found && (got.status != 404 || got.header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %+v, want a problem with status 404", key, got)
		}
		if audit := provider.Ledger.Audit(); audit.Lookups[key] != 1 || audit.Requests[key] > 1 {
			t.Errorf("%s: the lookup is not counted as one: %+v", key, audit)
		}
	}
}

func TestAnEffectUnderWayIsNotFoundUntilItHappened(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.HangBefore))
	var group sync.WaitGroup
	group.Go(func() { post(t, baseURL, "k", "{}") })
	if err := provider.Ledger.Wait(t.Context(), func(a dispatchtest.Audit) bool { return a.Requests["k"] == 1 }); err != nil {
		t.Fatal(err)
	}
	if got := lookUp(t, baseURL, "k"); got.status != 404 {
		t.Errorf("under way: %+v, want 404", got)
	}
	provider.Release()
	group.Wait()
	if got := lookUp(t, baseURL, "k"); got.status != 200 {
		t.Errorf("after it happened: %+v, want 200", got)
	}
}

func TestALookupFailsByAPlanOfItsOwn(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{
		Ledger: dispatchtest.NewLedger(), LookupPlan: dispatchtest.Script(dispatchtest.ErrorBefore, dispatchtest.DropBefore),
	}
	baseURL := dispatchtest.Serve(t, provider)
	if got := post(t, baseURL, "k", "{}"); got.status != 200 {
		t.Errorf("the request itself: %+v", got)
	}
	if got := lookUp(t, baseURL, "k"); got.status != 500 {
		t.Errorf("first lookup: %+v, want 500", got)
	}
	if got := lookUp(t, baseURL, "k"); got.err == nil {
		t.Errorf("second lookup: %+v, want no reply", got)
	}
	if got := lookUp(t, baseURL, "k"); got.status != 200 {
		t.Errorf("third lookup: %+v, want 200", got)
	}
}
