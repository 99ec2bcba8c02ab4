package operator

import (
	"errors"
	"fmt"

	"github.com/agentoutbox/drainer/dispatch"
)

// Resolve settles what nobody but a human can tell, by what the human found
// out. It does not overrule a provider that reported completion.
type Resolve struct {
	As          dispatch.Status // StatusCompleted or StatusFailed
	ProviderRef string          // the effect's name at the provider, if known
}

// ErrResolution says that an intent cannot be resolved like that.
var ErrResolution = errors.New("an intent is resolved as completed or as failed, and only a completed one has a provider reference, of one line of plain text")

// Validate checks what does not depend on an intent.
func (r Resolve) Validate() error {
	switch {
	case !isLine(r.ProviderRef):
		return ErrResolution
	case r.As == dispatch.StatusCompleted, r.As == dispatch.StatusFailed && r.ProviderRef == "":
		return nil
	}
	return ErrResolution
}

const resolved = "resolved"

func (r Resolve) judge(s standing) (change, refusal) {
	resolution := change{outcome: resolved, status: string(r.As), providerRef: r.ProviderRef}
	switch {
	case s.inProgress():
		return change{}, refusedInProgress
	case s.Queued && !s.Lookup && !s.MaybeApplied:
		return change{}, "it waits, and nothing of it can have been applied; cancel it instead"
	case s.Saga != "" && s.Status != string(dispatch.StatusUnknown):
		return change{}, r.refuseInSaga(s)
	case s.Queued:
		return resolution, ""
	}
	return resolution, r.refuseSettled(s)
}

func (Resolve) refuseInSaga(s standing) refusal {
	switch {
	case s.Status == "compensation_failed":
		return refusal(fmt.Sprintf("its undo failed; if you undid it by hand: drainer sagas retry --intent %[1]d --undone %[1]d", s.IntentID))
	case s.Saga == "cancelled":
		return "its run was cancelled; of such a run only unknown intents can be resolved"
	}
	return "its run is being compensated, or was; of such a run only unknown intents can be resolved"
}

func (r Resolve) refuseSettled(s standing) refusal {
	switch dispatch.Status(s.Status) {
	case dispatch.StatusUnknown:
		return ""
	case r.As:
		if s.LastOutcome == resolved && r.ProviderRef != "" && r.ProviderRef != s.ProviderRef {
			return ""
		}
		return refusal("it is " + s.Status + " already")
	case dispatch.StatusFailed:
		return ""
	case dispatch.StatusCompleted:
		if s.LastOutcome == resolved {
			return ""
		}
		return "its provider reported that it is completed; only what an operator resolved can be resolved otherwise"
	}
	return refusal("it is " + s.Status + "; only unknown and failed intents, and those that wait and may have been applied, can be resolved")
}
