package dispatch_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// asking is a policy whose provider can be asked.
func asking(class dispatch.Class) dispatch.Policy {
	p := policy(class)
	p.Timeout = 30 * time.Second
	p.Lookup = &dispatch.Lookup{Operation: "find", Margin: 10 * time.Second}
	return p
}

func TestDoubtThatEndsTheAttemptsIsLookedUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		class   dispatch.Class
		history dispatch.History
		result  dispatch.Result
		want    dispatch.Decision
	}{
		{
			"an ambiguous attempt at what must not be repeated", dispatch.NonIdempotent,
			dispatch.History{Tries: 1, SinceStart: 5 * time.Second},
			dispatch.Result{Outcome: dispatch.Ambiguous},
			dispatch.Decision{Status: unknown, Lookup: true, Delay: 35 * time.Second, Tries: 1, MaybeApplied: true},
		},
		{
			"a lost worker may have sent until a moment ago", dispatch.NonIdempotent,
			dispatch.History{Tries: 1, SinceStart: time.Hour},
			dispatch.Result{Outcome: dispatch.Lost},
			dispatch.Decision{Status: unknown, Lookup: true, Delay: 40 * time.Second, Tries: 1, MaybeApplied: true},
		},
		{
			"an attempt that used up its timeout", dispatch.NonIdempotent,
			dispatch.History{Tries: 1, SinceStart: time.Minute},
			dispatch.Result{Outcome: dispatch.Ambiguous},
			dispatch.Decision{Status: unknown, Lookup: true, Delay: 10 * time.Second, Tries: 1, MaybeApplied: true},
		},
		{
			"the last try", dispatch.KeyIdempotent,
			dispatch.History{Tries: 8, SinceStart: time.Minute},
			dispatch.Result{Outcome: dispatch.Ambiguous},
			dispatch.Decision{Status: unknown, Lookup: true, Delay: 10 * time.Second, Tries: 8, MaybeApplied: true},
		},
		{
			"a refusal after doubt", dispatch.KeyIdempotent,
			dispatch.History{Tries: 2, SinceStart: time.Minute, MaybeApplied: true},
			dispatch.Result{Outcome: dispatch.Rejected},
			dispatch.Decision{Status: unknown, Lookup: true, Delay: 10 * time.Second, Tries: 2, MaybeApplied: true},
		},
		{
			"an answer that no repetition can change", dispatch.KeyIdempotent,
			dispatch.History{Tries: 1, SinceStart: time.Minute},
			dispatch.Result{Outcome: dispatch.Ambiguous, Final: true},
			dispatch.Decision{Status: unknown, Lookup: true, Delay: 10 * time.Second, Tries: 1, MaybeApplied: true},
		},
		{
			"a refusal without doubt needs no lookup", dispatch.NonIdempotent,
			dispatch.History{Tries: 1},
			dispatch.Result{Outcome: dispatch.Rejected},
			dispatch.Decision{Status: failed, Tries: 1},
		},
	} {
		if got := asking(test.class).Decide(test.history, test.result, 0); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestALookupDecides(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		class   dispatch.Class
		tries   int
		outcome dispatch.Outcome
		want    dispatch.Decision
	}{
		{"found", dispatch.NonIdempotent, 2, dispatch.Completed, dispatch.Decision{Status: completed, Tries: 2}},
		{"absent, and may be repeated", dispatch.KeyIdempotent, 3, dispatch.Absent, dispatch.Decision{Status: pending, Delay: 2 * time.Second, Tries: 3}},
		{"absent, and was the last try", dispatch.KeyIdempotent, 9, dispatch.Absent, dispatch.Decision{Status: failed, Tries: 9}},
		{"absent, and must not be repeated", dispatch.NonIdempotent, 2, dispatch.Absent, dispatch.Decision{Status: failed, Tries: 2}},
		{"does not answer", dispatch.NonIdempotent, 2, dispatch.Throttled, dispatch.Decision{Status: unknown, Delay: time.Second, Tries: 2, MaybeApplied: true, Lookup: true}},
		{"refused", dispatch.NonIdempotent, 2, dispatch.Rejected, dispatch.Decision{Status: unknown, Delay: time.Second, Tries: 2, MaybeApplied: true, Lookup: true}},
		{"given back", dispatch.NonIdempotent, 2, dispatch.Released, dispatch.Decision{Status: unknown, Tries: 1, MaybeApplied: true, Lookup: true}},
		{"refuses the credentials", dispatch.NonIdempotent, 16, dispatch.CredentialsRefused, dispatch.Decision{Status: unknown, Tries: 15, MaybeApplied: true, Lookup: true}},
		{"forbids it", dispatch.NonIdempotent, 16, dispatch.Forbidden, dispatch.Decision{Status: unknown, Tries: 15, MaybeApplied: true, Lookup: true}},
		{"does not answer for long", dispatch.NonIdempotent, 16, dispatch.Ambiguous, dispatch.Decision{Status: unknown, Delay: 30 * time.Second, Tries: 16, MaybeApplied: true}},
	} {
		history := dispatch.History{Tries: test.tries, MaybeApplied: true, Lookup: true}
		if got := asking(test.class).Decide(history, dispatch.Result{Outcome: test.outcome}, 0.5); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestWithoutALookupAnAnswerThatCannotChangeIsUnknown(t *testing.T) {
	t.Parallel()
	got := policy(dispatch.KeyIdempotent).Decide(dispatch.History{Tries: 1}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true}, 0)
	if got.Status != unknown || got.Back() {
		t.Errorf("%+v, want unknown, settled", got)
	}
}

// A lookup that was lost may have come before what was sent last could land.
func TestALostLookupIsAskedAgainOnceTheLastSendHasLanded(t *testing.T) {
	t.Parallel()
	history := dispatch.History{Tries: 2, MaybeApplied: true, Lookup: true}
	lost := dispatch.Result{Outcome: dispatch.Lost}
	want := dispatch.Decision{Status: unknown, Lookup: true, Delay: 40 * time.Second, Tries: 2, MaybeApplied: true}
	if got := asking(dispatch.NonIdempotent).Decide(history, lost, 0); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := policy(dispatch.NonIdempotent).Decide(history, lost, 0); got.Status != unknown || got.Lookup || !got.MaybeApplied {
		t.Errorf("there is no lookup any more, and it goes on with %+v", got)
	}
}
