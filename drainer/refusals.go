package drainer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// CredentialsRefused shuts a provider that does not accept the credentials (any more).
	CredentialsRefused OpenReason = "credentials_refused"
	// Forbidden shuts an operation that the provider does not permit with these credentials.
	Forbidden OpenReason = "forbidden"
	// Misconfigured shuts an operation for which no request could be rendered yet with this configuration.
	Misconfigured OpenReason = "misconfigured"
)

// refusalPause is how long a gate that is shut for these reasons waits for its next probe, and how long a refused row
// waits if its refusal does not shut the gate. A success also counts in favour of the credentials for
// that long: so when a row is refused again, only a newer success speaks for them.
const refusalPause = time.Minute

// refusals decides, for one gate and from what this process has seen, whether refusals are about the configuration or
// about single intents. A row that is refused because of its payload has others beside it that succeed.
type refusals struct {
	trusts bool // without a success within refusalPause, the first refusal shuts the gate; else it takes several runs

	mu        sync.Mutex
	runs      []string      // refused since the last success, each once
	succeeded time.Time     // the last success
	times     map[int64]int // how often an intent was refused
}

const (
	enoughRuns     = 3    // so many runs refused without a success between them: the cause is not their intents
	enoughTimes    = 3    // so many refusals of one intent while others succeed: the cause is the intent
	mostRemembered = 1024 // intents whose refusals are counted; a forgotten one only waits once more
)

// consequence says what happens to a refused row.
type consequence int

const (
	waits consequence = iota // it is tried again later
	shuts                    // it shuts the gate, and waits until that opens
	fails                    // it fails, as if the provider had rejected it
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

// rendering records whether requests of an operation can be rendered with this configuration. All workers share the
// proof, as they share the gate.
type rendering struct {
	mu     sync.Mutex
	proven bool
	shared bool     // the store has the proof
	runs   []string // runs of which an intent could not be rendered
}

func (r *rendering) succeeded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proven, r.runs = true, nil
}

// share records that the store has the proof.
func (r *rendering) share() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proven, r.shared, r.runs = true, true, nil
}

// isUnshared reports that there is a proof which the store does not have.
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

// failed records an intent that could not be rendered. It reports true once this was so for several runs, and no
// intent was ever rendered.
func (r *rendering) failed(run string) (misconfigured bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.proven && len(r.runs) < enoughRuns && !slices.Contains(r.runs, run) {
		r.runs = append(r.runs, run)
	}
	return !r.proven && len(r.runs) >= enoughRuns
}

// attribute decides whether a refusal is about the configuration or about the intent. It returns the result that holds
// for the row, and what it means for breakers.
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
	changes := u.unproven(row) // a probe of an operation has learned nothing
	if row.Probe == u.provider.Name {
		changes = u.record(row, operation, result) // the provider has answered
	}
	return u.refused(row, result, u.breaker, &u.refusals, CredentialsRefused, changes)
}

func (u *upstream) forbidden(row *Row, of *operation, operation string, result dispatch.Result) (dispatch.Result, []BreakerChange) {
	of.rendering.succeeded()
	changes := u.record(row, operation, result) // the provider has answered, and accepts the credentials
	return u.refused(row, result, of.breaker, &of.refusals, Forbidden, changes)
}

// refused keeps the gate shut if the row was the probe of a gate that is shut for this reason. For any other gate, the
// refusal may be about a single row's payload: then the changes are those of any answer.
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

// unrendered asks the store before it shuts the operation, since another worker may have rendered a request.
func (u *upstream) unrendered(ctx context.Context, row *Row, of *operation, result dispatch.Result) (dispatch.Result, []BreakerChange) {
	isProbe := row.Probe == of.breaker.name && of.breaker.isFor(Misconfigured)
	if !of.rendering.failed(row.Tuple.AgentRunID) && !isProbe {
		return result, u.unproven(row)
	}
	proven, err := u.canRender(ctx, of)
	switch {
	case err != nil:
		return unrenderedYet(result), u.unproven(row)
	case proven && isProbe: // a worker with another configuration had shut it
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

// kept makes a refused row wait for pause, or longer if the provider asks for that.
func kept(result dispatch.Result, pause time.Duration) dispatch.Result {
	result.RetryAfter = max(result.RetryAfter, pause)
	return result
}

// unrenderedYet is the result of a row that waits for a configuration with which it can be rendered.
func unrenderedYet(result dispatch.Result) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Released, RetryAfter: fleetInterval, ErrorClass: result.ErrorClass, Unsent: true}
}

// refusedTooLong ends a row that has waited too long for a gate which is shut for one of these reasons. It fails as it
// would have failed without the wait.
func refusedTooLong(row *Row, policy dispatch.Policy) Settlement {
	now := time.Now()
	policy.Lookup = nil // a lookup would have to wait as well
	settlement := Settlement{
		Row:        row,
		FinishedAt: now,
		Result:     dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "misconfigured"},
		Decision:   policy.Halt(row.History(time.Time{}, now)),
	}
	settlement.setConsequences(policy)
	return settlement
}
