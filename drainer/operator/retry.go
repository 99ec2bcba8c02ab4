package operator

import (
	"cmp"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Retry puts settled intents back into the queue, due now, under the same key
// and with all their tries. An effect that may have happened already is
// repeated only where the provider still recognises the key.
type Retry struct {
	// MayDuplicate accepts a second effect where nothing rules it out. The
	// doubt stays: a refusal afterwards proves nothing about the first effect.
	MayDuplicate bool
	// PolicyOf finds what the configuration promises about a provider's
	// operation; nil if there is no configuration.
	PolicyOf func(provider, operation string) (dispatch.Policy, bool)
}

func (r Retry) judge(s standing) (change, refusal) {
	switch {
	case s.inProgress():
		return change{}, refusedInProgress
	case s.Queued && s.Lookup:
		return change{}, "its lookup waits to ask the provider; let it, or resolve the intent"
	case s.Queued:
		return change{}, "it waits in the queue already"
	case s.Saga != "":
		return change{}, r.inSaga(s)
	}
	switch s.Status {
	case "failed", "unknown", "cancelled":
		return r.again(s)
	case "completed":
		return change{}, "it is completed; for a second effect enqueue it under another step_id or business_scope"
	}
	return change{}, refusal("it is " + s.Status + "; only failed, unknown and cancelled intents can be retried")
}

// inSaga names the way in which such an intent goes on.
func (Retry) inSaga(s standing) refusal {
	switch {
	case s.Saga == "compensation_failed" && (s.isUndo() || s.Status == "compensation_failed"):
		return refusal(fmt.Sprintf("its run is being compensated: drainer sagas retry --intent %d", s.IntentID))
	case s.Saga == "begun" && s.Status == "unknown":
		return refusal(fmt.Sprintf("its saga waits for it: resolve it, drainer intents resolve %d", s.IntentID))
	case s.Saga == "cancelled":
		return "its run was cancelled and stays closed; start a new run"
	}
	return "its run is being compensated, or was, and stays closed; start a new run"
}

func (r Retry) again(s standing) (change, refusal) {
	back := change{outcome: "retried", status: "pending", requeue: &requeue{firstAttemptAt: s.FirstAttemptAt}}
	if s.MaybeApplied {
		back.requeue.maybeApplied, back.requeue.via = true, s.Via
	}
	danger := r.danger(s)
	switch {
	case danger == "":
		return back, ""
	case !r.MayDuplicate:
		return change{}, refusal("it may have been applied, and " + danger +
			"; find out and resolve it, or accept a second effect with --may-duplicate")
	}
	// The engine sends what may have been applied only until half of the key's
	// life is over. Accepting a duplicate starts that clock anew.
	back.outcome, back.requeue.firstAttemptAt = "retried_may_duplicate", nil
	return back, ""
}

// danger says why repeating could have a second effect; empty if it cannot.
func (r Retry) danger(s standing) string {
	if !s.MaybeApplied {
		return ""
	}
	if r.PolicyOf == nil {
		return "without --config nobody knows whether repeating it is safe"
	}
	tool := dispatch.Tuple{ToolName: s.ToolName}
	policy, known := r.PolicyOf(cmp.Or(s.Via, tool.Provider()), tool.Operation())
	switch {
	case !known:
		return "the configuration does not know its tool"
	case policy.Class == dispatch.NonIdempotent:
		return "its tool is non_idempotent: repeating does it again"
	case !policy.MayStillSend(dispatch.History{MaybeApplied: true, SinceFirstSend: s.sinceFirst()}):
		return fmt.Sprintf("its provider may have forgotten the key: it was first sent %s ago, and half of the key's ttl is %s",
			s.sinceFirst().Round(time.Second), policy.KeyTTL/2)
	}
	return ""
}
