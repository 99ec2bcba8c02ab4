package row_test

import (
	"fmt"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore/exploretest"
	"github.com/agentoutbox/drainer/model/row"
)

// classes are those that are decided differently: read_only is decided like
// naturally_idempotent.
var classes = dispatch.Classes()[1:]

// A claim with another row beside this one makes too many states of a key's
// ages, and has nothing to do with them.
func batches(class dispatch.Class) bool { return class != dispatch.KeyIdempotent }

func TestNoOrderOfEventsBreaksAPromise(t *testing.T) {
	t.Parallel()
	for _, class := range classes {
		for _, lookup := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lookup %t", class, lookup), func(t *testing.T) {
				t.Parallel()
				report := exploretest.Holds(t, row.Model{Class: class, Lookup: lookup, Batched: batches(class)}.Explored())
				t.Logf("%s, lookup %t: %d states, %d steps", class, lookup, report.States, report.Steps)
			})
		}
	}
}
