package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/rules"
	"github.com/agentoutbox/drainer/internal/jq"
)

// tool is Tool, checked and compiled.
type tool struct {
	provider    *provider
	name        string
	class       dispatch.Class
	arguments   *jq.Expression // nil sends the payload
	keyArgument string         // "" for none
	isError     dispatch.Outcome
	reading     rules.Reading
}

// newTool takes nil for a provider whose own settings are wrong.
func newTool(provider *provider, operation string, spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := adapter.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	t := &tool{
		provider: provider, name: cmp.Or(block.Name, operation), class: spec.Class,
		keyArgument: block.KeyArgument,
		isError:     cmp.Or(dispatch.Outcome(block.Response.IsError), dispatch.Ambiguous),
	}
	settings := make([]rules.Setting, len(block.Response.Rules))
	for i, rule := range block.Response.Rules {
		settings[i] = rules.Setting{When: rule.When, Outcome: rule.Outcome, Error: rule.Error}
	}
	var argumentsErr, readingErr error
	t.arguments, argumentsErr = render.Expression("arguments", block.Arguments)
	t.reading, readingErr = rules.NewReading(block.Response.Ref, settings, spec, bareAnswers...)
	problems := []error{argumentsErr, readingErr}
	if t.isError != dispatch.Ambiguous && t.isError != dispatch.Rejected {
		problems = append(problems, errors.New("response.is_error is neither ambiguous nor rejected"))
	}
	if t.class == dispatch.KeyIdempotent && t.keyArgument == "" && t.provider != nil && t.provider.keyMeta == "" {
		problems = append(problems, errors.New("the class is key_idempotent, but no key is sent; set key_argument, or leave out idempotency_key.meta: none"))
	}
	return t, errors.Join(problems...)
}

// render makes the call that every attempt of the intent makes alike.
func (t *tool) render(ctx context.Context, request dispatch.Request) (*sdk.CallToolParams, error) {
	arguments, err := t.writeArguments(ctx, request)
	if err != nil {
		return nil, err
	}
	return &sdk.CallToolParams{Meta: t.provider.meta(request), Name: t.name, Arguments: arguments}, nil
}

var errKeyArgument = errors.New("the arguments already have the one that carries the idempotency key")

func (t *tool) writeArguments(ctx context.Context, request dispatch.Request) (json.RawMessage, error) {
	arguments := request.Payload
	if t.arguments != nil {
		input, err := render.Input(request)
		if err != nil {
			return nil, err
		}
		mapped, err := render.Value(ctx, "arguments", t.arguments, input)
		if err != nil {
			return nil, err
		}
		arguments = jq.Encode(mapped)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(arguments, &members); err != nil || members == nil {
		given, _ := jq.Decode(arguments)
		return nil, render.Because("arguments", fmt.Errorf("the arguments of a call are an object, and this is %s", jq.TypeOf(given)))
	}
	if t.keyArgument == "" {
		return arguments, nil
	}
	if _, taken := members[t.keyArgument]; taken {
		return nil, render.Because("arguments", errKeyArgument)
	}
	members[t.keyArgument], _ = json.Marshal(request.IdempotencyKey) // a string always has a JSON form
	return json.Marshal(members)
}
