package compensations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Effect is what a completed step left behind, of which its undo is made.
type Effect struct {
	Tuple       dispatch.Tuple
	Payload     json.RawMessage
	Response    json.RawMessage // nil where none is known
	ProviderRef string          // empty where none is known
}

// MappingError says why an effect gives no payload for its undo. It is short,
// stable and repeats nothing of the effect. Trying again would end the same.
type MappingError string

// What can be wrong with a payload.
const (
	ErrMapping    MappingError = "undo_payload_failed"     // the expression fails, or gives not one result
	ErrSlow       MappingError = "undo_payload_timeout"    // it takes longer than a second
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
	return &Mapping{expression}, nil
}

// Payload is the forward payload octet for octet where nothing else was
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
		case errors.Is(err, jq.ErrTooLarge):
			return nil, ErrUnstorable
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, ErrMapping
		}
	}
	return nil, ErrSlow
}

// input is what the expression sees. The key is the one that the effect was
// made with.
func (e Effect) input() (map[string]any, error) {
	payload, payloadErr := decode(e.Payload)
	response, responseErr := decode(e.Response)
	return map[string]any{
		"payload":        payload,
		"response":       response,
		"provider_ref":   orNull(e.ProviderRef),
		"key":            e.Tuple.IdempotencyKey(),
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
