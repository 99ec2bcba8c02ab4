package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/message"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

const (
	keyHeader = "idempotency-key"

	// The key of an intent as record key: an intent's own partition, where a
	// record that comes twice comes to the same consumer, and its own line in
	// a compacted topic.
	defaultKey = "{.key}"

	maxTopicName = 249
)

// Tool is a tool's `kafka` block.
type Tool struct {
	Topic   string            `yaml:"topic" jsonschema:"required" jsonschema_description:"The topic, which must exist. It is not taken from the payload."`
	Key     string            `yaml:"key,omitempty" jsonschema:"default={.key}" jsonschema_description:"The record key, which decides the partition; {jq} inserts a value. By default the idempotency key. {.business_scope} brings all records of a business object to one partition."`
	Headers map[string]string `yaml:"headers,omitempty" jsonschema_description:"Record headers; {jq} inserts a value. idempotency-key and the trace context are always there."`
	Map     string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the value, over {payload, key, agent_run_id, step_id, tool_name, business_scope}. Without it the payload is sent octet for octet; null makes a tombstone."`
}

// tool is Tool, checked and compiled.
type tool struct {
	topic string
	key   render.Template
	form  *message.Form
}

// record is what one intent becomes; every attempt makes the same.
type record struct {
	topic   string
	key     []byte
	value   []byte // nil is a tombstone
	headers []message.Header
}

func newTool(spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := blocks.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	var problems []error
	if spec.AnswersLookups {
		problems = append(problems, errors.New("this tool answers lookups, but a topic cannot be asked for a record"))
	}
	key, keyErr := render.ParseTemplate(cmp.Or(block.Key, defaultKey))
	if keyErr != nil {
		keyErr = fmt.Errorf("key: %w", keyErr)
	}
	form, formErr := message.Compile(block.Headers, block.Map, keyHeader)
	problems = append(problems, checkTopic(block.Topic), keyErr, formErr)
	return &tool{topic: block.Topic, key: key, form: form}, errors.Join(problems...)
}

// checkTopic knows the names that brokers accept.
func checkTopic(name string) error {
	switch {
	case name == "":
		return errors.New("topic is missing")
	case len(name) > maxTopicName, name == ".", name == "..", strings.ContainsFunc(name, isNoTopicRune):
		return fmt.Errorf("topic is no name of up to %d letters, digits, dots, dashes and underscores", maxTopicName)
	}
	return nil
}

func isNoTopicRune(r rune) bool {
	letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	return !letter && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
}

func (t *tool) record(ctx context.Context, request dispatch.Request) (record, error) {
	input, err := render.Input(request)
	if err != nil {
		return record{}, err
	}
	key, err := t.key.Render(ctx, input, render.AsIs)
	if err != nil {
		return record{}, err
	}
	written, err := t.form.Write(ctx, request, input)
	if err != nil {
		return record{}, err
	}
	headers := append([]message.Header{{Name: keyHeader, Value: request.IdempotencyKey}}, written.Headers...)
	return record{topic: t.topic, key: []byte(key), value: written.Body, headers: headers}, nil
}
