package compensations

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Step is a forward intent of a run, and how far it is undone.
type Step struct {
	Effect
	IntentID  int64
	ServedBy  string // the fallback that completed it; empty for its own provider
	Status    dispatch.Status
	Age       time.Duration   // since it completed
	Undo      dispatch.Status // of its undo; empty before there is one
	UndoEnded bool
}

// What a step's status can be besides those that an attempt leaves.
const (
	statusInProgress         dispatch.Status = "in_progress"
	statusCompensated        dispatch.Status = "compensated"
	statusCompensationFailed dispatch.Status = "compensation_failed"
)

// servedAs names the tool that had the effect.
func (s Step) servedAs() string {
	if s.ServedBy == "" {
		return s.Tuple.ToolName
	}
	return s.ServedBy + "/" + s.Tuple.Operation()
}
