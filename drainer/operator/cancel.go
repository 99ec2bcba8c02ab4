package operator

import "fmt"

// Cancel ends intents that wait and of which nothing can have been applied:
// cancelled is a promise that there was no effect.
type Cancel struct{}

func (Cancel) judge(s standing) (change, refusal) {
	switch {
	case s.inProgress():
		return change{}, refusedInProgress
	case s.Settled:
		return change{}, refusal("it is " + s.Status + " already; only what waits in the queue can be cancelled")
	case s.Saga != "" && s.isUndo():
		return change{}, refusal(fmt.Sprintf("it takes a step of its run back; to end that: drainer sagas resolve --intent %d", s.IntentID))
	case s.Saga != "":
		return change{}, "its run takes no further step; what still waits is cancelled by itself"
	case s.Lookup, s.MaybeApplied:
		return change{}, "an attempt may have been applied, and cancelled would say that none was; find out, then resolve it as completed or failed"
	}
	return change{outcome: "cancelled", status: "cancelled"}, ""
}
