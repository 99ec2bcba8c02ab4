package dispatchtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// patience is short because adapters with a flaw use it up. On a slow machine more checks may fail than those of
// the flaw, which does no harm here.
const patience = time.Second

func subjectWith(flaw flaw) dispatchtest.Subject {
	patience := patience
	if flaw == none {
		patience = 0
	}
	return dispatchtest.Subject{
		Kind:     kindWith(flaw),
		Patience: patience,
		Start:    func(t *testing.T) dispatchtest.Counterpart { return newDesk(t).counterpart() },
	}
}

// run runs the trial of that name.
func run(t *testing.T, subject dispatchtest.Subject, name string) []dispatchtest.Check {
	t.Helper()
	for _, trial := range subject.Trials() {
		if trial.Name == name {
			return subject.Run(t, trial)
		}
	}
	t.Fatalf("there is no trial %q", name)
	return nil
}

func failures(checks []dispatchtest.Check) []string {
	var names []string
	for _, check := range checks {
		if check.Verdict == dispatchtest.Failed && !slices.Contains(names, check.Name) {
			names = append(names, check.Name)
		}
	}
	return names
}

func TestAnAdapterWithoutAFlawConforms(t *testing.T) {
	t.Parallel()
	subject := subjectWith(none)
	for _, trial := range subject.Trials() {
		t.Run(trial.Name, func(t *testing.T) {
			t.Parallel()
			for _, check := range subjectWith(none).Run(t, trial) {
				if check.Verdict != dispatchtest.OK || check.Seen == "" || check.Expected == "" {
					t.Errorf("%+v", check)
				}
			}
		})
	}
}

// found has, for each flaw, the trial and the checks that must find it.
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
	{connectsInNew, "building", []string{"built while nothing listens", "connects to nothing"}},
	{leaksInNew, "key stability", []string{"goroutines"}},

	{losesTheKey, "key stability", []string{"same key", "another key"}},
	{keysAttempts, "key stability", []string{"same key"}},
	{sharesAKey, "key stability", []string{"another key"}},
	{sharesAKey, "at once", []string{"arrived"}},
	{numbersAttempts, "key stability", []string{"same bytes"}},
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
			checks := run(t, subjectWith(test.flaw), test.trial)
			got := failures(checks)
			for _, want := range test.checks {
				if !slices.Contains(got, want) {
					t.Errorf("%q did not fail; failed: %s", want, strings.Join(got, ", "))
				}
			}
			if dispatchtest.Passed(checks) {
				t.Error("it passed")
			}
		})
	}
}

func TestWhateverIsStrangeAndPanicsIsFound(t *testing.T) {
	t.Parallel()
	got := failures(run(t, subjectWith(panicsAtStrange), "strange requests"))
	for _, check := range run(t, subjectWith(none), "strange requests") {
		isStrange := check.Expected == "any outcome of an adapter"
		if isStrange && !slices.Contains(got, check.Name) {
			t.Errorf("%q did not fail", check.Name)
		}
	}
	if !slices.Contains(got, "no panic") {
		t.Errorf("failed: %s", strings.Join(got, ", "))
	}
}

// A check that no flaw can fail proves nothing.
func TestEveryCheckCanFail(t *testing.T) {
	t.Parallel()
	failing := map[string]bool{
		"no panic":       true, // panicsAtStrange fails it, see the test above
		"first dispatch": true, // a counterpart that refuses its own payload fails it
	}
	for _, test := range found {
		for _, check := range test.checks {
			failing[check] = true
		}
	}
	subject := subjectWith(none)
	for _, trial := range subject.Trials() {
		for _, check := range subject.Run(t, trial) {
			if !failing[check.Name] && check.Expected != "any outcome of an adapter" {
				t.Errorf("%s: no flaw fails %q", trial.Name, check.Name)
			}
		}
	}
}

func TestACounterpartThatRefusesItsOwnPayloadProvesNothing(t *testing.T) {
	t.Parallel()
	subject := subjectWith(none)
	subject.Start = func(t *testing.T) dispatchtest.Counterpart {
		counterpart := newDesk(t).counterpart()
		counterpart.Enter(dispatchtest.Rejecting)
		return counterpart
	}
	if got := failures(run(t, subject, "severing")); !slices.Contains(got, "first dispatch") {
		t.Errorf("failed: %v", got)
	}
}

func TestACounterpartWithoutEyesIsRefused(t *testing.T) {
	t.Parallel()
	for name, blind := range map[string]func(*dispatchtest.Counterpart){
		"no Received": func(c *dispatchtest.Counterpart) { c.Received = nil },
		"no Enter":    func(c *dispatchtest.Counterpart) { c.Enter = nil },
		"no Payload":  func(c *dispatchtest.Counterpart) { c.Payload = nil },
	} {
		subject := subjectWith(none)
		subject.Start = func(t *testing.T) dispatchtest.Counterpart {
			counterpart := newDesk(t).counterpart()
			blind(&counterpart)
			return counterpart
		}
		checks := run(t, subject, "key stability")
		if len(checks) != 1 || checks[0].Verdict != dispatchtest.Failed || checks[0].Seen != name {
			t.Errorf("%s: got %+v", name, checks)
		}
	}
}

func TestASituationIsLeftOutForAReasonOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cannot  map[dispatchtest.Situation]string
		verdict dispatchtest.Verdict
	}{
		"nothing left out":  {nil, dispatchtest.OK},
		"with a reason":     {map[dispatchtest.Situation]string{dispatchtest.Busy: "the protocol has no keys"}, dispatchtest.OK},
		"without a reason":  {map[dispatchtest.Situation]string{dispatchtest.Busy: ""}, dispatchtest.Failed},
		"unknown situation": {map[dispatchtest.Situation]string{"asleep": "never"}, dispatchtest.Failed},
		"must answer":       {map[dispatchtest.Situation]string{dispatchtest.Answering: "shy"}, dispatchtest.Failed},
	} {
		subject := dispatchtest.Subject{Cannot: test.cannot}
		if got := subject.Excuses(); got.Verdict != test.verdict {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAnExcusedSituationIsNotEntered(t *testing.T) {
	t.Parallel()
	for _, situation := range dispatchtest.Situations() {
		subject := subjectWith(none)
		subject.Cannot = map[dispatchtest.Situation]string{situation: "for a reason"}
		subject.Start = func(t *testing.T) dispatchtest.Counterpart {
			t.Errorf("%s was entered", situation)
			return dispatchtest.Counterpart{}
		}
		checks := run(t, subject, string(situation))
		if len(checks) != 1 || checks[0].Verdict != dispatchtest.Skipped || checks[0].Advice != "for a reason" {
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
		subject := subjectWith(losesTheKey)
		subject.Kind.Classes = class
		for _, trial := range []string{"key stability", "at once"} {
			if got := failures(run(t, subject, trial)); got != nil {
				t.Errorf("%s: %s failed %v", name, trial, got)
			}
		}
	}
	named := subjectWith(losesTheKey)
	named.Class = dispatch.NonIdempotent
	if got := failures(run(t, named, "key stability")); got != nil {
		t.Errorf("the class of the tool under test: failed %v", got)
	}
}

func TestTrialsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	names := map[string]int{}
	for _, trial := range (dispatchtest.Subject{}).Trials() {
		names[trial.Name]++
	}
	for name, count := range maps.All(names) {
		if count != 1 {
			t.Errorf("%d trials are called %q", count, name)
		}
	}
}

// install returns a toy that is configured for the desk, as an installed adapter.
func install(t *testing.T, desk *desk, flaw flaw, class dispatch.Class) dispatchtest.Installed {
	t.Helper()
	blocks := desk.counterpart()
	adapter, err := newToy(dispatch.Spec{
		Provider: "desk",
		Timeout:  5 * time.Second,
		Settings: dispatchtest.Block(blocks.Settings),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: class, Settings: dispatchtest.Block(blocks.Tool)}},
	}, flaw)
	if err != nil {
		t.Fatal(err)
	}
	return dispatchtest.Installed{
		Provider: "desk", Adapter: adapter, Timeout: 5 * time.Second,
		Tools: map[string]dispatch.Class{"act": class}, Secrets: []string{secret, "short"},
	}
}

func plan(desk *desk) dispatchtest.LivePlan {
	return dispatchtest.LivePlan{Operation: "act", Payload: desk.counterpart().Payload, Concurrent: 4}
}

// verdicts returns the checks that did not pass, with their verdicts.
func verdicts(report dispatchtest.Report) string {
	var all []string
	for _, check := range report.Checks {
		if check.Verdict != dispatchtest.OK {
			all = append(all, check.Name+": "+string(check.Verdict))
		}
	}
	return strings.Join(all, ", ")
}

func TestAnInstalledAdapterIsAskedWithoutSending(t *testing.T) {
	t.Parallel()
	for flaw, wrong := range map[flaw]string{
		none:                   "",
		sendsUnknownOperations: "unknown operation: failed",
		sendsWhenCancelled:     "cancelled before: failed",
		failsToClose:           "closes: failed",
		leaksGoroutines:        "goroutines: failed",
	} {
		t.Run(string(flaw), func(t *testing.T) {
			t.Parallel()
			desk := newDesk(t)
			report := install(t, desk, flaw, dispatch.KeyIdempotent).Quiet(t.Context())
			notRun := "handshake: not run, first call: not run, same call again: not run, intents at once: not run, tiny deadline: not run"
			var failed []string
			for _, verdict := range strings.Split(verdicts(report), ", ") {
				if strings.HasSuffix(verdict, ": not run") != strings.Contains(notRun, verdict) {
					t.Errorf("%q", verdict)
				}
				if !strings.HasSuffix(verdict, ": not run") {
					failed = append(failed, verdict)
				}
			}
			if got := strings.Join(failed, ", "); got != wrong || report.Passed != (wrong == "") || strings.Count(verdicts(report), "not run") != 5 {
				t.Errorf("got %q, want %q and %q", verdicts(report), wrong, notRun)
			}
			if arrived := len(desk.counterpart().Received()); flaw == none && arrived != 0 {
				t.Errorf("%d messages arrived", arrived)
			}
		})
	}
}

func TestAnInstalledAdapterIsAskedBySending(t *testing.T) {
	t.Parallel()
	// The toy's protocol does not mark a replay.
	const unproven = "same call again: warning"
	const nothingElse = ", same call again: not run, intents at once: not run, tiny deadline: not run"
	for name, test := range map[string]struct {
		flaw      flaw
		class     dispatch.Class
		situation dispatchtest.Situation
		want      string
	}{
		"without a flaw":        {none, dispatch.NaturallyIdempotent, dispatchtest.Answering, ""},
		"nothing shows the key": {none, dispatch.KeyIdempotent, dispatchtest.Answering, unproven},
		"not to be repeated":    {none, dispatch.NonIdempotent, dispatchtest.Answering, "same call again: not run"},
		"throttled":             {none, dispatch.KeyIdempotent, dispatchtest.Throttling, "first call: no verdict" + nothingElse},
		"unreachable":           {none, dispatch.KeyIdempotent, dispatchtest.Unreachable, "first call: no verdict" + nothingElse},
		"refused":               {none, dispatch.KeyIdempotent, dispatchtest.Rejecting, "first call: failed" + nothingElse},
		"repeats a secret":      {tellsSecrets, dispatch.KeyIdempotent, dispatchtest.Rejecting, "first call: failed" + nothingElse + ", result: failed, no secret of the configuration: failed"},
		"echoes a secret":       {echoesSecrets, dispatch.NaturallyIdempotent, dispatchtest.Answering, "no secret of the configuration: warning"},
		"changes requests":      {changesRequests, dispatch.NaturallyIdempotent, dispatchtest.Answering, "request unchanged: failed"},
		"stores NUL":            {storesNUL, dispatch.NaturallyIdempotent, dispatchtest.Answering, "storable: failed"},
		"leaks":                 {leaksGoroutines, dispatch.NaturallyIdempotent, dispatchtest.Answering, "goroutines: failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			desk := newDesk(t)
			installed := install(t, desk, test.flaw, test.class)
			desk.enter(test.situation)
			report := installed.Live(t.Context(), plan(desk))
			if got, want := verdicts(report), strings.TrimSuffix("handshake: not run, "+test.want, ", "); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if failed := strings.Contains(test.want, "failed") || strings.Contains(test.want, "no verdict"); report.Passed == failed {
				t.Errorf("passed: %t", report.Passed)
			}
		})
	}
}

func TestNoMoreIsSentThanWasSaid(t *testing.T) {
	t.Parallel()
	for class, want := range map[dispatch.Class]int{dispatch.KeyIdempotent: 7, dispatch.NonIdempotent: 6} {
		desk := newDesk(t)
		if got := plan(desk).Calls(class); got != want {
			t.Errorf("%s: %d calls, want %d", class, got, want)
		}
		install(t, desk, none, class).Live(t.Context(), plan(desk))
		// The last call has so short a deadline that it may not have been sent.
		if arrived := len(desk.counterpart().Received()); arrived != want && arrived != want-1 {
			t.Errorf("%s: %d messages arrived, want %d", class, arrived, want)
		}
	}
}

// boaster completes every intent and sends nothing.
type boaster struct{}

func (boaster) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Completed}
}

var boasting = dispatchtest.Subject{
	Kind: dispatch.Kind{
		Name:     "boaster",
		Settings: struct{}{},
		Tool:     struct{}{},
		New: func(spec dispatch.Spec) (dispatch.Adapter, error) {
			err := errors.Join(spec.Settings.Decode(&struct{}{}), spec.Tools["act"].Settings.Decode(&struct{}{}))
			return boaster{}, err
		},
	},
	Patience: time.Second / 4, // there is nothing to wait for
	Start: func(*testing.T) dispatchtest.Counterpart {
		return dispatchtest.Counterpart{
			Payload:  json.RawMessage(`{}`),
			Received: func() []dispatchtest.Message { return nil },
			Enter:    func(dispatchtest.Situation) {},
		}
	},
	Cannot: map[dispatchtest.Situation]string{dispatchtest.Silent: "it never listens"},
}

const inChild = "DRAINER_TEST_CONFORM_FAILS"

// A test cannot observe its own failure, so another process runs the failing test.
func TestConformFailsTheTestOfAnAdapterThatDoesNot(t *testing.T) {
	if os.Getenv(inChild) != "" {
		dispatchtest.Conform(t, boasting)
		return
	}
	t.Parallel()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), inChild+"=1")
	output, err := child.CombinedOutput()
	if failed := new(exec.ExitError); !errors.As(err, &failed) || failed.ExitCode() != 1 {
		t.Fatalf("ended with %v:\n%s", err, output)
	}
	for _, line := range []string{
		"--- PASS: " + t.Name() + "/excuses",
		"--- FAIL: " + t.Name() + "/key_stability",
		"--- FAIL: " + t.Name() + "/severing",
		"--- FAIL: " + t.Name() + "/forbidden",
		"--- SKIP: " + t.Name() + "/silent",
		"--- SKIP: " + t.Name() + "/own_timeout",
	} {
		if !strings.Contains(string(output), line) {
			t.Errorf("no %q in\n%s", line, output)
		}
	}
}

func TestABlockIsStrictAndDiscreet(t *testing.T) {
	t.Parallel()
	var into struct {
		Name  string `yaml:"name"`
		Count int    `yaml:"count"`
	}
	if err := dispatchtest.Block("{name: n, count: 2}").Decode(&into); err != nil || into.Name != "n" || into.Count != 2 {
		t.Errorf("got %+v, %v", into, err)
	}
	if err := dispatchtest.Block("").Decode(&into); err != nil {
		t.Errorf("a block that was left out: %v", err)
	}
	for _, text := range []string{"{title: hushhush}", "{count: hushhush}", "{name: [hushhush", "- hushhush"} {
		err := dispatchtest.Block(text).Decode(&into)
		if err == nil || strings.Contains(err.Error(), "hushhush") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAnAddressIsKeptWhileNobodyListens(t *testing.T) {
	t.Parallel()
	address := dispatchtest.Address(t)
	for range 3 {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Fatal("the counterpart is there")
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		listener.Close()
	}
}
