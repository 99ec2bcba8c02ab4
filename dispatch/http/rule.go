package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/retryafter"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Rule says what a response means whose status does not tell.
type Rule struct {
	When       string `yaml:"when" jsonschema:"required" jsonschema_description:"A jq expression over {status, headers, body, date}: header names in lower case, the body null where it is no JSON, the date in seconds since 1970 by the provider's clock. true matches, false and null do not; a rule that gives anything else, or fails, makes the response ambiguous."`
	Outcome    string `yaml:"outcome" jsonschema:"required,enum=completed,enum=throttled,enum=rejected,enum=in_flight,enum=ambiguous,enum=absent" jsonschema_description:"completed: the effect is there; never believed of a 5xx. throttled: not now, and nothing has happened. rejected: refused for good, and nothing has happened. in_flight: the provider is still busy with an earlier attempt; not for non_idempotent tools. ambiguous: it cannot be told. absent: there is no such effect; only for read_only tools, as lookups."`
	RetryAfter string `yaml:"retry_after,omitempty" jsonschema_description:"A jq expression over the same, for the least number of seconds to wait. It goes together with a Retry-After header: the longer wait counts."`
	Error      string `yaml:"error,omitempty" jsonschema:"pattern=^[a-z][a-z0-9_]{0,63}$" jsonschema_description:"A short name for the failure, stored with the attempt in place of http_<status>, or of absent."`
}

// rule is Rule, checked and compiled.
type rule struct {
	when       *jq.Expression
	outcome    dispatch.Outcome
	retryAfter *jq.Expression // nil leaves it to the header
	class      string         // "" leaves it to the status
}

type rules []rule

var (
	ruleOutcomes = []dispatch.Outcome{
		dispatch.Completed, dispatch.Throttled, dispatch.Rejected,
		dispatch.InFlight, dispatch.Ambiguous, dispatch.Absent,
	}
	// What may be tried again, and so may have a time for it.
	unsettled = []dispatch.Outcome{dispatch.Throttled, dispatch.InFlight, dispatch.Ambiguous}
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
	if r.outcome == dispatch.Absent { // "http_200" would name a success
		r.class = cmp.Or(r.class, "absent")
	}
	var whenErr, waitErr error
	if setting.When == "" {
		whenErr = errors.New("when is missing")
	} else {
		r.when, whenErr = optional("when", setting.When)
	}
	r.retryAfter, waitErr = optional("retry_after", setting.RetryAfter)
	return r, errors.Join(whenErr, waitErr, r.check(class))
}

func (r rule) check(class dispatch.Class) error {
	var problems []error
	switch {
	case !slices.Contains(ruleOutcomes, r.outcome):
		problems = append(problems, errors.New("outcome is none of completed, throttled, rejected, in_flight, ambiguous and absent"))
	case r.outcome == dispatch.Absent && class != dispatch.ReadOnly:
		problems = append(problems, errors.New("outcome absent is a lookup's; this tool is not read_only"))
	case r.outcome == dispatch.InFlight && class == dispatch.NonIdempotent:
		problems = append(problems, errors.New("outcome in_flight would send a non_idempotent request again; write throttled where nothing has happened, ambiguous where something may have"))
	case r.retryAfter != nil && !slices.Contains(unsettled, r.outcome):
		problems = append(problems, fmt.Errorf("retry_after: %s is not tried again", r.outcome))
	case r.when != nil && !slices.Contains(doubtful, r.outcome) && r.matchesAnything():
		problems = append(problems, fmt.Errorf("when: matches every response without a body, a bare 500 too, and would call it %s; name the status", r.outcome))
	}
	if r.class != "" && r.outcome == dispatch.Completed {
		problems = append(problems, errors.New("error: completed is none"))
	}
	if r.class != "" && !className.MatchString(r.class) {
		problems = append(problems, errors.New("error is no short name of lower-case letters, digits and _"))
	}
	return errors.Join(problems...)
}

// matchesAnything finds the careless rule: one such as .body.error == null,
// which is true of an error page as well.
func (r rule) matchesAnything() bool {
	for _, status := range []int{200, 404, 500} {
		bare := &answer{status: status}
		if matched, err := r.matches(context.Background(), bare.view()); err != nil || !matched {
			return false
		}
	}
	return true
}

// verdict is that of the first rule that matches; known is false where none
// does. Where a rule cannot be asked, because of the body or of the rule,
// nothing is certain any more: neither what it would have said, nor that a
// later one may speak in its place.
func (rs rules) verdict(ctx context.Context, a *answer) (v verdict, known bool) {
	switch {
	case len(rs) == 0:
		return verdict{}, false
	case a.unreliable != "":
		return doubt(a.unreliable), true
	}
	view := a.view()
	for _, rule := range rs {
		matched, err := rule.matches(ctx, view)
		switch {
		case err != nil && ctx.Err() != nil:
			return doubt(failure.Context(ctx)), true
		case err != nil:
			return doubt("rule_failed"), true
		case matched:
			return rule.verdict(ctx, a, view), true
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

func (r rule) verdict(ctx context.Context, a *answer, view map[string]any) verdict {
	if !r.isBelievable(a) {
		return doubt("rule_refused")
	}
	v := verdict{outcome: r.outcome, class: r.class, retryAfter: r.wait(ctx, view)}
	if v.class == "" && v.outcome != dispatch.Completed {
		v.class = statusClass(a.status)
	}
	return v
}

// isBelievable bounds what a rule may claim. No effect is proven by a server's
// error, and no absence by a refusal to look or by a page that is not data.
func (r rule) isBelievable(a *answer) bool {
	switch r.outcome {
	case dispatch.Completed:
		return a.status >= 200 && a.status <= 499
	case dispatch.Absent:
		found := a.status >= 200 && a.status <= 299
		return a.status == 404 || a.status == 410 || (found && a.json() != nil)
	}
	return true
}

// wait is 0 where the expression gives no number: what remains is the header's
// wish, and the backoff.
func (r rule) wait(ctx context.Context, view map[string]any) time.Duration {
	if r.retryAfter == nil {
		return 0
	}
	value, err := r.retryAfter.Eval(ctx, view)
	if err != nil {
		return 0
	}
	text, err := render.Scalar(value)
	if err != nil {
		return 0
	}
	wait, _ := retryafter.Seconds(text)
	return wait
}
