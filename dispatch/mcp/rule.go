package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Rule says what an answer means that does not tell by itself.
type Rule struct {
	When    string `yaml:"when" jsonschema:"required" jsonschema_description:"A jq expression over {is_error, text, structured, content, code, message, data}: text is the text content joined by newlines; structured and content are null where there are none; code, message and data are those of a JSON-RPC error, and null for a result. true matches, false and null do not; a rule that gives anything else, or fails, makes the answer ambiguous."`
	Outcome string `yaml:"outcome" jsonschema:"required,enum=completed,enum=throttled,enum=rejected,enum=in_flight,enum=ambiguous,enum=absent" jsonschema_description:"completed: the effect is there. throttled: not now, and nothing has happened. rejected: refused for good, and nothing has happened. in_flight: the server is still busy with an earlier attempt; not for non_idempotent tools. ambiguous: it cannot be told. absent: there is no such effect; only for read_only tools, as lookups, and only believed of a result."`
	Error   string `yaml:"error,omitempty" jsonschema:"pattern=^[a-z][a-z0-9_]{0,63}$" jsonschema_description:"A short name for the failure, stored with the attempt."`
}

// rule is Rule, checked and compiled.
type rule struct {
	when    *jq.Expression
	outcome dispatch.Outcome
	class   string // "" leaves it to the answer
}

type rules []rule

var (
	ruleOutcomes = []dispatch.Outcome{
		dispatch.Completed, dispatch.Throttled, dispatch.Rejected,
		dispatch.InFlight, dispatch.Ambiguous, dispatch.Absent,
	}
	// What keeps the question open, and so is never claimed wrongly.
	doubtful = []dispatch.Outcome{dispatch.InFlight, dispatch.Ambiguous}

	className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// compileRules reports every problem of the rules, joined.
func compileRules(settings []Rule, class dispatch.Class) (rules, error) {
	compiled := make(rules, len(settings))
	var problems []error
	for i, setting := range settings {
		rule, err := compileRule(setting, class)
		if err != nil {
			problems = append(problems, fmt.Errorf("response.rules.%d: %w", i, err))
		}
		compiled[i] = rule
	}
	return compiled, errors.Join(problems...)
}

func compileRule(setting Rule, class dispatch.Class) (rule, error) {
	r := rule{outcome: dispatch.Outcome(setting.Outcome), class: setting.Error}
	if r.outcome == dispatch.Absent {
		r.class = cmp.Or(r.class, "absent")
	}
	if setting.When == "" {
		return r, errors.Join(errors.New("when is missing"), r.check(class))
	}
	var err error
	r.when, err = optional("when", setting.When)
	return r, errors.Join(err, r.check(class))
}

func (r rule) check(class dispatch.Class) error {
	var problems []error
	switch {
	case !slices.Contains(ruleOutcomes, r.outcome):
		problems = append(problems, errors.New("outcome is none of completed, throttled, rejected, in_flight, ambiguous and absent"))
	case r.outcome == dispatch.Absent && class != dispatch.ReadOnly:
		problems = append(problems, errors.New("outcome absent is a lookup's; this tool is not read_only"))
	case r.outcome == dispatch.InFlight && class == dispatch.NonIdempotent:
		problems = append(problems, errors.New("outcome in_flight would make a non_idempotent call again; write throttled where nothing has happened, ambiguous where something may have"))
	case r.when != nil && !slices.Contains(doubtful, r.outcome) && r.matchesAnything():
		problems = append(problems, fmt.Errorf("when: matches every answer, a bare internal error too, and would call it %s", r.outcome))
	}
	if r.class != "" && (r.outcome == dispatch.Completed || !className.MatchString(r.class)) {
		problems = append(problems, errors.New("error: completed has none, and others a short name of lower-case letters, digits and _"))
	}
	return errors.Join(problems...)
}

// matchesAnything finds the careless rule: one such as .structured.error == null,
// which is true of a failure as well.
func (r rule) matchesAnything() bool {
	for _, bare := range []*answer{{}, {isError: true}, {isFault: true, code: codeInternalError}} {
		if matched, err := r.matches(context.Background(), bare.view()); err != nil || !matched {
			return false
		}
	}
	return true
}

// verdict is that of the first rule that matches; known is false where none
// does. Where a rule cannot be asked nothing is certain any more: neither what
// it would have said, nor that a later one may speak in its place.
func (rs rules) verdict(ctx context.Context, a *answer) (v verdict, known bool) {
	for _, rule := range rs {
		matched, err := rule.matches(ctx, a.view())
		switch {
		case err != nil && ctx.Err() != nil:
			return doubt(failure.Context(ctx)), true
		case err != nil:
			return doubt("rule_failed"), true
		case matched:
			return rule.verdict(a), true
		}
	}
	return verdict{}, false
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

func (r rule) verdict(a *answer) verdict {
	if r.outcome == dispatch.Absent && a.isFault {
		return doubt("rule_refused") // a refusal to look is no absence
	}
	v := verdict{outcome: r.outcome, class: r.class}
	if v.class == "" && v.outcome != dispatch.Completed {
		v.class = cmp.Or(a.class(), string(r.outcome))
	}
	return v
}
