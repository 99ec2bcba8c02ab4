package drainer

import (
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestOnlyForwardStepsOfAClosedRunAreBarred(t *testing.T) {
	t.Parallel()
	of := func(run string) dispatch.Tuple { return dispatch.Tuple{AgentRunID: run} }
	for name, test := range map[string]struct {
		row  Row
		want bool
	}{
		"a step":               {Row{Tuple: of("closed")}, true},
		"its retry":            {Row{Tuple: of("closed"), MaybeApplied: true}, true},
		"an undo":              {Row{Tuple: of("closed"), Undoes: new(int64)}, false},
		"a question":           {Row{Tuple: of("closed"), Lookup: true}, false},
		"a step of a run open": {Row{Tuple: of("open")}, false},
	} {
		var c closings
		if c.bars(&test.row) {
			t.Errorf("%s: barred before anything was closed", name)
		}
		c.learn([]string{"closed"})
		if got := c.bars(&test.row); got != test.want {
			t.Errorf("%s: barred is %t, want %t", name, got, test.want)
		}
		c.learn(nil)
		if c.bars(&test.row) {
			t.Errorf("%s: barred after all was forgotten", name)
		}
	}
}
