package drainer

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

var (
	unauthorized = dispatch.Result{Outcome: dispatch.CredentialsRefused, HTTPStatus: 401, ErrorClass: "http_401"}
	denied       = dispatch.Result{Outcome: dispatch.Forbidden, HTTPStatus: 403, ErrorClass: "http_403"}
	unrenderable = dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: dispatch.Unrenderable, Unsent: true}
)

// rowOf returns the row of a run that has one step.
func rowOf(run int) *Row {
	return &Row{IntentID: int64(run), Tuple: dispatch.Tuple{AgentRunID: fmt.Sprint("run-", run), ToolName: "sim/act"}}
}

// probing returns the row as the probe of a gate.
func probing(row *Row, gate string) *Row {
	row.Probe = gate
	return row
}

func isShut(u *upstream) (provider, operation bool) {
	return u.breaker.passage() == passNothing, u.operations["act"].breaker.passage() == passNothing
}

func TestTheFirst401ShutsAProviderWhoseCredentialsHaveServedNobodyLately(t *testing.T) {
	t.Parallel()
	u := threeStrikes()
	result, changes := u.attribute(t.Context(), rowOf(1), "act", unauthorized)
	want := "[{Gate:sim Open:true Reason:credentials_refused For:1m0s Probe:false}]"
	if got := fmt.Sprintf("%+v", changes); got != want {
		t.Errorf("it says %s, want %s", got, want)
	}
	if provider, operation := isShut(u); !provider || operation {
		t.Errorf("the provider is shut %v and the operation %v", provider, operation)
	}
	decision := dispatch.Policy{Class: dispatch.NonIdempotent, MaxAttempts: 1}.Decide(dispatch.History{Tries: 1}, result, 0)
	if decision.Status != dispatch.StatusPending || decision.Tries != 0 || decision.Delay > fleetInterval {
		t.Errorf("the row is %+v, want it to wait for the gate without a try", decision)
	}
}

func TestARefusalOfSomeRunsShutsNothingWhileOthersSucceed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		refusal             dispatch.Result
		provider, operation bool // whether refusals of three runs shut it
	}{{unauthorized, true, false}, {denied, false, true}} {
		u := threeStrikes()
		u.attribute(t.Context(), rowOf(9), "act", healthy)
		for run := range 21 { // of each three runs, two are refused
			refusal := test.refusal
			if run%3 == 2 {
				refusal = healthy
			}
			result, _ := u.attribute(t.Context(), rowOf(run), "act", refusal)
			if refusal.Outcome != dispatch.Completed && (result.Outcome != refusal.Outcome || result.RetryAfter != time.Minute) {
				t.Errorf("%s: the row is %+v, want it to wait a minute", refusal.ErrorClass, result)
			}
		}
		for range 2 { // the same run again
			u.attribute(t.Context(), rowOf(30), "act", test.refusal)
		}
		if provider, operation := isShut(u); provider || operation {
			t.Errorf("%s: shut are the provider %v and the operation %v", test.refusal.ErrorClass, provider, operation)
		}
		for run := range 3 {
			u.attribute(t.Context(), rowOf(40+run), "act", test.refusal)
		}
		if provider, operation := isShut(u); provider != test.provider || operation != test.operation {
			t.Errorf("%s of three runs: shut are the provider %v and the operation %v", test.refusal.ErrorClass, provider, operation)
		}
	}
}

// A provider may refuse a row because of the payload that an agent wrote.
func TestARowThatIsRefusedAgainAndAgainWhileOthersSucceedFailsAlone(t *testing.T) {
	t.Parallel()
	for _, refusal := range []dispatch.Result{unauthorized, denied} {
		u := threeStrikes()
		for refused, want := range []dispatch.Outcome{refusal.Outcome, refusal.Outcome, dispatch.Rejected} {
			u.attribute(t.Context(), rowOf(1), "act", healthy)
			if result, _ := u.attribute(t.Context(), rowOf(2), "act", refusal); result.Outcome != want || result.ErrorClass != refusal.ErrorClass {
				t.Errorf("%s: refusal %d makes %+v, want %s", refusal.ErrorClass, refused+1, result, want)
			}
		}
		if provider, operation := isShut(u); provider || operation {
			t.Errorf("%s: shut are the provider %v and the operation %v", refusal.ErrorClass, provider, operation)
		}
	}
}

func TestOneRowIsEnoughOnceASuccessIsAMinuteOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := threeStrikes()
		u.attribute(t.Context(), rowOf(1), "act", healthy)
		u.attribute(t.Context(), rowOf(2), "act", unauthorized)
		if provider, _ := isShut(u); provider {
			t.Error("the provider is shut although another row has just been accepted")
		}
		time.Sleep(time.Minute) // as long as the row waits
		u.attribute(t.Context(), rowOf(2), "act", unauthorized)
		if provider, _ := isShut(u); !provider {
			t.Error("the provider is not shut")
		}
	})
}

func TestAProbeSaysWhetherThisSideIsStillRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gate   string
		reason OpenReason // why it is shut
		result dispatch.Result
		want   string
	}{
		"still a 401":          {"sim", CredentialsRefused, unauthorized, "[{Gate:sim Open:true Reason:credentials_refused For:1m0s Probe:true}]"},
		"a 200":                {"sim", CredentialsRefused, healthy, "[{Gate:sim Open:false Reason: For:10s Probe:true}]"},
		"a 422":                {"sim", CredentialsRefused, dispatch.Result{Outcome: dispatch.Rejected, HTTPStatus: 422}, "[{Gate:sim Open:false Reason: For:10s Probe:true}]"},
		"a 403 knows us":       {"sim", CredentialsRefused, denied, "[{Gate:sim Open:false Reason: For:10s Probe:true}]"},
		"no answer":            {"sim", CredentialsRefused, dispatch.Result{Outcome: dispatch.NotSent}, "[{Gate:sim Open:true Reason: For:10s Probe:true}]"},
		"still a 403":          {"sim/act", Forbidden, denied, "[{Gate:sim/act Open:true Reason:forbidden For:1m0s Probe:true}]"},
		"a 403 to an outage":   {"sim/act", FailureRate, denied, "[{Gate:sim/act Open:false Reason: For:10s Probe:true}]"},
		"a 401 to an outage":   {"sim", Overloaded, unauthorized, "[{Gate:sim Open:true Reason:credentials_refused For:1m0s Probe:true}]"}, // nothing has succeeded
		"permitted":            {"sim/act", Forbidden, healthy, "[{Gate:sim/act Open:false Reason: For:10s Probe:true}]"},
		"permitted, but slow":  {"sim/act", Forbidden, dispatch.Result{Outcome: dispatch.Ambiguous}, "[{Gate:sim/act Open:true Reason:failure_rate For:10s Probe:true}]"},
		"still not rendered":   {"sim/act", Misconfigured, unrenderable, "[{Gate:sim/act Open:true Reason:misconfigured For:1m0s Probe:true}]"},
		"rendered and refused": {"sim/act", Misconfigured, dispatch.Result{Outcome: dispatch.Rejected, HTTPStatus: 422}, "[{Gate:sim/act Open:false Reason: For:10s Probe:true}]"},
		"a 401 of an operation": {
			"sim/act", Forbidden, unauthorized,
			"[{Gate:sim/act Open:true Reason: For:0s Probe:true} {Gate:sim Open:true Reason:credentials_refused For:1m0s Probe:false}]",
		},
	} {
		u := threeStrikes()
		shut := Gate{Name: test.gate, Breaker: BreakerHalfOpen, Reason: test.reason}
		if test.gate == "sim" {
			u.applyGate(shut)
		} else {
			u.applyOperationGates(map[string]Gate{test.gate: shut})
		}
		result, changes := u.attribute(t.Context(), probing(rowOf(1), test.gate), "act", test.result)
		if got := fmt.Sprintf("%+v", changes); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		if refused := test.result.Outcome.RefusesUs() || test.result.Unsent; refused {
			if decision := (dispatch.Policy{MaxAttempts: 1}).Decide(dispatch.History{Tries: 1}, result, 0); decision.Status != dispatch.StatusPending || decision.Tries != 0 {
				t.Errorf("%s: the row that tried is %+v", name, decision)
			}
		}
	}
}

// The probe may be refused because of the payload that its agent wrote.
func TestARefusalThatTriesAnOutageShutsNothingByItself(t *testing.T) {
	t.Parallel()
	for gate, test := range map[string]struct {
		reason  OpenReason
		refusal dispatch.Result
		last    string
	}{
		"sim":     {Overloaded, unauthorized, "[{Gate:sim Open:true Reason:credentials_refused For:1m0s Probe:true}]"},
		"sim/act": {FailureRate, denied, "[{Gate:sim/act Open:true Reason:forbidden For:1m0s Probe:true}]"},
	} {
		u := threeStrikes()
		u.attribute(t.Context(), rowOf(9), "act", healthy)
		for run, want := range []string{"[{Gate:" + gate + " Open:false Reason: For:10s Probe:true}]", "[{Gate:" + gate + " Open:false Reason: For:10s Probe:true}]", test.last} {
			shut := Gate{Name: gate, Breaker: BreakerHalfOpen, Reason: test.reason}
			u.applyGate(shut)
			u.applyOperationGates(map[string]Gate{gate: shut})
			if _, changes := u.attribute(t.Context(), probing(rowOf(run), gate), "act", test.refusal); fmt.Sprintf("%+v", changes) != want {
				t.Errorf("%s, refusal %d: %+v, want %s", gate, run+1, changes, want)
			}
		}
	}
}

func TestAnOperationOfWhichNothingWasRenderedIsMisconfiguredAfterThreeRuns(t *testing.T) {
	t.Parallel()
	u := threeStrikes()
	for _, run := range []int{1, 2, 2} {
		if result, changes := u.attribute(t.Context(), rowOf(run), "act", unrenderable); result.Outcome != dispatch.Rejected || len(changes) != 0 {
			t.Errorf("run %d: %+v and %+v, want its payload to fail alone", run, result, changes)
		}
	}
	result, changes := u.attribute(t.Context(), rowOf(3), "act", unrenderable)
	want := "[{Gate:sim/act Open:true Reason:misconfigured For:1m0s Probe:false}]"
	if got := fmt.Sprintf("%+v", changes); result.Outcome != dispatch.Released || got != want {
		t.Errorf("the third run: %+v and %s, want it to wait and %s", result, got, want)
	}
}

func TestPayloadsCannotShutAnOperationThatWasEverRendered(t *testing.T) {
	t.Parallel()
	u := threeStrikes()
	u.attribute(t.Context(), rowOf(1), "act", dispatch.Result{Outcome: dispatch.Ambiguous})
	for run := range 10 {
		if result, changes := u.attribute(t.Context(), rowOf(run), "act", unrenderable); result.Outcome != dispatch.Rejected || len(changes) != 0 {
			t.Errorf("%+v and %+v, want its payload to fail alone", result, changes)
		}
	}
}

// All workers share the gate, so they share the proof as well.
func TestPayloadsCannotShutAnOperationThatAnotherWorkerHasRendered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		proven bool
		err    error
		result dispatch.Outcome // of the third run's row, and then of the row that probes the operation
		shuts  string
		probe  string
	}{
		"no worker has rendered it": {false, nil, dispatch.Released, "[{Gate:sim/act Open:true Reason:misconfigured For:1m0s Probe:false}]", "[{Gate:sim/act Open:true Reason:misconfigured For:1m0s Probe:true}]"},
		"another worker has":        {true, nil, dispatch.Rejected, "[]", "[{Gate:sim/act Open:false Reason: For:10s Probe:true}]"},
		"the database is away":      {false, context.DeadlineExceeded, dispatch.Released, "[]", "[{Gate:sim/act Open:true Reason: For:0s Probe:true}]"},
	} {
		u := threeStrikes()
		u.isRendered = func(context.Context, string) (bool, error) { return test.proven, test.err }
		var result dispatch.Result
		var changes []BreakerChange
		for run := range 3 {
			result, changes = u.attribute(t.Context(), rowOf(run), "act", unrenderable)
		}
		if got := fmt.Sprintf("%+v", changes); result.Outcome != test.result || got != test.shuts {
			t.Errorf("%s: the third run is %s and %s, want it %s and %s", name, result.Outcome, got, test.result, test.shuts)
		}
		u.applyOperationGates(map[string]Gate{"sim/act": {Name: "sim/act", Breaker: BreakerHalfOpen, Reason: Misconfigured}})
		result, changes = u.attribute(t.Context(), probing(rowOf(4), "sim/act"), "act", unrenderable)
		if got := fmt.Sprintf("%+v", changes); result.Outcome != test.result || got != test.probe {
			t.Errorf("%s: the probe is %s and %s, want it %s and %s", name, result.Outcome, got, test.result, test.probe)
		}
	}
}

// silentStore never answers.
type silentStore struct {
	Store
	probeFor *time.Duration // the last one that was requested
}

func (s silentStore) TryOperation(ctx context.Context, _, _ string, probeFor time.Duration) (bool, error) {
	*s.probeFor = probeFor
	<-ctx.Done()
	return true, ctx.Err()
}

func (silentStore) IsRendered(ctx context.Context, _, _ string) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

func TestAQuestionWhetherAnotherWorkerRenderedItEndsWithTheSending(t *testing.T) {
	t.Parallel()
	u := threeStrikes()
	u.isRendered = (&session{store: silentStore{}}).isRendered
	ended, end := context.WithCancelCause(t.Context())
	end(errShutdown)
	began := time.Now()
	for run := range 3 {
		u.attribute(ended, rowOf(run), "act", unrenderable)
	}
	if time.Since(began) >= batchTimeout {
		t.Error("the shutdown waited for the database")
	}
}

func TestWhatWaitedTooLongForOtherCredentialsFailsAsItWouldHave(t *testing.T) {
	t.Parallel()
	policy := dispatch.Policy{BeginsSaga: true, Lookup: &dispatch.Lookup{Operation: "find"}}
	if ended := refusedTooLong(rowOf(1), policy); ended.Decision.Status != dispatch.StatusFailed || !ended.BeginsSaga {
		t.Errorf("a row that was never sent: %+v", ended.Decision)
	}
	inDoubt := rowOf(1)
	inDoubt.MaybeApplied, inDoubt.Lookup = true, true
	if ended := refusedTooLong(inDoubt, policy); ended.Decision.Status != dispatch.StatusUnknown || ended.Decision.Back() || ended.BeginsSaga {
		t.Errorf("a row in doubt: %+v", ended.Decision)
	}
}

func TestTheWaitForOtherCredentialsTakesNothingOffAKeysLife(t *testing.T) {
	t.Parallel()
	for outcome, counts := range map[dispatch.Outcome]bool{dispatch.CredentialsRefused: false, dispatch.Forbidden: true, dispatch.Rejected: true} {
		settlement := Settlement{Row: rowOf(1), Result: dispatch.Result{Outcome: outcome}}
		if settlement.MayHaveSent() != counts {
			t.Errorf("%s: the key's life begins %v, want %v", outcome, !counts, counts)
		}
	}
}
