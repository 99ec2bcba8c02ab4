package compensations

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// Action is what a pass does next.
type Action int

// What a pass can do.
const (
	Wait   Action = iota // for what is in flight, or an undo
	Undo                 // enqueue the undo of the step
	Mark                 // the step's undo completed, and nobody wrote it down
	Fail                 // a human must undo the step
	Finish               // nothing is left to undo
)

// Decision is an action and the step that it is for.
type Decision struct {
	Action  Action
	Step    Step
	why     failure         // where it fails
	undo    string          // the tool
	payload json.RawMessage // of the undo
}

// failure says why a step cannot be undone; it is also the incident's detail.
type failure string

const (
	noReversal    failure = "no_reversal"             // nobody declared how
	windowExpired failure = "reversal_window_expired" // it is too late
	undoFailed    failure = "undo_failed"             // the undo ended otherwise than well
	unknownTool   failure = "unconfigured_tool"       // the saga waits for a process that knows the tool
	// A MappingError says why the undo's payload could not be made.
)

// incident is the kind under which a human hears of it.
func (f failure) incident() string {
	if f == windowExpired {
		return "reversal_window_expired"
	}
	return "compensation_failed"
}

// Plan decides the next action of a saga, purely. Steps that stand open come
// first: a plan made before they ended would miss their effects. Then
// completed steps are undone, the newest first, one at a time.
func Plan(steps []Step, policies Policies) Decision {
	if slices.ContainsFunc(steps, isOpen) {
		return Decision{Action: Wait}
	}
	newestFirst := slices.SortedFunc(slices.Values(steps), func(a, b Step) int { return cmp.Compare(b.IntentID, a.IntentID) })
	for _, step := range newestFirst {
		if decided, isNext := undoing(step, policies); isNext {
			return decided
		}
	}
	return Decision{Action: Finish, Step: newest(newestFirst)}
}

func newest(newestFirst []Step) Step {
	if len(newestFirst) == 0 {
		return Step{}
	}
	return newestFirst[0]
}

// isOpen holds for a step of which more is to come: from the queue, a worker,
// a lookup or, where nobody can tell, a human.
func isOpen(step Step) bool {
	return step.Status == dispatch.StatusPending || step.Status == statusInProgress || step.Status == dispatch.StatusUnknown
}

// undoing decides about one step; it reports false for a step that needs no
// undo, or has it behind it.
func undoing(step Step, policies Policies) (Decision, bool) {
	policy, known := policies.of(step)
	switch {
	case step.Status != dispatch.StatusCompleted:
		return Decision{}, false
	case step.Undo == dispatch.StatusCompleted:
		return Decision{Action: Mark, Step: step}, true
	case step.Undo != "" && !step.UndoEnded:
		return Decision{Action: Wait}, true
	case step.Undo != "":
		return Decision{Action: Fail, Step: step, why: undoFailed}, true
	case !known: // here: a process with another file may know how it is undone
		return Decision{Action: Wait, Step: step, why: unknownTool}, true
	case policy.Class == dispatch.ReadOnly || policy.Reversal.None:
		return Decision{}, false
	case policy.Reversal.Tool == "":
		return Decision{Action: Fail, Step: step, why: noReversal}, true
	case policy.Reversal.Window > 0 && step.Age > policy.Reversal.Window:
		return Decision{Action: Fail, Step: step, why: windowExpired}, true
	}
	return Decision{Action: Undo, Step: step, undo: policy.Reversal.Tool}, true
}
