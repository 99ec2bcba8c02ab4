// Package dispatchtest holds both sides of a dispatch for tests: the conformance kit, which tests an adapter, and a
// simulated provider, which fails in every known way and records its effects in a ledger.
//
// # Conformance
//
//	Subject ──Start──▶ Counterpart ◀──messages── Adapter ◀──Dispatch── Trial
//	                        │                       │                    │
//	                        └─Received──▶ judge ◀───┴──Seen──────────────┘
//	                                        ▼
//	                                     []Check
//
// [Conform] runs every [Trial] with a fresh counterpart and a fresh adapter. A trial puts the counterpart into a
// [Situation] and checks one kind of evidence. After each trial, all its dispatches are judged: each must return,
// leave its request unchanged, send at most one message and give a result that can be stored and shows no secret.
// The adapter must leave nothing running.
//
// [Installed] makes similar checks for an adapter with a real configuration, whose counterpart cannot be made to
// fail. `drainer verify adapter` uses it.
//
// # Simulated provider
//
//	request ──ledger──▶ refuse ──▶ key known? ──yes──▶ replay, or 409
//	   by plan: a Fault              │ no
//	                                 └──▶ act ──ledger──▶ reply, or lose it
//
// GET reads and has no effect. PUT sets a value, so a repeated PUT has no further effect. POST has an effect, once
// for each Idempotency-Key. GET /effects/{key} is the lookup: it reports from the ledger whether a key had its
// effect. [SimulatedProvider] is an http.Handler, and tests serve it with [Serve].
package dispatchtest

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
)

// Conform checks that an adapter behaves as the engine expects. Each trial is a subtest with its own counterpart and
// adapter.
func Conform(t *testing.T, subject Subject) {
	t.Helper()
	t.Run("excuses", func(t *testing.T) { report(t, subject.Excuses()) })
	t.Run("warming up", func(t *testing.T) { subject.warm(t) })
	for _, trial := range subject.Trials() {
		t.Run(trial.Name, func(t *testing.T) { report(t, subject.Run(t, trial)...) })
	}
}

func report(t *testing.T, checks ...Check) {
	t.Helper()
	asked := false
	for _, check := range checks {
		asked = asked || check.Verdict != Skipped
		switch check.Verdict {
		case OK:
		case Failed, NoVerdict:
			t.Errorf("%s: seen: %s; expected: %s; %s", check.Name, check.Seen, check.Expected, check.Advice)
		default:
			t.Logf("%s: %s: %s", check.Name, check.Verdict, check.Advice)
		}
	}
	if !asked {
		t.SkipNow()
	}
}

// Subject is an adapter, and the function that starts a counterpart for it.
type Subject struct {
	Kind   dispatch.Kind
	Class  dispatch.Class                 // of the tool under test; "" for key_idempotent, or for the best class of Kind
	Start  func(t *testing.T) Counterpart // returns a fresh and real counterpart, which ends with t.Cleanup
	Cannot map[Situation]string           // situations that the protocol does not have, each with its reason

	// Patience is how long anything may take without an obstacle; 10 s if zero. A tenth of it is the deadline of a
	// request that gets no answer. A quarter of it is the limit for "soon".
	Patience time.Duration
}

// Counterpart is the other side of the protocol.
type Counterpart struct {
	Settings string // the provider's block, as YAML
	Tool     string // the tool's block, as YAML
	Payload  json.RawMessage
	Exact    json.RawMessage // optional: another payload that it accepts, whose numbers must arrive digit for digit
	TLS      *tls.Config     // optional: the TLS settings of a client, e.g. with the counterpart's authority
	Secrets  []string        // values of the blocks that must not be shown anywhere

	// Received returns every request that has arrived so far, in any order, whatever its outcome was.
	Received func() []Message
	// Enter changes the situation for all later requests, and returns once it has changed.
	Enter func(Situation)
}

// Message is a request that arrived. Body does not contain the numbers and times that the protocol changes in each
// message, so the same request always has the same Body.
type Message struct {
	Key  string // the idempotency key in the protocol's form; "" if the message carries none
	Body []byte
}

// problem names a required field that is missing.
func (c Counterpart) problem() string {
	switch {
	case c.Received == nil:
		return "no Received"
	case c.Enter == nil:
		return "no Enter"
	case c.Payload == nil:
		return "no Payload"
	}
	return ""
}

const (
	provider  = "subject"
	operation = "act"
)

func (s Subject) class() dispatch.Class {
	if s.Class != "" {
		return s.Class
	}
	if s.Kind.Classes == nil || slices.Contains(s.Kind.Classes, dispatch.KeyIdempotent) {
		return dispatch.KeyIdempotent
	}
	return slices.MaxFunc(s.Kind.Classes, func(a, b dispatch.Class) int {
		return cmp.Compare(slices.Index(byPromise, a), slices.Index(byPromise, b))
	})
}

// byPromise lists the classes from the smallest promise of an adapter to the largest.
var byPromise = []dispatch.Class{dispatch.NonIdempotent, dispatch.ReadOnly, dispatch.NaturallyIdempotent, dispatch.KeyIdempotent}

func (s Subject) carriesKeys() bool { return s.class() == dispatch.KeyIdempotent }

func (s Subject) patience() time.Duration { return cmp.Or(s.Patience, 10*time.Second) }

// soon is how long a dispatch may take to notice an end.
func (s Subject) soon() time.Duration { return s.patience() / 4 }

// moment is long enough to send a request. It is the deadline of a request that gets no answer.
func (s Subject) moment() time.Duration { return s.patience() / 10 }

func (s Subject) spec(c Counterpart, timeout time.Duration, network dispatch.Network) dispatch.Spec {
	tool := dispatch.ToolSpec{Class: s.class(), Settings: Block(c.Tool)}
	if s.carriesKeys() {
		tool.KeyTTL = 24 * time.Hour
	}
	return dispatch.Spec{
		Provider: provider,
		Timeout:  timeout,
		Network:  network,
		Settings: Block(c.Settings),
		Tools:    map[string]dispatch.ToolSpec{operation: tool},
	}
}

// Situation is how a counterpart handles requests. Each comment below ends with the outcome that an adapter must
// report.
type Situation string

const (
	// Answering is the first situation, and the situation after a recovery: the counterpart accepts a request and
	// reports success.
	Answering Situation = "answering"
	// Unreachable means that nothing listens and open connections are closed. not_sent, or ambiguous on a connection
	// that was open.
	Unreachable Situation = "unreachable"
	// Throttling means a refusal for now, without an effect. throttled.
	Throttling Situation = "throttling"
	// Rejecting means a final refusal, without an effect. rejected.
	Rejecting Situation = "rejecting"
	// Severing means that the counterpart accepts the request and closes the connection without an answer.
	// ambiguous.
	Severing Situation = "severing"
	// Busy means that the counterpart still works on an earlier attempt with the same key. in_flight.
	Busy Situation = "busy"
	// Silent means that the counterpart accepts the request and never answers. ambiguous, soon after the deadline.
	Silent Situation = "silent"
	// Babbling means that the counterpart accepts the request, and its answer breaks the protocol. ambiguous.
	Babbling Situation = "babbling"
	// Forbidden means that the network refuses every connection with [dispatch.ErrEgressRefused]. not_sent. The kit
	// itself makes this situation, so no counterpart enters it. Only an adapter without TCP connections can be
	// excused from it.
	Forbidden Situation = "forbidden"
)

// Situations lists the situations in which an adapter is tested, or from which it is excused.
func Situations() []Situation {
	return []Situation{Unreachable, Throttling, Rejecting, Severing, Busy, Silent, Babbling, Forbidden}
}

// evidence lists the right outcomes for a situation on a working connection. A request to a counterpart that has
// just become unreachable may have been given to the kernel, so its outcome may be ambiguous.
var evidence = map[Situation][]dispatch.Outcome{
	Unreachable: {dispatch.NotSent, dispatch.Ambiguous},
	Throttling:  {dispatch.Throttled},
	Rejecting:   {dispatch.Rejected},
	Severing:    {dispatch.Ambiguous},
	Busy:        {dispatch.InFlight},
	Silent:      {dispatch.Ambiguous},
	Babbling:    {dispatch.Ambiguous},
}

// checkExcuses demands a reason for each situation that the subject cannot enter.
func checkExcuses(excuses map[Situation]string) Check {
	var problems []error
	for _, situation := range slices.Sorted(maps.Keys(excuses)) {
		switch {
		case !slices.Contains(Situations(), situation):
			problems = append(problems, fmt.Errorf("%q is no situation that can be excused", situation))
		case excuses[situation] == "":
			problems = append(problems, fmt.Errorf("%s is excused without a reason", situation))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return found("excuses", false, err.Error(), "a reason for each situation that the protocol does not know", "fill in Subject.Cannot, or let the counterpart enter it")
	}
	return found("excuses", true, fmt.Sprintf("%d of %d situations", len(excuses), len(Situations())), "a reason for each situation that the protocol does not know", "")
}

// Trial is one test of an adapter.
type Trial struct {
	Name      string
	situation Situation     // the situation that it needs; "" for none
	timeout   time.Duration // the adapter's own timeout; zero for patience
	unbuilt   bool          // the trial builds its adapters itself
	run       func(*bench) []Check
}

// Trials lists all trials of the subject.
func (s Subject) Trials() []Trial {
	trials := []Trial{
		{Name: "building", run: building, unbuilt: true},
		{Name: "key stability", run: keyStability},
		{Name: "exact numbers", run: exactNumbers},
		{Name: "at once", run: atOnce},
		{Name: "strange requests", run: strangeRequests},
		{Name: "cancelled before", run: cancelledBefore},
		{Name: "cancelled meanwhile", run: cancelledMeanwhile, situation: Silent},
		{Name: "own timeout", run: ownTimeout, situation: Silent, timeout: s.moment()},
	}
	for _, situation := range []Situation{Unreachable, Severing, Silent, Babbling} {
		trials = append(trials, Trial{Name: string(situation) + " from the start", run: fromTheStart(situation), situation: situation})
	}
	for _, situation := range Situations() {
		trials = append(trials, Trial{Name: string(situation), run: classification(situation), situation: situation})
	}
	return trials
}

// Excuses checks the reasons for the situations that the subject cannot enter.
func (s Subject) Excuses() Check { return checkExcuses(s.Cannot) }

// Run runs the trial on a fresh bench.
func (s Subject) Run(t *testing.T, trial Trial) []Check {
	t.Helper()
	if why := s.Cannot[trial.situation]; why != "" {
		return []Check{skipped(trial.Name, "the counterpart "+string(trial.situation), why)}
	}
	bench := s.set(t)
	if problem := bench.problem(); problem != "" {
		return []Check{found("counterpart", false, problem, "Payload, Received and Enter", "fill in what the kit cannot do without")}
	}
	if trial.unbuilt {
		return trial.run(bench)
	}
	if err := bench.build(cmp.Or(trial.timeout, s.patience())); err != nil {
		return []Check{found("built", false, err.Error(), "an adapter", "the adapter must accept the counterpart's Settings and Tool")}
	}
	return append(trial.run(bench), bench.manners()...)
}

// warm uses an adapter once before the trials. So goroutines that a library starts once in a process, and keeps, do
// not count as a leak.
func (s Subject) warm(t *testing.T) {
	bench := s.set(t)
	if bench.problem() != "" || bench.build(s.patience()) != nil {
		return
	}
	bench.dispatch(context.Background(), bench.intent())
	_ = bench.close()
}

// Build returns an adapter that is closed at the end of the test.
func Build[A dispatch.Adapter](t testing.TB, build func(dispatch.Spec) (A, error), spec dispatch.Spec) A {
	t.Helper()
	adapter, err := build(spec)
	if err != nil {
		t.Fatal(err)
	}
	if closer, ok := any(adapter).(io.Closer); ok {
		t.Cleanup(func() {
			if err := closer.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return adapter
}

// Intent returns the first attempt at one step of a run. Each step has a different key.
func Intent(tool, step, payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: "run-001", StepID: step, ToolName: tool, BusinessScope: "invoice_442"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

// Expect fails the test if a result has another outcome or error class.
func Expect(t testing.TB, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("got %s %q (%+v), want %s %q", got.Outcome, got.ErrorClass, got.Problem, outcome, class)
	}
}

// ExpectWhole lets a provider repeat a long token at several places of its text. The adapter must pass the token on
// as a whole, since a part of it would not be recognised as a secret.
func ExpectWhole(t testing.TB, answer func(words string) dispatch.Result) {
	t.Helper()
	const beginning = "sk_live_"
	token := beginning + strings.Repeat("4f7Qw2Zr", 49)
	for _, before := range []int{0, 155, 400, 924, 1900} {
		result := answer(strings.Repeat("x", before) + token)
		kept := []string{result.ErrorClass, result.ProviderRef, string(result.Response)}
		if p := result.Problem; p != nil {
			kept = append(kept, p.Type, p.Title, p.Detail)
		}
		found := 0
		for _, text := range kept {
			if strings.Contains(text, token) {
				found++
			} else if strings.Contains(text, beginning) {
				t.Errorf("%d characters into the words a token is cut: %s", before, text)
			}
		}
		if found == 0 {
			t.Errorf("%d characters into the words no token is passed on: %q", before, kept)
		}
	}
}

// Mistakes are blocks of a provider and of its tool that an adapter must refuse. The error must contain Says, and no
// value that contains "canary".
type Mistakes = map[string]struct{ Settings, Tool, Says string }

// Refuses builds an adapter from each of the mistakes, and checks the error.
func Refuses(t *testing.T, kind dispatch.Kind, mistakes Mistakes) {
	t.Helper()
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			subject := Subject{Kind: kind}
			_, err := kind.New(subject.spec(Counterpart{Settings: mistake.Settings, Tool: mistake.Tool}, subject.patience(), dispatch.Network{}))
			if err == nil || !strings.Contains(err.Error(), mistake.Says) || strings.Contains(strings.ToLower(err.Error()), "canary") {
				t.Errorf("%v, want %q and no value", err, mistake.Says)
			}
		})
	}
}

// ConnectsTo compares the destinations that an adapter of each provider's block reports with the expected ones.
func ConnectsTo(t *testing.T, kind dispatch.Kind, destinations map[string][]dispatch.Destination) {
	t.Helper()
	for settings, want := range destinations {
		adapter := Build(t, kind.New, dispatch.Spec{Settings: Block(settings)})
		if got := adapter.(dispatch.Located).Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}

// Block is a block of configuration as a user writes it. Its decoding is strict. Its errors name the place but
// repeat no value, so a value in an error of New comes from the adapter itself.
func Block(text string) dispatch.Block { return block(text) }

type block string

func (b block) Decode(into any) error {
	if strings.TrimSpace(string(b)) == "" {
		return nil
	}
	err := yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
	var located yaml.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &located) && located.GetToken() != nil:
		at := located.GetToken().Position
		return fmt.Errorf("line %d, column %d is not what %s takes", at.Line, at.Column, reflect.TypeOf(into))
	}
	return fmt.Errorf("the block is not what %s takes", reflect.TypeOf(into))
}
