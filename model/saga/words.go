package saga

import (
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// Status is a place in a list: small states make a fast search.
type Status uint8

// Statuses that no attempt of a worker leaves.
const (
	statusInProgress         dispatch.Status = "in_progress"
	statusCancelled          dispatch.Status = "cancelled"
	statusCompensated        dispatch.Status = "compensated"
	statusCompensationFailed dispatch.Status = "compensation_failed"
)

var statuses = []dispatch.Status{
	dispatch.StatusPending, dispatch.StatusCompleted, dispatch.StatusFailed, dispatch.StatusUnknown,
	statusCancelled, statusCompensated, statusCompensationFailed,
}

var (
	pending     = statusOf(dispatch.StatusPending)
	completed   = statusOf(dispatch.StatusCompleted)
	failed      = statusOf(dispatch.StatusFailed)
	unknown     = statusOf(dispatch.StatusUnknown)
	cancelled   = statusOf(statusCancelled)
	compensated = statusOf(statusCompensated)
	notUndone   = statusOf(statusCompensationFailed)
)

func statusOf(status dispatch.Status) Status {
	place := slices.Index(statuses, status)
	if place < 0 {
		panic("the model does not know the status " + status)
	}
	return Status(place)
}

// Is is the status itself.
func (s Status) Is() dispatch.Status { return statuses[s] }

func (s Status) String() string { return string(s.Is()) }

// Statuses are those that the model knows.
func Statuses() (known []string) {
	for _, status := range statuses {
		known = append(known, string(status))
	}
	return known
}
