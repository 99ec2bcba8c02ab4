package share_test

import (
	"testing"

	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/share"
)

func TestNoOrderOfEventsBreaksAPromise(t *testing.T) {
	t.Parallel()
	tenants := explore.Holds(t, share.Model{}.Explored())
	t.Logf("three tenants: %d states, %d steps", tenants.States, tenants.Steps)
	limit := explore.Holds(t, share.Limit{}.Explored())
	t.Logf("two workers and a limit: %d states, %d steps", limit.States, limit.Steps)
	runs := explore.Holds(t, share.Runs{}.Explored())
	t.Logf("two runs: %d states, %d steps", runs.States, runs.Steps)
}

func TestEachGuardKeepsAPromise(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]func(t *testing.T, without string){
		"a search": func(t *testing.T, without string) {
			explore.Breaks(t, share.Model{Without: share.Searches}.Explored(), without, share.NobodyStarves)
		},
		"turns": func(t *testing.T, without string) {
			explore.Breaks(t, share.Model{Without: share.TakesTurns}.Explored(), without, share.NobodyStarves)
		},
		"a search that goes on behind a tenant at its limit": func(t *testing.T, without string) {
			explore.Breaks(t, share.Model{Without: share.PassesLimited}.Explored(), without, share.NobodyStarves)
		},
		"a lock of the tenant": func(t *testing.T, without string) {
			explore.Breaks(t, share.Limit{Without: share.LocksTenant}.Explored(), without, share.LimitIsKept)
		},
		"a first limit that waits for claims": func(t *testing.T, without string) {
			explore.Breaks(t, share.Limit{Without: share.WaitsForClaims}.Explored(), without, share.LimitIsKept)
		},
		"looks ahead": func(t *testing.T, without string) {
			explore.Breaks(t, share.Runs{Without: share.LooksAhead}.Explored(), without, share.NoRunStarves)
		},
		"the last row of a window": func(t *testing.T, without string) {
			explore.Breaks(t, share.Runs{Without: share.TakesTheLast}.Explored(), without, share.NoRunStarves)
		},
		"looks that start again": func(t *testing.T, without string) {
			explore.Breaks(t, share.Runs{Without: share.StartsAgain}.Explored(), without, share.NoRunStarves)
		},
		"full scans": func(t *testing.T, without string) {
			explore.Breaks(t, share.Runs{Without: share.ScansAll}.Explored(), without, explore.ComesToRest)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			breaks(t, name)
		})
	}
}
