package drainer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// CredentialsRefused: the provider does not know this side, or not any more. Of a provider.
	CredentialsRefused OpenReason = "credentials_refused"
	// Forbidden: the provider does not let this side use an operation. Of an operation.
	Forbidden OpenReason = "forbidden"
	// Misconfigured: no intent could be rendered with this configuration yet. Of an operation.
	Misconfigured OpenReason = "misconfigured"
)

// refusalPause is how long a gate that is shut for these reasons waits for its next probe, and how
// long a refused row waits where its refusal does not shut the gate. A success speaks for the
// credentials as long: so a row that is refused again finds them without one, unless they work.
const refusalPause = time.Minute

// refusals tells refusals of this side from refusals of single intents, at one gate, as this
// process sees them. One row can be refused for what its agent wrote; then others succeed.
type refusals struct {
	trusts bool // a success of the last while speaks for this side; else it takes several runs at any time

	mu        sync.Mutex
	runs      []string      // refused since the last success, each once
	succeeded time.Time     // the last success
	times     map[int64]int // how often an intent was refused
}

const (
	enoughRuns     = 3    // refused with no success between: then it is not about their intents
	enoughTimes    = 3    // refused although others were not: then it is about the intent
	mostRemembered = 1024 // intents; those that are forgotten only wait once more
)

// consequence says what becomes of a row that was refused.
type consequence int

const (
	waits consequence = iota // and is tried again
	shuts                    // the gate, and waits for it
	fails                    // as what the provider refused for good
)

func (r *refusals) refused(now time.Time, row *Row) consequence {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := row.Tuple.AgentRunID; !slices.Contains(r.runs, run) {
		r.runs = append(r.runs, run)
	}
	if len(r.runs) >= enoughRuns || (r.trusts && now.Sub(r.succeeded) >= refusalPause) {
		r.runs = nil
		return shuts
	}
	if r.times == nil || len(r.times) >= mostRemembered {
		r.times = map[int64]int{}
	}
	r.times[row.IntentID]++
	if r.times[row.IntentID] < enoughTimes {
		return waits
	}
	delete(r.times, row.IntentID)
	return fails
}

func (r *refusals) success(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs, r.succeeded = nil, now
}

// rendering notes whether the configuration can make requests of an operation's intents. The proof is shared with
// the other workers, as the gate is.
type rendering struct {
	mu     sync.Mutex
	proven bool
	shared bool     // the store has the proof
	runs   []string // of which an intent could not be rendered
}

func (r *rendering) succeeded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proven, r.runs = true, nil
}

// share notes that the store has the proof.
func (r *rendering) share() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proven, r.shared, r.runs = true, true, nil
}

// isUnshared reports a proof that the store does not have.
func (r *rendering) isUnshared() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proven && !r.shared
}

func (r *rendering) isProven() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proven
}

// failed reports that it was so for several runs, and never otherwise.
func (r *rendering) failed(run string) (misconfigured bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.proven && len(r.runs) < enoughRuns && !slices.Contains(r.runs, run) {
		r.runs = append(r.runs, run)
	}
	return !r.proven && len(r.runs) >= enoughRuns
}

// attribute finds out whether a result speaks against this side or against its intent, which
// decides what becomes of the row, and what both mean for breakers.
func (u *upstream) attribute(ctx context.Context, row *Row, operation string, result dispatch.Result) (dispatch.Result, []BreakerChange) {
	of := u.operations[operation]
	switch {
	case result.Outcome == dispatch.CredentialsRefused:
		return u.credentialsRefused(row, result, operation)
	case result.Outcome == dispatch.Forbidden && of != nil:
		return u.forbidden(row, of, operation, result)
	case result.Unsent && result.ErrorClass == dispatch.Unrenderable && of != nil:
		return u.unrendered(ctx, row, of, result)
	}
	if of != nil && !result.Unsent {
		of.rendering.succeeded()
	}
	if result.Outcome == dispatch.Completed || result.Outcome == dispatch.Absent {
		now := time.Now()
		u.refusals.success(now)
		if of != nil {
			of.refusals.success(now)
		}
	}
	return result, u.record(row, operation, result)
}

func (u *upstream) credentialsRefused(row *Row, result dispatch.Result, operation string) (dispatch.Result, []BreakerChange) {
	changes := u.unproven(row) // of an operation: nothing was learned
	if row.Probe == u.provider.Name {
		changes = u.record(row, operation, result) // it lives
	}
	return u.refused(row, result, u.breaker, &u.refusals, CredentialsRefused, changes)
}

func (u *upstream) forbidden(row *Row, of *operation, operation string, result dispatch.Result) (dispatch.Result, []BreakerChange) {
	of.rendering.succeeded()
	changes := u.record(row, operation, result) // it lives, and knows this side
	return u.refused(row, result, of.breaker, &of.refusals, Forbidden, changes)
}

// refused keeps a gate shut that is shut for this reason and was tried. For any other gate one row can be refused for
// what its agent wrote: then the changes are those of an answer.
func (u *upstream) refused(row *Row, result dispatch.Result, gate *breaker, seen *refusals, reason OpenReason, changes []BreakerChange) (dispatch.Result, []BreakerChange) {
	end, tries := shuts, row.Probe == gate.name
	if !tries || !gate.isFor(reason) {
		end = seen.refused(time.Now(), row)
	}
	switch {
	case end == shuts && tries:
		return kept(result, fleetInterval), []BreakerChange{*gate.verdict(true, reason, refusalPause)}
	case end == shuts:
		if change := gate.open(reason, refusalPause); change != nil {
			changes = append(changes, *change)
		}
		return kept(result, fleetInterval), changes
	case end == fails:
		result.Outcome = dispatch.Rejected
		return result, changes
	}
	return kept(result, refusalPause), changes
}

// unrendered asks the store before it shuts anything: another worker may have the proof.
func (u *upstream) unrendered(ctx context.Context, row *Row, of *operation, result dispatch.Result) (dispatch.Result, []BreakerChange) {
	isProbe := row.Probe == of.breaker.name && of.breaker.isFor(Misconfigured)
	if !of.rendering.failed(row.Tuple.AgentRunID) && !isProbe {
		return result, u.unproven(row)
	}
	proven, err := u.canRender(ctx, of)
	switch {
	case err != nil:
		return unrenderedYet(result), u.unproven(row)
	case proven && isProbe: // a worker with another configuration shut it
		return result, []BreakerChange{*of.breaker.verdict(false, "", 0)}
	case proven:
		return result, u.unproven(row)
	case isProbe:
		return unrenderedYet(result), []BreakerChange{*of.breaker.verdict(true, Misconfigured, refusalPause)}
	}
	changes := u.unproven(row)
	if change := of.breaker.open(Misconfigured, refusalPause); change != nil {
		changes = append(changes, *change)
	}
	return unrenderedYet(result), changes
}

func (u *upstream) canRender(ctx context.Context, of *operation) (proven bool, err error) {
	if of.rendering.isProven() {
		return true, nil
	}
	if proven, err = u.isRendered(ctx, of.breaker.name); proven {
		of.rendering.share()
	}
	return proven, err
}

// kept lets a row that was refused wait for so long, or as long as the provider asks for.
func kept(result dispatch.Result, pause time.Duration) dispatch.Result {
	result.RetryAfter = max(result.RetryAfter, pause)
	return result
}

// unrenderedYet is the result of a row that waits for another configuration.
func unrenderedYet(result dispatch.Result) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Released, RetryAfter: fleetInterval, ErrorClass: result.ErrorClass, Unsent: true}
}

// refusedTooLong ends a row that waited for a gate which is shut for these reasons. It fails
// as it would have without the wait.
func refusedTooLong(row *Row, policy dispatch.Policy) Settlement {
	now := time.Now()
	policy.Lookup = nil // it would wait, too
	settlement := Settlement{
		Row:        row,
		FinishedAt: now,
		Result:     dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "misconfigured"},
		Decision:   policy.Halt(row.History(time.Time{}, now)),
	}
	settlement.setConsequences(policy)
	return settlement
}
