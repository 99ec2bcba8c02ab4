package compensations

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	pending    = dispatch.StatusPending
	completed  = dispatch.StatusCompleted
	failed     = dispatch.StatusFailed
	unknown    = dispatch.StatusUnknown
	inProgress = statusInProgress
)

var shop = Policies{
	"shop": {
		"order":  {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{Tool: "shop/cancel"}},
		"hold":   {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{Tool: "shop/release", Window: time.Hour}},
		"notify": {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{None: true}},
		"read":   {Class: dispatch.ReadOnly},
		"ship":   {Class: dispatch.KeyIdempotent},
	},
	"backup": {"order": {Class: dispatch.KeyIdempotent, Reversal: dispatch.Reversal{Tool: "backup/cancel"}}},
}

func step(id int64, operation string, status dispatch.Status) Step {
	return Step{IntentID: id, Status: status, Effect: Effect{Tuple: dispatch.Tuple{ToolName: "shop/" + operation}}}
}

func (s Step) undone(status dispatch.Status, ended bool) Step {
	s.Undo, s.UndoEnded = status, ended
	return s
}

func (s Step) aged(age time.Duration) Step {
	s.Age = age
	return s
}

func (s Step) by(provider string) Step {
	s.ServedBy = provider
	return s
}

func TestThePlanOfASaga(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		steps  []Step
		action Action
		step   int64
		why    failure
		undo   string
	}{
		{name: "nothing happened", action: Finish},
		{name: "nothing but the failure", steps: []Step{step(1, "order", failed)}, action: Finish},
		{name: "the newest completed step is undone first", steps: []Step{step(1, "order", completed), step(3, "order", completed), step(2, "order", completed)}, action: Undo, step: 3, undo: "shop/cancel"},
		{name: "a waiting step comes first", steps: []Step{step(1, "order", completed), step(2, "order", pending)}, action: Wait},
		{name: "a step in flight comes first", steps: []Step{step(1, "order", completed), step(2, "order", inProgress)}, action: Wait},
		{name: "a step that nobody can tell comes first", steps: []Step{step(1, "order", unknown), step(2, "order", completed)}, action: Wait},
		{name: "one undo at a time", steps: []Step{step(1, "order", completed), step(2, "order", completed).undone(pending, false)}, action: Wait},
		{name: "an undo that is looked up", steps: []Step{step(1, "order", completed), step(2, "order", completed).undone(unknown, false)}, action: Wait},
		{name: "an undo that nobody wrote down", steps: []Step{step(1, "order", completed), step(2, "order", completed).undone(completed, true)}, action: Mark, step: 2},
		{name: "the next after an undone one", steps: []Step{step(1, "order", completed), step(2, "order", statusCompensated)}, action: Undo, step: 1, undo: "shop/cancel"},
		{name: "all undone", steps: []Step{step(1, "order", statusCompensated), step(2, "order", "cancelled"), step(3, "order", failed)}, action: Finish},
		{name: "an undo that failed", steps: []Step{step(1, "order", completed).undone(failed, true)}, action: Fail, step: 1, why: undoFailed},
		{name: "an undo that nobody can tell", steps: []Step{step(1, "order", completed).undone(unknown, true)}, action: Fail, step: 1, why: undoFailed},
		{name: "nothing to undo", steps: []Step{step(1, "notify", completed), step(2, "read", completed)}, action: Finish},
		{name: "nobody declared how", steps: []Step{step(1, "order", completed), step(2, "ship", completed)}, action: Fail, step: 2, why: noReversal},
		{name: "a tool that another process must know", steps: []Step{step(1, "gone", completed)}, action: Wait, step: 1, why: unknownTool},
		{name: "within its window", steps: []Step{step(1, "hold", completed).aged(59 * time.Minute)}, action: Undo, step: 1, undo: "shop/release"},
		{name: "past its window", steps: []Step{step(1, "hold", completed).aged(61 * time.Minute)}, action: Fail, step: 1, why: windowExpired},
		{name: "past its window, but its undo is under way", steps: []Step{step(1, "hold", completed).aged(61*time.Minute).undone(inProgress, false)}, action: Wait},
		{name: "whoever served it undoes it", steps: []Step{step(1, "order", completed).by("backup")}, action: Undo, step: 1, undo: "backup/cancel"},
	} {
		got := Plan(test.steps, shop)
		if got.Action != test.action || (got.Action != Finish && got.Step.IntentID != test.step) || got.why != test.why || got.undo != test.undo {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}
