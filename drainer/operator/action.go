package operator

import (
	"strings"
	"time"
)

// Action is a change that an operator asks for: [Retry], [Cancel] or
// [Resolve].
type Action interface {
	// judge is pure: it says what becomes of an intent, or why nothing does.
	judge(standing) (change, refusal)
}

// standing is all that is known of one intent when an action is decided.
type standing struct {
	IntentID      int64
	AgentRunID    string
	StepID        string
	ToolName      string
	BusinessScope string
	Status        string

	Attempt      int  // the newest number used
	Queued       bool // waits in the queue
	Settled      bool // what is neither queued nor settled is in progress
	Lookup       bool // what waits is a question to the provider
	MaybeApplied bool
	LastOutcome  string
	ProviderRef  string
	Saga         string // where that of its run stands; empty: there is none

	Via               string // the fallback that may have applied it; empty for its own provider
	FirstAttemptAt    *time.Time
	SecondsSinceFirst float64
}

func (s standing) isUndo() bool { return strings.HasPrefix(s.StepID, undoPrefix) }

func (s standing) inProgress() bool { return !s.Queued && !s.Settled }

func (s standing) sinceFirst() time.Duration {
	return time.Duration(s.SecondsSinceFirst * float64(time.Second))
}

// change is the entry that an action appends to an intent's history.
type change struct {
	outcome     string
	status      string
	providerRef string
	requeue     *requeue // nil: the intent is settled
}

// requeue is what a row goes back into the queue with.
type requeue struct {
	firstAttemptAt *time.Time
	maybeApplied   bool
	via            string
	lookup         bool // ask whether it was applied, before anything is sent
}

// refusal says why an action is not taken, and what can be done instead; empty
// for none.
type refusal string

const refusedInProgress refusal = "it is in progress; wait until the attempt has ended, or pause its provider and try again then"

// Verdict is what an action did to one intent, or would do.
type Verdict struct {
	IntentID      int64  `json:"intent_id"`
	AgentRunID    string `json:"agent_run_id"`
	StepID        string `json:"step_id"`
	ToolName      string `json:"tool_name"`
	BusinessScope string `json:"business_scope"`
	Before        string `json:"status_before"`
	After         string `json:"status_after"` // as before, if refused
	Outcome       string `json:"outcome,omitempty"`
	Refused       string `json:"refused,omitempty"` // why nothing changes
	Saga          string `json:"saga,omitempty"`    // where that of its run stands
}

func verdictOn(s standing, c change, r refusal) Verdict {
	verdict := Verdict{
		IntentID: s.IntentID, AgentRunID: s.AgentRunID, StepID: s.StepID, ToolName: s.ToolName, BusinessScope: s.BusinessScope,
		Before: s.Status, After: c.status, Outcome: c.outcome, Saga: s.Saga,
	}
	if r != "" {
		verdict.refuse(r)
	}
	return verdict
}

// IsUndo tells an undo from a step that an agent took.
func (v Verdict) IsUndo() bool { return strings.HasPrefix(v.StepID, undoPrefix) }

func (v *Verdict) refuse(r refusal) { v.After, v.Outcome, v.Refused = v.Before, "", string(r) }
