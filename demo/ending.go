package demo

import (
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// What undoing makes of a step and of its run.
const (
	compensated        = "compensated"
	compensationFailed = "compensation_failed"
)

// saga is how the trip's saga ends, or "" if it has none.
func (t trip) saga() string {
	switch {
	case t.card != expiredCard:
		return ""
	case slices.Contains(t.kinds, ferry):
		return compensationFailed
	}
	return compensated
}

// ending is how a step of the trip ends. Bookings are undone from the newest
// on, down to what cannot be undone. The zero trip completes whatever it does.
func (t trip) ending(step string) string {
	position := slices.IndexFunc(t.kinds, func(kind string) bool { return bookStep(kind) == step })
	switch stuck := slices.Index(t.kinds, ferry); {
	case t.saga() == "" || position >= 0 && position < stuck:
		return string(dispatch.StatusCompleted)
	case step == payStep:
		return string(dispatch.StatusFailed)
	case step == bookStep(ferry):
		return compensationFailed
	}
	return compensated
}
