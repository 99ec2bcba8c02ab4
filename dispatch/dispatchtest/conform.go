// Package dispatchtest holds the two sides of a dispatch for tests: the
// conformance kit, which tries out an adapter, and a simulated provider, which
// fails in every known way and keeps an honest ledger of its effects.
//
// # Conformance
//
//	Subject ──Start──▶ Counterpart ◀──messages── Adapter ◀──Dispatch── Trial
//	                        │                       │                    │
//	                        └─Received──▶ judge ◀───┴──Seen──────────────┘
//	                                        ▼
//	                                     []Check
//
// [Conform] runs every [Trial] against a fresh counterpart and a fresh adapter.
// A trial brings the counterpart into a [Situation] and asks for one kind of
// evidence. After each trial, every dispatch of it is judged: it returned, did
// not change its request, sent at most one message, gave a result that can be
// stored and shows no secret, and left nothing running.
//
// [Installed] asks the same of an adapter that is configured already, whose
// counterpart cannot be made to misbehave. `drainer verify adapter` uses it.
//
// # Simulated provider
//
//	request ──ledger──▶ refuse ──▶ key known? ──yes──▶ replay, or 409
//	   by plan: a Fault              │ no
//	                                 └──▶ act ──ledger──▶ reply, or lose it
//
// GET reads and has no effect. PUT sets, so that repeating it has none either.
// POST acts, once under its Idempotency-Key. GET /effects/{key} is the lookup:
// it says from the ledger whether a key had its effect. [SimulatedProvider] is
// an http.Handler; tests serve it with [Serve].
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

// Conform holds an adapter to what the engine takes for granted, one subtest a
// trial, each with a counterpart and an adapter of its own.
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

// Subject is an adapter, and how to start a counterpart for it.
type Subject struct {
	Kind   dispatch.Kind
	Class  dispatch.Class                 // of the tool under test; if empty, key_idempotent or the most that Kind can promise
	Start  func(t *testing.T) Counterpart // a fresh and real counterpart, which ends with t.Cleanup
	Cannot map[Situation]string           // situations that the protocol does not know, each with its reason

	// Patience is how long anything may take that nothing holds up; 10 s if
	// zero. A tenth of it is the deadline of a request that gets no answer,
	// a quarter what "soon" means.
	Patience time.Duration
}

// Counterpart is the other side of the protocol.
type Counterpart struct {
	Settings string // the provider's block, as YAML
	Tool     string // the tool's block, as YAML
	Payload  json.RawMessage
	Exact    json.RawMessage // optional: another payload that it accepts, whose numbers must arrive digit for digit
	TLS      *tls.Config     // optional: what TLS sessions begin with, e.g. with the counterpart's authority
	Secrets  []string        // what stands in the blocks and must show nowhere

	// Received returns every request that arrived so far, in any order, however it
	// ended.
	Received func() []Message
	// Enter returns once the counterpart behaves so, to what comes from now on.
	Enter func(Situation)
}

// Message is a request that arrived. Body leaves out what the protocol numbers
// or dates again each time, so that it is the same for the same request.
type Message struct {
	Key  string // the idempotency key, as the protocol carries it; empty if it carries none
	Body []byte
}

// problem names a missing field that the kit needs.
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

// byPromise goes from the least that a class promises to the most that an
// adapter can do for it.
var byPromise = []dispatch.Class{dispatch.NonIdempotent, dispatch.ReadOnly, dispatch.NaturallyIdempotent, dispatch.KeyIdempotent}

func (s Subject) carriesKeys() bool { return s.class() == dispatch.KeyIdempotent }

func (s Subject) patience() time.Duration { return cmp.Or(s.Patience, 10*time.Second) }

// soon is how long it may take to notice an end.
func (s Subject) soon() time.Duration { return s.patience() / 4 }

// moment is enough for a request to leave, and the deadline where no answer comes.
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

// Situation is how a counterpart behaves towards requests. Each comment below
// ends with the outcome that an adapter must report.
type Situation string

const (
	// Answering is how a counterpart starts, and how it recovers: it takes a
	// request and says that it is done.
	Answering Situation = "answering"
	// Unreachable: nothing listens, and open connections are cut. not_sent, or
	// ambiguous on a connection that was open.
	Unreachable Situation = "unreachable"
	// Throttling: it refuses for now, without an effect. throttled.
	Throttling Situation = "throttling"
	// Rejecting: it refuses for good, without an effect. rejected.
	Rejecting Situation = "rejecting"
	// Severing: it takes the request and hangs up without an answer. ambiguous.
	Severing Situation = "severing"
	// Busy: it says that it is still at an earlier attempt under the same key.
	// in_flight.
	Busy Situation = "busy"
	// Silent: it takes the request and never answers. ambiguous, soon after the
	// deadline.
	Silent Situation = "silent"
	// Babbling: it takes the request, and its answer breaks the protocol.
	// ambiguous.
	Babbling Situation = "babbling"
	// Forbidden is made by the kit, and no counterpart enters it: the network
	// refuses every connection with [dispatch.ErrEgressRefused]. not_sent. Only an
	// adapter that makes no TCP connection can be excused.
	Forbidden Situation = "forbidden"
)

// Situations lists those that an adapter is tried in, or excused from.
func Situations() []Situation {
	return []Situation{Unreachable, Throttling, Rejecting, Severing, Busy, Silent, Babbling, Forbidden}
}

// evidence lists the outcomes that are right for a situation on a working
// connection. A request to a counterpart that has just gone may have got as far
// as the kernel, so there is room for doubt.
var evidence = map[Situation][]dispatch.Outcome{
	Unreachable: {dispatch.NotSent, dispatch.Ambiguous},
	Throttling:  {dispatch.Throttled},
	Rejecting:   {dispatch.Rejected},
	Severing:    {dispatch.Ambiguous},
	Busy:        {dispatch.InFlight},
	Silent:      {dispatch.Ambiguous},
	Babbling:    {dispatch.Ambiguous},
}

// checkExcuses wants a reason for each situation that is left out.
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

// Trial is one thing to find out about an adapter.
type Trial struct {
	Name      string
	situation Situation     // that it cannot do without; empty if it needs none
	timeout   time.Duration // the adapter's own; patience where it is not what is tried
	unbuilt   bool          // it builds adapters itself
	run       func(*bench) []Check
}

// Trials lists what there is to find out about the subject.
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

// Excuses judges the situations that the subject leaves out.
func (s Subject) Excuses() Check { return checkExcuses(s.Cannot) }

// Run makes the trial on a fresh bench.
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

// warm uses an adapter once, for nothing. What a library starts once in a
// process, and keeps, starts here, so that it does not count as a leak.
func (s Subject) warm(t *testing.T) {
	bench := s.set(t)
	if bench.problem() != "" || bench.build(s.patience()) != nil {
		return
	}
	bench.dispatch(context.Background(), bench.intent())
	_ = bench.close()
}

// Build returns an adapter that the end of the test closes.
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

// Intent is the first attempt at one step of a run, whose key no other step has.
func Intent(tool, step, payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: "run-001", StepID: step, ToolName: tool, BusinessScope: "invoice_442"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

// Expect reports a result of another outcome or error class.
func Expect(t testing.TB, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("got %s %q (%+v), want %s %q", got.Outcome, got.ErrorClass, got.Problem, outcome, class)
	}
}

// ExpectWhole has a provider repeat a long token at several places of its words. An adapter
// passes the token on whole, for a part of it would not be recognised.
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

// Mistakes are blocks of a provider and of its tool that an adapter must refuse
// in words that hold Says, and no value of theirs that is called canary.
type Mistakes = map[string]struct{ Settings, Tool, Says string }

// Refuses builds an adapter of each.
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

// ConnectsTo compares where an adapter of each provider's block says that it
// connects to.
func ConnectsTo(t *testing.T, kind dispatch.Kind, destinations map[string][]dispatch.Destination) {
	t.Helper()
	for settings, want := range destinations {
		adapter := Build(t, kind.New, dispatch.Spec{Settings: Block(settings)})
		if got := adapter.(dispatch.Located).Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}

// Block is a block of configuration as a user writes it. It is strict, and its
// errors say where, but repeat nothing: what an adapter adds is then its own.
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
