package conformance

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// Situation is how a counterpart behaves towards requests.
type Situation string

const (
	// Answering is how a counterpart starts, and how it recovers: it takes a
	// request and says that it is done.
	Answering Situation = "answering"
	// Unreachable: nobody is there. What was connected is cut off.
	Unreachable Situation = "unreachable"
	// Throttling: it refuses for now, without an effect.
	Throttling Situation = "throttling"
	// Rejecting: it refuses for good, without an effect.
	Rejecting Situation = "rejecting"
	// Severing: it takes the request and hangs up without an answer.
	Severing Situation = "severing"
	// Busy: it says that it is still at an earlier attempt under the same key.
	Busy Situation = "busy"
	// Silent: it takes the request and never answers.
	Silent Situation = "silent"
	// Babbling: it takes the request and answers with what is no answer of
	// the protocol.
	Babbling Situation = "babbling"
	// Forbidden is made by the kit, and no counterpart enters it: the network
	// refuses every connection with [dispatch.ErrEgressRefused]. Only an
	// adapter that makes no TCP connection can be excused.
	Forbidden Situation = "forbidden"
)

// Situations lists those that an adapter is tried in, or excused from.
func Situations() []Situation {
	return []Situation{Unreachable, Throttling, Rejecting, Severing, Busy, Silent, Babbling, Forbidden}
}

// evidence is what an adapter must make of a situation that it meets on a
// working connection. A request to somebody who has just gone may have got as
// far as the kernel, so there is room for doubt.
var evidence = map[Situation][]dispatch.Outcome{
	Unreachable: {dispatch.NotSent, dispatch.Ambiguous},
	Throttling:  {dispatch.Throttled},
	Rejecting:   {dispatch.Rejected},
	Severing:    {dispatch.Ambiguous},
	Busy:        {dispatch.InFlight},
	Silent:      {dispatch.Ambiguous},
	Babbling:    {dispatch.Ambiguous},
}

// checkExcuses wants a reason for each situation that is left out.
func checkExcuses(excuses map[Situation]string) Check {
	var problems []error
	for _, situation := range slices.Sorted(maps.Keys(excuses)) {
		switch {
		case !slices.Contains(Situations(), situation):
			problems = append(problems, fmt.Errorf("%q is no situation that can be excused", situation))
		case excuses[situation] == "":
			problems = append(problems, fmt.Errorf("%s is excused without a reason", situation))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return found("excuses", false, err.Error(), "a reason for each situation that the protocol does not know", "fill in Subject.Cannot, or let the counterpart enter it")
	}
	return found("excuses", true, fmt.Sprintf("%d of %d situations", len(excuses), len(Situations())), "a reason for each situation that the protocol does not know", "")
}
