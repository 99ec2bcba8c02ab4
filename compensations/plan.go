package compensations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Step is a completed step of a run, with the status of its undo.
type Step struct {
	Effect
	IntentID  int64
	ServedBy  string          // the fallback that completed it; empty for its own provider
	Age       time.Duration   // since the earliest time at which it can have had its effect
	Undo      dispatch.Status // status of its undo; empty before there is an undo
	UndoEnded bool            // the undo has settled
}

// undoStep returns the step_id of the step's undo. It contains the step's key without namespace and generation, so
// that it stays the same if the step's own key changes. The intent's id would not do: an id can be used again
// after a restore.
func (s Step) undoStep() string { return "compensate:" + s.Tuple.IdempotencyKey() }

// Action is the next thing that a pass does.
type Action int

// These are the actions of a pass.
const (
	Wait   Action = iota // wait for the step's undo, or for a process that knows its tool
	Undo                 // enqueue the undo of the step
	Mark                 // mark the step as compensated, since its undo has completed
	Skip                 // go on, since the step needs no undo
	Fail                 // end the saga as failed: a human must undo the step
	Finish               // end the saga as compensated: no step is left to undo
)

// Decision is an action and the step that it is for.
type Decision struct {
	Action  Action
	Step    Step
	why     failure         // why the action is Fail, or unknownTool for a Wait
	undo    string          // the tool of the undo
	payload json.RawMessage // the undo's payload; nil for the step's own
}

// failure says why a step cannot be undone. It is stored as the incident's detail.
type failure string

const (
	noReversal    failure = "no_reversal"             // the configuration has no undo for the tool
	windowExpired failure = "reversal_window_expired" // the time in which the effect can be undone is over
	undoFailed    failure = "undo_failed"             // the undo settled with another status than completed
	// stepsForgotten concerns the run: all remaining steps are undone, but pruning had removed completed steps.
	stepsForgotten failure = "steps_forgotten"
	unknownTool    failure = "unconfigured_tool" // the saga waits for a process that knows the tool
	// A MappingError is the failure if the undo's payload could not be made.
)

// incident returns the kind of the incident that the failure opens.
func (f failure) incident() string {
	if f == windowExpired {
		return "reversal_window_expired"
	}
	return "compensation_failed"
}

// Decide returns the action for the next step of a plan.
func Decide(step Step, policies Policies) Decision {
	policy, known := policies.of(step)
	switch {
	case step.Undo == dispatch.StatusCompleted:
		return Decision{Action: Mark, Step: step}
	case step.Undo != "" && !step.UndoEnded:
		return Decision{Action: Wait, Step: step}
	case step.Undo != "":
		return Decision{Action: Fail, Step: step, why: undoFailed}
	case !known: // a process with another configuration may know how to undo the step
		return Decision{Action: Wait, Step: step, why: unknownTool}
	case needsNoUndo(policy):
		return Decision{Action: Skip, Step: step}
	case policy.Reversal.Tool == "":
		return Decision{Action: Fail, Step: step, why: noReversal}
	case policy.Reversal.Window > 0 && step.Age > policy.Reversal.Window:
		return Decision{Action: Fail, Step: step, why: windowExpired}
	}
	return Decision{Action: Undo, Step: step, undo: policy.Reversal.Tool}
}

func needsNoUndo(policy dispatch.Policy) bool {
	return policy.Class == dispatch.ReadOnly || policy.Reversal.None
}

// Policies are the configured tools, by provider and operation.
type Policies map[string]map[string]dispatch.Policy

// of returns the policy of the tool that had the step's effect. If a fallback served the step, that is the
// fallback's tool, since only the fallback knows the effect.
func (p Policies) of(step Step) (dispatch.Policy, bool) {
	tool := step.Tuple
	if step.ServedBy != "" {
		tool.ToolName = step.ServedBy + "/" + tool.Operation()
	}
	policy, known := p[tool.Provider()][tool.Operation()]
	return policy, known
}

// names returns the tools for whose policy is returns true.
func (p Policies) names(is func(dispatch.Policy) bool) []string {
	names := []string{} // NULL would not be an empty list
	for provider, tools := range p {
		for operation, policy := range tools {
			if !is(policy) {
				continue
			}
			names = append(names, provider+"/"+operation)
			if provider == operation { // agents may also write such a tool without the slash
				names = append(names, provider)
			}
		}
	}
	return names
}

// Effect is the record of a completed step. The payload of its undo is made of it.
type Effect struct {
	Tuple       dispatch.Tuple
	Payload     json.RawMessage
	Response    json.RawMessage // nil if none is known
	ProviderRef string          // empty if none is known
	Key         string          // the key of the request; empty for the tuple's key without namespace and generation
}

// MappingError says why no payload for an undo can be made of an effect. Its text is short and stable, and repeats no
// data of the effect. A retry would fail with the same error.
type MappingError string

// These are the reasons why a payload cannot be made.
const (
	ErrMapping    MappingError = "undo_payload_failed"     // the expression fails, or does not give exactly one result
	ErrSlow       MappingError = "undo_payload_timeout"    // the expression takes longer than a second, or too many steps
	ErrNoObject   MappingError = "undo_payload_no_object"  // the result is not a JSON object
	ErrIncomplete MappingError = "undo_payload_incomplete" // a field of the result is null: the effect lacks its value
	ErrUnstorable MappingError = "undo_payload_unstorable" // the outbox would refuse the result, or the result is huge
)

func (e MappingError) Error() string { return string(e) }

// Mapping makes the payload of an undo. It may be used concurrently.
type Mapping struct {
	expression *jq.Expression // nil sends the forward payload
}

// CompileMapping compiles the payload of a [dispatch.Reversal].
func CompileMapping(source string) (*Mapping, error) {
	if source == "" {
		return &Mapping{}, nil
	}
	expression, err := jq.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("payload of an undo: %w", err)
	}
	return &Mapping{expression.InOwnQueue()}, nil
}

// reads reports whether the expression may read this field of the effect.
func (m *Mapping) reads(field string) bool {
	others := slices.DeleteFunc([]string{"payload", "response", "provider_ref", "key", "agent_run_id", "step_id", "tool_name", "business_scope"},
		func(name string) bool { return name == field })
	return m.expression != nil && !m.expression.ReadsOnly(others...)
}

// Payload returns the payload of an undo. Without an expression, that is the step's own payload byte for byte. With
// one, it is a JSON object in which no field is null, since an undo that lacks a value, such as the charge to refund,
// could do something else. Payload fails with a [MappingError], or because ctx ended.
func (m *Mapping) Payload(ctx context.Context, effect Effect) (json.RawMessage, error) {
	if m.expression == nil {
		return effect.Payload, nil
	}
	value, err := m.evaluate(ctx, effect)
	if err != nil {
		return nil, err
	}
	object, isObject := value.(map[string]any)
	switch {
	case !isObject:
		return nil, ErrNoObject
	case hasNull(object):
		return nil, ErrIncomplete
	case !isStorable(object):
		return nil, ErrUnstorable
	}
	return jq.Encode(object), nil
}

// evaluate tries twice before it returns ErrSlow, since a process that was suspended runs out of time too.
func (m *Mapping) evaluate(ctx context.Context, effect Effect) (any, error) {
	for range 2 {
		input, err := effect.input()
		if err != nil {
			return nil, ErrMapping
		}
		value, err := m.expression.Eval(ctx, input)
		switch {
		case err == nil:
			return value, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("payload of an undo: %w", ctx.Err())
		case errors.Is(err, jq.ErrTooLarge), errors.Is(err, jq.ErrBuildsTooMuch):
			return nil, ErrUnstorable
		case errors.Is(err, jq.ErrTooManySteps):
			return nil, ErrSlow
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, ErrMapping
		}
	}
	return nil, ErrSlow
}

// input returns the value that the expression reads. Its key is the one that the request was sent with.
func (e Effect) input() (map[string]any, error) {
	payload, payloadErr := decode(e.Payload)
	response, responseErr := decode(e.Response)
	return map[string]any{
		"payload":        payload,
		"response":       response,
		"provider_ref":   orNull(e.ProviderRef),
		"key":            cmp.Or(e.Key, e.Tuple.IdempotencyKey()),
		"agent_run_id":   e.Tuple.AgentRunID,
		"step_id":        e.Tuple.StepID,
		"tool_name":      e.Tuple.ToolName,
		"business_scope": e.Tuple.BusinessScope,
	}, errors.Join(payloadErr, responseErr)
}

func decode(text json.RawMessage) (any, error) {
	if len(text) == 0 {
		return nil, nil
	}
	return jq.Decode(text)
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func hasNull(object map[string]any) bool {
	for _, value := range object {
		if value == nil {
			return true
		}
	}
	return false
}

const (
	maxOctets = 1 << 20 // of a payload: the limit of the outbox
	maxDepth  = 500     // since jsonb recurses on a bounded stack
	maxDigits = 1000    // since jsonb writes numbers out in full
)

// isStorable reports whether the outbox accepts the result of an expression. A payload that the outbox refuses would
// be refused again in every pass.
func isStorable(value any) bool {
	room := maxOctets
	return fits(value, maxDepth, &room)
}

// fits subtracts from room the most bytes that the value needs when jsonb writes it, and reports whether room is
// left. It ends once there is none: in the result of an expression the same value can occur so often that no
// memory could hold its text.
func fits(value any, depth int, room *int) bool {
	*room -= len("[], ")
	if depth == 0 || *room < 0 {
		return false
	}
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if !fitsText(name, room) || !fits(inner, depth-1, room) {
				return false
			}
		}
	case []any:
		for _, inner := range value {
			if !fits(inner, depth-1, room) {
				return false
			}
		}
	case string:
		return fitsText(value, room)
	case json.Number:
		return fitsNumber(string(value), room)
	case *big.Int:
		return value.BitLen() < maxDigits*3 && fitsNumber(value.String(), room) // a digit is 3.3 bits
	case float64:
		return !math.IsNaN(value) && !math.IsInf(value, 0) && fitsNumber(strconv.FormatFloat(value, 'g', -1, 64), room)
	default: // an int, true, false or null
		*room -= len("-9223372036854775808")
	}
	return *room >= 0
}

func fitsText(text string, room *int) bool {
	*room -= len(`"": `)
	for _, r := range text {
		switch {
		case r == 0:
			return false
		case r < ' ':
			*room -= len(`\u0001`)
		case r == '"', r == '\\':
			*room -= len(`\"`)
		default:
			*room -= len(string(r))
		}
	}
	return *room >= 0
}

// fitsNumber does for a number what fits does. It counts the zeros that an exponent adds.
func fitsNumber(number string, room *int) bool {
	digits, power, found := strings.Cut(strings.ToLower(number), "e")
	exponent, err := strconv.Atoi(power)
	if len(digits) > maxDigits || found && (err != nil || max(exponent, -exponent) > maxDigits) {
		return false
	}
	*room -= len("0.") + len(digits) + max(exponent, -exponent)
	return *room >= 0
}
