package conformance_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
)

// patience is short with the flawed, who use it up; what a slow machine makes
// fail beyond the flaw does no harm there.
const patience = time.Second

func subjectWith(t *testing.T, flaw flaw) conformance.Subject {
	patience := patience
	if flaw == none {
		patience = 0
	}
	return conformance.Subject{
		Kind:     kindWith(flaw),
		Patience: patience,
		Start:    func() conformance.Counterpart { return newDesk(t).counterpart() },
	}
}

// run makes the trial of that name.
func run(t *testing.T, subject conformance.Subject, name string) []conformance.Check {
	t.Helper()
	for _, trial := range subject.Trials() {
		if trial.Name == name {
			return subject.Run(trial)
		}
	}
	t.Fatalf("there is no trial %q", name)
	return nil
}

func failures(checks []conformance.Check) []string {
	var names []string
	for _, check := range checks {
		if check.Verdict == conformance.Failed && !slices.Contains(names, check.Name) {
			names = append(names, check.Name)
		}
	}
	return names
}

func TestAnAdapterWithoutAFlawConforms(t *testing.T) {
	t.Parallel()
	subject := subjectWith(t, none)
	for _, trial := range subject.Trials() {
		t.Run(trial.Name, func(t *testing.T) {
			t.Parallel()
			for _, check := range subjectWith(t, none).Run(trial) {
				if check.Verdict != conformance.OK || check.Seen == "" || check.Expected == "" {
					t.Errorf("%+v", check)
				}
			}
		})
	}
}

// Each flaw is found by the trial and by the checks that are there for it.
var found = []struct {
	flaw   flaw
	trial  string
	checks []string
}{
	{publishesNoShape, "building", []string{"settings shape", "tool shape"}},
	{publishesAnotherShape, "building", []string{"settings shape", "tool shape"}},
	{acceptsUnknownFields, "building", []string{"unknown setting", "unknown setting of a tool"}},
	{repeatsValues, "building", []string{"broken settings", "broken tool"}},
	{panicsInNew, "key stability", []string{"built"}},
	{connectsInNew, "building", []string{"built while nobody is there", "connects to nothing"}},
	{leaksInNew, "key stability", []string{"goroutines"}},

	{losesTheKey, "key stability", []string{"same key", "another key"}},
	{keysAttempts, "key stability", []string{"same key"}},
	{sharesAKey, "key stability", []string{"another key"}},
	{sharesAKey, "at once", []string{"arrived"}},
	{numbersAttempts, "key stability", []string{"same octets"}},
	{roundsNumbers, "exact numbers", []string{"numbers"}},
	{sendsTwice, "key stability", []string{"first attempt", "second attempt", "another intent", "messages"}},
	{sendsTwice, "exact numbers", []string{"dispatch", "messages"}},
	{claimsAtOnce, "key stability", []string{"first attempt", "another intent", "messages"}},
	{mixesRequests, "at once", []string{"completed", "arrived"}},
	{changesRequests, "key stability", []string{"request unchanged"}},
	{givesEngineWords, "key stability", []string{"result"}},

	{sendsUnknownOperations, "strange requests", []string{"unknown operation"}},
	{sendsWhenCancelled, "cancelled before", []string{"without a connection", "with a connection"}},
	{deniesSending, "cancelled meanwhile", []string{"outcome", "messages"}},
	{ignoresContext, "cancelled meanwhile", []string{"outcome", "prompt", "returns"}},
	{hasNoTimeout, "own timeout", []string{"outcome", "prompt", "returns"}},
	{ignoresContext, "silent", []string{"outcome", "prompt", "returns"}},
	{returnsLate, "silent", []string{"prompt"}},
	{returnsLate, "unreachable", []string{"prompt"}},

	{doubtsEverything, "unreachable from the start", []string{"outcome"}},
	{deniesSending, "severing from the start", []string{"messages"}},
	{deniesSending, "silent from the start", []string{"messages"}},
	{takesBabbleForSuccess, "babbling from the start", []string{"outcome"}},
	{deniesSending, "severing", []string{"outcome", "messages"}},
	{takesSilenceForSuccess, "severing", []string{"outcome"}},
	{takesSilenceForSuccess, "silent", []string{"outcome"}},
	{takesBabbleForSuccess, "babbling", []string{"outcome"}},
	{mistakesRefusals, "throttling", []string{"outcome"}},
	{mistakesRefusals, "rejecting", []string{"outcome"}},
	{mistakesRefusals, "busy", []string{"outcome"}},
	{retriesByItself, "severing", []string{"messages"}},
	{retriesByItself, "babbling", []string{"messages"}},
	{staysBroken, "unreachable", []string{"recovery"}},
	{staysBroken, "severing", []string{"recovery"}},
	{dialsByItself, "forbidden", []string{"outcome", "error class"}},
	{blursRefusedEgress, "forbidden", []string{"error class"}},

	{tellsSecrets, "rejecting", []string{"no secret"}},
	{echoesSecrets, "key stability", []string{"no secret"}},
	{tellsPayloads, "rejecting", []string{"no secret"}},
	{givesFreeText, "unreachable", []string{"result"}},
	{givesNoClass, "severing", []string{"result"}},
	{storesNUL, "key stability", []string{"storable"}},
	{leaksGoroutines, "severing", []string{"goroutines"}},
	{leaksConnections, "key stability", []string{"connections"}},
	{failsToClose, "key stability", []string{"closes"}},
	{neverCloses, "key stability", []string{"closes"}},
}

func TestEachFlawIsFound(t *testing.T) {
	t.Parallel()
	for _, test := range found {
		t.Run(test.trial+"/"+string(test.flaw), func(t *testing.T) {
			t.Parallel()
			checks := run(t, subjectWith(t, test.flaw), test.trial)
			got := failures(checks)
			for _, want := range test.checks {
				if !slices.Contains(got, want) {
					t.Errorf("%q did not fail; failed: %s", want, strings.Join(got, ", "))
				}
			}
			if conformance.Passed(checks) {
				t.Error("it passed")
			}
		})
	}
}

func TestWhateverIsStrangeAndPanicsIsFound(t *testing.T) {
	t.Parallel()
	got := failures(run(t, subjectWith(t, panicsAtStrange), "strange requests"))
	for _, check := range run(t, subjectWith(t, none), "strange requests") {
		isStrange := check.Expected == "any outcome of an adapter"
		if isStrange && !slices.Contains(got, check.Name) {
			t.Errorf("%q did not fail", check.Name)
		}
	}
	if !slices.Contains(got, "no panic") {
		t.Errorf("failed: %s", strings.Join(got, ", "))
	}
}

// A check that no flaw fails proves nothing.
func TestEveryCheckCanFail(t *testing.T) {
	t.Parallel()
	failing := map[string]bool{
		"no panic":       true, // by what panics at the strange
		"first dispatch": true, // by a counterpart that refuses its own payload
	}
	for _, test := range found {
		for _, check := range test.checks {
			failing[check] = true
		}
	}
	subject := subjectWith(t, none)
	for _, trial := range subject.Trials() {
		for _, check := range subject.Run(trial) {
			if !failing[check.Name] && check.Expected != "any outcome of an adapter" {
				t.Errorf("%s: no flaw fails %q", trial.Name, check.Name)
			}
		}
	}
}

func TestACounterpartThatRefusesItsOwnPayloadProvesNothing(t *testing.T) {
	t.Parallel()
	subject := subjectWith(t, none)
	subject.Start = func() conformance.Counterpart {
		counterpart := newDesk(t).counterpart()
		counterpart.Enter(conformance.Rejecting)
		return counterpart
	}
	if got := failures(run(t, subject, "severing")); !slices.Contains(got, "first dispatch") {
		t.Errorf("failed: %v", got)
	}
}

func TestACounterpartWithoutEyesIsRefused(t *testing.T) {
	t.Parallel()
	for name, blind := range map[string]func(*conformance.Counterpart){
		"no Received": func(c *conformance.Counterpart) { c.Received = nil },
		"no Enter":    func(c *conformance.Counterpart) { c.Enter = nil },
		"no Payload":  func(c *conformance.Counterpart) { c.Payload = nil },
	} {
		subject := subjectWith(t, none)
		subject.Start = func() conformance.Counterpart {
			counterpart := newDesk(t).counterpart()
			blind(&counterpart)
			return counterpart
		}
		checks := run(t, subject, "key stability")
		if len(checks) != 1 || checks[0].Verdict != conformance.Failed || checks[0].Seen != name {
			t.Errorf("%s: got %+v", name, checks)
		}
	}
}

func TestASituationIsLeftOutForAReasonOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cannot  map[conformance.Situation]string
		verdict conformance.Verdict
	}{
		"nothing left out":  {nil, conformance.OK},
		"with a reason":     {map[conformance.Situation]string{conformance.Busy: "the protocol has no keys"}, conformance.OK},
		"without a reason":  {map[conformance.Situation]string{conformance.Busy: ""}, conformance.Failed},
		"unknown situation": {map[conformance.Situation]string{"asleep": "never"}, conformance.Failed},
		"must answer":       {map[conformance.Situation]string{conformance.Answering: "shy"}, conformance.Failed},
	} {
		subject := conformance.Subject{Cannot: test.cannot}
		if got := subject.Excuses(); got.Verdict != test.verdict {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAnExcusedSituationIsNotEntered(t *testing.T) {
	t.Parallel()
	for _, situation := range conformance.Situations() {
		subject := subjectWith(t, none)
		subject.Cannot = map[conformance.Situation]string{situation: "for a reason"}
		subject.Start = func() conformance.Counterpart {
			t.Errorf("%s was entered", situation)
			return conformance.Counterpart{}
		}
		checks := run(t, subject, string(situation))
		if len(checks) != 1 || checks[0].Verdict != conformance.Skipped || checks[0].Advice != "for a reason" {
			t.Errorf("%s: %+v", situation, checks)
		}
	}
}

func TestAnAdapterWithoutKeysIsNotAskedForThem(t *testing.T) {
	t.Parallel()
	for name, class := range map[string][]dispatch.Class{
		"cannot promise keys": {dispatch.ReadOnly, dispatch.NonIdempotent},
		"promises less":       {dispatch.NaturallyIdempotent},
	} {
		subject := subjectWith(t, losesTheKey)
		subject.Kind.Classes = class
		for _, trial := range []string{"key stability", "at once"} {
			if got := failures(run(t, subject, trial)); got != nil {
				t.Errorf("%s: %s failed %v", name, trial, got)
			}
		}
	}
	named := subjectWith(t, losesTheKey)
	named.Class = dispatch.NonIdempotent
	if got := failures(run(t, named, "key stability")); got != nil {
		t.Errorf("the class of the tool under test: failed %v", got)
	}
}

func TestTrialsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	names := map[string]int{}
	for _, trial := range (conformance.Subject{}).Trials() {
		names[trial.Name]++
	}
	for name, count := range maps.All(names) {
		if count != 1 {
			t.Errorf("%d trials are called %q", count, name)
		}
	}
}
