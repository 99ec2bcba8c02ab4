package share_test

import (
	"testing"

	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/share"
)

func TestNoOrderOfArrivalsStarvesATenant(t *testing.T) {
	t.Parallel()
	report := explore.Holds(t, share.Model{}.Explored())
	t.Logf("%d states, %d steps", report.States, report.Steps)
}

func TestEachGuardKeepsTenantsFromStarving(t *testing.T) {
	t.Parallel()
	for name, guard := range map[string]share.Guards{
		"a search": share.Searches,
		"turns":    share.TakesTurns,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Breaks(t, share.Model{Without: guard}.Explored(), name, share.NobodyStarves)
		})
	}
}
