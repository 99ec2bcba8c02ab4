package integration_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// cell is one intent of the matrix.
type cell struct {
	fault  dispatchtest.Fault // of its first request
	class  dispatch.Class
	lookup lookup
	want   string // status/effects
}

// lookup is whom an intent's tool can ask.
type lookup string

const (
	nobody  lookup = "act"         // the operation without a lookup
	mute    lookup = "act_mute"    // one whose lookup always fails
	telling lookup = "act_telling" // one whose lookup tells from the ledger
)

// cellsOf reads the matrix.
func cellsOf(matrix string) (cells []cell) {
	lines := strings.Split(strings.TrimSpace(matrix), "\n")
	columns := strings.Fields(lines[0])[1:]
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		for i, want := range fields[1:] {
			class, asks, _ := strings.Cut(columns[i], "+")
			for _, lookup := range lookupsOf(dispatch.Class(class), asks != "") {
				if want != "-" {
					cells = append(cells, cell{dispatchtest.Fault(fields[0]), dispatch.Class(class), lookup, want})
				}
			}
		}
	}
	return cells
}

// lookupsOf is what one column stands for: a tool that can tell, or all that
// cannot. Where repeating does no harm nobody needs to be asked, so there the
// one that can must change nothing.
func lookupsOf(class dispatch.Class, asks bool) []lookup {
	switch {
	case asks:
		return []lookup{telling}
	case class == dispatch.ReadOnly || class == dispatch.NaturallyIdempotent:
		return []lookup{nobody, mute, telling}
	}
	return []lookup{nobody, mute}
}

func (c cell) String() string { return fmt.Sprintf("%s %s meets %s", c.class, c.lookup, c.fault) }

func (c cell) tuple() dispatch.Tuple {
	return dispatch.Tuple{AgentRunID: "run-1", StepID: string(c.fault), ToolName: string(c.class) + "/" + string(c.lookup), BusinessScope: "matrix"}
}

func (c cell) key() string { return c.tuple().IdempotencyKey() }

// script is the faults of its requests: only the first meets one.
func (c cell) script() []dispatchtest.Fault {
	if c.fault == notSent {
		return nil
	}
	return []dispatchtest.Fault{c.fault}
}

// refusedAtFirst reports whether the first request proves that it had no
// effect, so that another one repeats nothing.
func (c cell) refusedAtFirst() bool {
	return slices.ContainsFunc([]string{"throttle", "unavailable", "overloaded"},
		func(refusal string) bool { return strings.HasPrefix(string(c.fault), refusal) })
}

// savesError reports whether a repetition brings the first request's error.
func (c cell) savesError() bool {
	return c.class == dispatch.KeyIdempotent && strings.HasPrefix(string(c.fault), "saved_error")
}
