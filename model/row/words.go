package row

import (
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// Status and Outcome are those of package dispatch, as places in a list: small
// states make a fast search.
type (
	Status  uint8
	Outcome uint8
)

// statusCancelled is left by operators alone.
const statusCancelled dispatch.Status = "cancelled"

var (
	statuses = []dispatch.Status{
		"", // before the first attempt
		dispatch.StatusPending, dispatch.StatusCompleted, dispatch.StatusFailed, dispatch.StatusUnknown, statusCancelled,
	}
	outcomes = dispatch.Outcomes()
)

var (
	pending   = statusOf(dispatch.StatusPending)
	completed = statusOf(dispatch.StatusCompleted)
	failed    = statusOf(dispatch.StatusFailed)
	unknown   = statusOf(dispatch.StatusUnknown)
	cancelled = statusOf(statusCancelled)
)

func statusOf(status dispatch.Status) Status {
	place := slices.Index(statuses, status)
	if place < 0 {
		panic("the model does not know the status " + status)
	}
	return Status(place)
}

// Statuses are those that the model knows.
func Statuses() (known []string) {
	for _, status := range statuses[1:] {
		known = append(known, string(status))
	}
	return known
}

func outcomeOf(outcome dispatch.Outcome) Outcome { return Outcome(slices.Index(outcomes, outcome)) }

// Is is the status itself.
func (s Status) Is() dispatch.Status { return statuses[s] }

// Is is the outcome itself.
func (o Outcome) Is() dispatch.Outcome { return outcomes[o] }

func (s Status) String() string { return string(s.Is()) }

func (o Outcome) String() string { return string(o.Is()) }
