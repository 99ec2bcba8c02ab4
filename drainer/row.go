package drainer

import (
	"encoding/json"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Row is a claimed intent: what to do, and what its past says.
type Row struct {
	ClaimID  int64
	IntentID int64
	Attempt  int // the number of this attempt; only ever grows
	Tries    int // what MaxAttempts counts, including this attempt

	FirstAttemptAt *time.Time    // the database's clock; passed back untouched
	SinceFirstSend time.Duration // at the moment of the claim
	SinceEnqueue   time.Duration // at the moment of the claim
	SinceDue       time.Duration // at the moment of the claim
	MaybeApplied   bool
	Lookup         bool   // ask whether it was applied, do not act
	Probe          bool   // the one row that may pass a half-open breaker
	Closed         bool   // its run is being compensated: it must not be sent any more
	InSaga         bool   // its run is being compensated, or was
	Via            string // the fallback that is to serve it; empty for its own provider
	Undoes         *int64 // the intent whose effect this one undoes; nil for a forward step

	Tuple   dispatch.Tuple
	Payload json.RawMessage
	Headers map[string]string

	ProviderRef string // for a lookup: what an earlier attempt brought

	ClaimedAt time.Time // by this process's clock, to continue the durations above

	key   string        // once computed
	spans *attemptSpans // of this attempt, from its dispatch on; nil where nothing is traced
}

// server is the provider that is to serve the row: its own, or its fallback.
func (r *Row) server() string {
	if r.Via != "" {
		return r.Via
	}
	return r.Tuple.Provider()
}

// forgetIntent lets go of what was to be sent: outcomes may have to wait for a
// database that is away.
func (r *Row) forgetIntent() { r.Payload, r.Headers = nil, nil }

// idempotencyKey is computed once an attempt: it costs a digest.
func (r *Row) idempotencyKey() string {
	if r.key == "" {
		r.key = r.Tuple.IdempotencyKey()
	}
	return r.key
}

// History is what the row's past says at that time. It continues the durations
// that the database measured by this process's own clock, and never compares the
// two machines' clocks. startedAt counts as the first send if none came before.
func (r *Row) History(startedAt, at time.Time) dispatch.History {
	// Doubt without a first send is what retrying with --may-duplicate leaves.
	accepted := r.MaybeApplied && r.FirstAttemptAt == nil
	history := dispatch.History{Tries: r.Tries, MaybeApplied: r.MaybeApplied, Accepted: accepted, Lookup: r.Lookup}
	if !startedAt.IsZero() {
		history.SinceStart = between(startedAt, at)
	}
	switch {
	case r.FirstAttemptAt != nil:
		history.SinceFirstSend = r.SinceFirstSend + between(r.ClaimedAt, at)
	case !startedAt.IsZero():
		history.SinceFirstSend = history.SinceStart
	}
	return history
}

// Settlement is the end of one attempt: what was seen and what follows.
type Settlement struct {
	Row        *Row
	StartedAt  time.Time // zero if the attempt never started
	FinishedAt time.Time
	Result     dispatch.Result
	Decision   dispatch.Decision
	Breaker    *BreakerChange // what it means for the provider's breaker; nil for nothing
	BeginsSaga bool           // its run goes back from here
	Acts       bool           // its tool has an effect
	Repeats    bool           // a turn that failed may have settled it
}

// MayHaveSent reports whether the first-send time starts to count.
func (s *Settlement) MayHaveSent() bool {
	return !s.Row.Lookup && s.Result.Outcome != dispatch.NotSent && s.Result.Outcome != dispatch.Released
}
