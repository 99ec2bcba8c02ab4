// Package rules decides the meaning of a provider's answers by the rules and expressions that an operator wrote for
// a tool. The adapters for HTTP and for MCP share it. Each has its own kind of answer, and decides itself if no rule
// matches.
package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Verdict is the outcome that an answer proves.
type Verdict struct {
	Outcome    dispatch.Outcome
	Final      bool          // a retry with the same key would get the same answer
	Class      string        // the error class; "" for a success
	RetryAfter time.Duration // the least wait that a rule asks for; 0 for none
}

// Doubt is the verdict for an answer that proves nothing.
func Doubt(class string) Verdict { return Verdict{Outcome: dispatch.Ambiguous, Class: class} }

// Answer is a provider's response as rules see it.
type Answer interface {
	// View is the input of the rules' expressions.
	View() map[string]any
	// Class names the failure if the matching rule has no error name.
	Class() string
	// CanProve reports whether the answer can prove the outcome. If not, a rule's claim is not believed.
	CanProve(outcome dispatch.Outcome) bool
}

// Setting is one rule as in the configuration. The adapters' own types document the fields.
type Setting struct {
	When       string
	Outcome    string
	RetryAfter string
	Error      string
}

// Rules are compiled rules. The first one that matches decides.
type Rules []rule

type rule struct {
	when       *jq.Expression
	outcome    dispatch.Outcome
	retryAfter *jq.Expression // nil for no wait
	class      string         // "" to use the answer's own class
}

var (
	outcomes = []dispatch.Outcome{
		dispatch.Completed, dispatch.Throttled, dispatch.Rejected, dispatch.CredentialsRefused, dispatch.Forbidden,
		dispatch.InFlight, dispatch.Ambiguous, dispatch.Absent,
	}
	// A rule can set a wait only for an outcome that is tried again.
	retried = []dispatch.Outcome{dispatch.Throttled, dispatch.InFlight, dispatch.Ambiguous}
	// These outcomes leave the effect open, so a rule can never claim them wrongly.
	doubtful = []dispatch.Outcome{dispatch.InFlight, dispatch.Ambiguous}

	className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// Compile returns every problem of the rules of a tool of the class, joined. bare are answers with as little content
// as possible, some of them failures. A rule that matches all of them is an error, unless its outcome is doubtful.
func Compile(settings []Setting, class dispatch.Class, bare ...Answer) (Rules, error) {
	compiled := make(Rules, len(settings))
	var problems []error
	for i, setting := range settings {
		rule, err := compile(setting, class, bare)
		if err != nil {
			problems = append(problems, fmt.Errorf("response.rules.%d: %w", i, err))
		}
		compiled[i] = rule
	}
	return compiled, errors.Join(problems...)
}

func compile(setting Setting, class dispatch.Class, bare []Answer) (rule, error) {
	r := rule{outcome: dispatch.Outcome(setting.Outcome), class: setting.Error}
	if r.outcome == dispatch.Absent { // the answer's own class may name a success
		r.class = cmp.Or(r.class, "absent")
	}
	var problems [3]error
	r.when, problems[0] = render.Expression("when", setting.When)
	if setting.When == "" {
		problems[0] = errors.New("when is missing")
	}
	r.retryAfter, problems[1] = render.Expression("retry_after", setting.RetryAfter)
	problems[2] = r.check(class, bare)
	return r, errors.Join(problems[:]...)
}

func (r rule) check(class dispatch.Class, bare []Answer) error {
	var problems []error
	switch {
	case !slices.Contains(outcomes, r.outcome):
		problems = append(problems, errors.New("outcome is none of completed, throttled, rejected, credentials_refused, forbidden, in_flight, ambiguous and absent"))
	case r.outcome == dispatch.Absent && class != dispatch.ReadOnly:
		problems = append(problems, errors.New("outcome absent is a lookup's; this tool is not read_only"))
	case r.outcome == dispatch.InFlight && class == dispatch.NonIdempotent:
		problems = append(problems, errors.New("outcome in_flight would send a non_idempotent request again; write throttled where nothing has happened, ambiguous where something may have"))
	case r.retryAfter != nil && !slices.Contains(retried, r.outcome):
		problems = append(problems, fmt.Errorf("retry_after: %s is not tried again", r.outcome))
	case r.when != nil && !slices.Contains(doubtful, r.outcome) && r.matchesAll(bare):
		problems = append(problems, fmt.Errorf("when: matches every answer that has no content, a bare server error too, and would call it %s; name the status or the code", r.outcome))
	}
	if r.class != "" && r.outcome == dispatch.Completed {
		problems = append(problems, errors.New("error: completed is none"))
	}
	if r.class != "" && !className.MatchString(r.class) {
		problems = append(problems, errors.New("error is no short name of lower-case letters, digits and _"))
	}
	return errors.Join(problems...)
}

// matchesAll reports whether a rule matches all bare answers. One like .body.error == null does, since it is true of
// an error page as well.
func (r rule) matchesAll(bare []Answer) bool {
	for _, answer := range bare {
		if matched, err := r.matches(context.Background(), answer.View()); err != nil || !matched {
			return false
		}
	}
	return len(bare) > 0
}

// Judge returns the verdict of the first rule that matches; known is false if none matches. If a rule fails, the
// answer stays in doubt: the failed rule might have matched, so no later rule may decide in its place.
func (rs Rules) Judge(ctx context.Context, answer Answer) (v Verdict, known bool) {
	if len(rs) == 0 {
		return Verdict{}, false
	}
	view := answer.View()
	for _, rule := range rs {
		matched, err := rule.matches(ctx, view)
		switch {
		case err != nil && ctx.Err() != nil:
			return Doubt(evidence.Context(ctx)), true
		case err != nil:
			return Doubt("rule_failed"), true
		case matched && !answer.CanProve(rule.outcome):
			return Doubt("rule_refused"), true
		case matched:
			return rule.verdict(ctx, answer, view), true
		}
	}
	return Verdict{}, false
}

var errNoCondition = errors.New("jq gave neither true nor false nor null")

func (r rule) matches(ctx context.Context, view map[string]any) (bool, error) {
	value, err := r.when.Eval(ctx, view)
	if err != nil {
		return false, err
	}
	switch value := value.(type) {
	case bool:
		return value, nil
	case nil:
		return false, nil
	}
	return false, errNoCondition
}

// verdict returns no wait if retry_after gives no number. The provider's header and the backoff still apply.
func (r rule) verdict(ctx context.Context, answer Answer, view map[string]any) Verdict {
	v := Verdict{Outcome: r.outcome, Class: r.class}
	v.RetryAfter, _ = evidence.Seconds(render.Find(ctx, r.retryAfter, view))
	if v.Class == "" && v.Outcome != dispatch.Completed {
		v.Class = cmp.Or(answer.Class(), string(r.outcome))
	}
	return v
}

// Reading defines how one tool's answers are understood: the operator's rules, and the expression for the provider's
// own id of the effect.
type Reading struct {
	Rules     Rules
	reference *jq.Expression // nil if no id is read
	isLookup  bool
}

// NewReading returns every problem, joined.
func NewReading(reference string, settings []Setting, spec dispatch.ToolSpec, bare ...Answer) (Reading, error) {
	r := Reading{isLookup: spec.AnswersLookups}
	var problems [3]error
	r.reference, problems[0] = render.Expression("response.ref", reference)
	r.Rules, problems[1] = Compile(settings, spec.Class, bare...)
	// Without a rule for absent, a lookup would take an empty list for an effect.
	if r.isLookup && !slices.ContainsFunc(r.Rules, func(r rule) bool { return r.outcome == dispatch.Absent }) {
		problems[2] = errors.New("response.rules: this tool answers lookups, so it must say what finding nothing looks like; add a rule with outcome: absent")
	}
	return r, errors.Join(problems[:]...)
}

// Refer adds the provider's id of the effect to a completed result. input is the input of the expression. An effect
// without an id is still an effect. A lookup's answer without an id is in doubt: it describes something else, or
// nothing.
func (r Reading) Refer(ctx context.Context, result *dispatch.Result, input any) {
	result.ProviderRef = evidence.Text(render.Find(ctx, r.reference, input))
	if r.isLookup && r.reference != nil && result.ProviderRef == "" {
		result.Outcome, result.ErrorClass = dispatch.Ambiguous, "no_reference"
	}
}
