package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

// tool is Tool, checked and compiled.
type tool struct {
	provider    *provider
	name        string
	class       dispatch.Class
	isAsked     bool           // it answers lookups
	arguments   *jq.Expression // nil sends the payload
	keyArgument string         // "" for none
	reference   *jq.Expression // nil for none
	isError     dispatch.Outcome
	rules       rules
}

// newTool takes nil for a provider whose own settings are wrong.
func newTool(provider *provider, operation string, spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := blocks.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	t := &tool{
		provider: provider, name: cmp.Or(block.Name, operation), class: spec.Class,
		isAsked: spec.AnswersLookups, keyArgument: block.KeyArgument,
		isError: cmp.Or(dispatch.Outcome(block.Response.IsError), dispatch.Ambiguous),
	}
	var argumentsErr, refErr, rulesErr error
	t.arguments, argumentsErr = optional("arguments", block.Arguments)
	t.reference, refErr = optional("response.ref", block.Response.Ref)
	t.rules, rulesErr = compileRules(block.Response.Rules, spec.Class)
	return t, errors.Join(argumentsErr, refErr, rulesErr, t.check())
}

func (t *tool) check() error {
	var problems []error
	if t.isError != dispatch.Ambiguous && t.isError != dispatch.Rejected {
		problems = append(problems, errors.New("response.is_error is neither ambiguous nor rejected"))
	}
	if t.class == dispatch.KeyIdempotent && t.keyArgument == "" && t.provider != nil && t.provider.keyMeta == "" {
		problems = append(problems, errors.New("the class is key_idempotent, but no key is sent; set key_argument, or leave out idempotency_key.meta: none"))
	}
	// Without such a rule an empty list would be taken for an effect.
	if t.isAsked && !slices.ContainsFunc(t.rules, func(r rule) bool { return r.outcome == dispatch.Absent }) {
		problems = append(problems, errors.New("response.rules: this tool answers lookups, so it must say what finding nothing looks like; add a rule with outcome: absent"))
	}
	return errors.Join(problems...)
}

func optional(field, source string) (*jq.Expression, error) {
	if source == "" {
		return nil, nil
	}
	compiled, err := jq.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return compiled, nil
}

// render makes the call that every attempt of the intent makes alike.
func (t *tool) render(ctx context.Context, request dispatch.Request) (*sdk.CallToolParams, error) {
	arguments, err := t.writeArguments(ctx, request)
	if err != nil {
		return nil, err
	}
	return &sdk.CallToolParams{Meta: t.provider.meta(request), Name: t.name, Arguments: arguments}, nil
}

var errArguments = errors.New("the arguments are no object, or already have the one that carries the idempotency key")

func (t *tool) writeArguments(ctx context.Context, request dispatch.Request) (json.RawMessage, error) {
	arguments := request.Payload
	if t.arguments != nil {
		input, err := render.Input(request)
		if err != nil {
			return nil, err
		}
		mapped, err := t.arguments.Eval(ctx, input)
		if err != nil {
			return nil, err
		}
		arguments = jq.Encode(mapped)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &members); err != nil || members == nil {
		return nil, errArguments
	}
	if t.keyArgument == "" {
		return arguments, nil
	}
	if _, taken := members[t.keyArgument]; taken {
		return nil, errArguments
	}
	members[t.keyArgument], _ = json.Marshal(request.IdempotencyKey) // a string always has a JSON form
	return json.Marshal(members)
}
