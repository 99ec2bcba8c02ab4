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

// Step is a completed step of a run, and how far it is undone.
type Step struct {
	Effect
	IntentID  int64
	ServedBy  string          // the fallback that completed it; empty for its own provider
	Age       time.Duration   // since it can have completed at the earliest
	Undo      dispatch.Status // of its undo; empty before there is one
	UndoEnded bool
}

// undoStep is the step_id of the step's undo. The key in it is without namespace and generation,
// so that it is the same whatever becomes of the step's own key; a serial id could come again after a restore.
func (s Step) undoStep() string { return "compensate:" + s.Tuple.IdempotencyKey() }

// Action is the next thing that a pass does.
type Action int

// What a pass can do.
const (
	Wait   Action = iota // for an undo
	Undo                 // enqueue the undo of the step
	Mark                 // the step's undo completed, and the step was not told
	Skip                 // the step needs no undo
	Fail                 // a human must undo the step
	Finish               // nothing is left to undo
)

// Decision is an action and the step that it is for.
type Decision struct {
	Action  Action
	Step    Step
	why     failure         // where it fails
	undo    string          // the tool
	payload json.RawMessage // of the undo
}

// failure says why a step cannot be undone; it is also the incident's detail.
type failure string

const (
	noReversal    failure = "no_reversal"             // the configuration does not say how
	windowExpired failure = "reversal_window_expired" // it is too late
	undoFailed    failure = "undo_failed"             // the undo ended otherwise than well
	// stepsForgotten is said of the run, when each step that is left is undone.
	stepsForgotten failure = "steps_forgotten"
	unknownTool    failure = "unconfigured_tool" // the saga waits for a process that knows the tool
	// A MappingError says why the undo's payload could not be made.
)

// incident is the kind of the incident that is opened.
func (f failure) incident() string {
	if f == windowExpired {
		return "reversal_window_expired"
	}
	return "compensation_failed"
}

// Decide says what follows for the next step of a plan.
func Decide(step Step, policies Policies) Decision {
	policy, known := policies.of(step)
	switch {
	case step.Undo == dispatch.StatusCompleted:
		return Decision{Action: Mark, Step: step}
	case step.Undo != "" && !step.UndoEnded:
		return Decision{Action: Wait, Step: step}
	case step.Undo != "":
		return Decision{Action: Fail, Step: step, why: undoFailed}
	case !known: // here: a process with another file may know how it is undone
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

// of is the policy of the tool that had the step's effect. Where a fallback
// served it, the fallback undoes it: only that one knows what was done.
func (p Policies) of(step Step) (dispatch.Policy, bool) {
	tool := step.Tuple
	if step.ServedBy != "" {
		tool.ToolName = step.ServedBy + "/" + tool.Operation()
	}
	policy, known := p[tool.Provider()][tool.Operation()]
	return policy, known
}

// names lists the tools whose policy is such.
func (p Policies) names(is func(dispatch.Policy) bool) []string {
	names := []string{} // NULL would not be an empty list
	for provider, tools := range p {
		for operation, policy := range tools {
			if !is(policy) {
				continue
			}
			names = append(names, provider+"/"+operation)
			if provider == operation { // which agents may also write without the slash
				names = append(names, provider)
			}
		}
	}
	return names
}

// Effect is the record of a completed step, of which its undo is made.
type Effect struct {
	Tuple       dispatch.Tuple
	Payload     json.RawMessage
	Response    json.RawMessage // nil where none is known
	ProviderRef string          // empty where none is known
	Key         string          // that it was made with; empty for the tuple's own, without namespace and generation
}

// MappingError says why an effect gives no payload for its undo. It is short,
// stable and repeats nothing of the effect. Trying again would end the same.
type MappingError string

// What can be wrong with a payload.
const (
	ErrMapping    MappingError = "undo_payload_failed"     // the expression fails, or gives not one result
	ErrSlow       MappingError = "undo_payload_timeout"    // it takes longer than a second, or too many steps
	ErrNoObject   MappingError = "undo_payload_no_object"  // it gives null, a list or a mere value
	ErrIncomplete MappingError = "undo_payload_incomplete" // a field is null: what should be there was not found
	ErrUnstorable MappingError = "undo_payload_unstorable" // jsonb would refuse it, or it is huge
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

// reads reports whether the expression may take this field of the effect.
func (m *Mapping) reads(field string) bool {
	others := slices.DeleteFunc([]string{"payload", "response", "provider_ref", "key", "agent_run_id", "step_id", "tool_name", "business_scope"},
		func(name string) bool { return name == field })
	return m.expression != nil && !m.expression.ReadsOnly(others...)
}

// Payload is the forward payload byte for byte where nothing else was
// configured, and otherwise a JSON object without a null among its fields: a
// refund of nothing is not a refund. It fails with a [MappingError], or because
// ctx ended.
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

// evaluate tries twice before it calls the expression slow: a process that was
// suspended ran out of time as well.
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

// input is the value that the expression sees. The key is the one that the effect was
// made with.
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
	maxOctets = 1 << 20 // of a payload, as the outbox has it
	maxDepth  = 500     // jsonb recurses on a bounded stack
	maxDigits = 1000    // and writes numbers out in full
)

// isStorable reports whether the outbox takes what an expression gave. A
// payload that it refuses would be refused again at every pass.
func isStorable(value any) bool {
	room := maxOctets
	return fits(value, maxDepth, &room)
}

// fits takes what the value needs at most, as jsonb writes it, out of the room.
// It ends once the room does: an expression can give a small value that contains
// itself so often that nothing could hold it written out.
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

// fitsNumber counts the zeros that an exponent stands for.
func fitsNumber(number string, room *int) bool {
	digits, power, found := strings.Cut(strings.ToLower(number), "e")
	exponent, err := strconv.Atoi(power)
	if len(digits) > maxDigits || found && (err != nil || max(exponent, -exponent) > maxDigits) {
		return false
	}
	*room -= len("0.") + len(digits) + max(exponent, -exponent)
	return *room >= 0
}
