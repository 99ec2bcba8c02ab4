package compensations

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// action is what a pass does next.
type action int

const (
	wait   action = iota // for what is in flight, or an undo
	undo                 // enqueue the undo of the step
	mark                 // the step's undo completed, and nobody wrote it down
	fail                 // a human must undo the step
	finish               // nothing is left to undo
)

// decision is an action and the step that it is for.
type decision struct {
	action  action
	step    Step
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

// plan decides the next action of a saga, purely. Steps that stand open come
// first: a plan made before they ended would miss their effects. Then
// completed steps are undone, the newest first, one at a time.
func plan(steps []Step, policies Policies) decision {
	if slices.ContainsFunc(steps, isOpen) {
		return decision{action: wait}
	}
	newestFirst := slices.SortedFunc(slices.Values(steps), func(a, b Step) int { return cmp.Compare(b.IntentID, a.IntentID) })
	for _, step := range newestFirst {
		if decided, isNext := undoing(step, policies); isNext {
			return decided
		}
	}
	return decision{action: finish, step: newest(newestFirst)}
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
func undoing(step Step, policies Policies) (decision, bool) {
	policy, known := policies.of(step)
	switch {
	case step.Status != dispatch.StatusCompleted:
		return decision{}, false
	case step.Undo == dispatch.StatusCompleted:
		return decision{action: mark, step: step}, true
	case step.Undo != "" && !step.UndoEnded:
		return decision{action: wait}, true
	case step.Undo != "":
		return decision{action: fail, step: step, why: undoFailed}, true
	case !known: // here: a process with another file may know how it is undone
		return decision{action: wait, step: step, why: unknownTool}, true
	case policy.Class == dispatch.ReadOnly || policy.Reversal.None:
		return decision{}, false
	case policy.Reversal.Tool == "":
		return decision{action: fail, step: step, why: noReversal}, true
	case policy.Reversal.Window > 0 && step.Age > policy.Reversal.Window:
		return decision{action: fail, step: step, why: windowExpired}, true
	}
	return decision{action: undo, step: step, undo: policy.Reversal.Tool}, true
}
