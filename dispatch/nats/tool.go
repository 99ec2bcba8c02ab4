package nats

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/message"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Tool is a tool's `nats` block.
type Tool struct {
	Subject string            `yaml:"subject" jsonschema:"required" jsonschema_description:"The subject, without wildcards; a stream must listen on it. It is not taken from the payload."`
	Stream  string            `yaml:"stream,omitempty" jsonschema_description:"The stream that must take the message; any other refuses it. Without it, whichever listens."`
	Headers map[string]string `yaml:"headers,omitempty" jsonschema_description:"Message headers; {jq} inserts a value. Nats-Msg-Id and the trace context are always there."`
	Map     string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the message, over {payload, key, agent_run_id, step_id, tool_name, business_scope}. Without it the payload is sent octet for octet; null makes an empty message."`
}

// tool is Tool, checked and compiled.
type tool struct {
	subject string
	stream  string // "" for whichever listens
	form    *message.Form
	class   dispatch.Class
	keyTTL  time.Duration
}

func newTool(spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := blocks.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	var problems []error
	if spec.AnswersLookups {
		problems = append(problems, errors.New("this tool answers lookups, but a subject cannot be asked for a message"))
	}
	switch {
	case block.Subject == "":
		problems = append(problems, errors.New("subject is missing"))
	case !isLiteralSubject(block.Subject):
		problems = append(problems, errors.New("subject is not a subject without wildcards"))
	}
	if strings.ContainsAny(block.Stream, ".*> \t\r\n/\\") {
		problems = append(problems, errors.New("stream is not the name of a stream"))
	}
	form, err := message.Compile(block.Headers, block.Map, jetstream.MsgIDHeader, jetstream.ExpectedStreamHeader)
	tool := &tool{subject: block.Subject, stream: block.Stream, form: form, class: spec.Class, keyTTL: spec.KeyTTL}
	return tool, errors.Join(append(problems, err)...)
}

// isLiteralSubject accepts what every server does: tokens of printable ASCII
// between dots.
func isLiteralSubject(subject string) bool {
	for _, token := range strings.Split(subject, ".") {
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' || r == '*' || r == '>' }) {
			return false
		}
	}
	return true
}

func (t *tool) message(ctx context.Context, request dispatch.Request) (*nats.Msg, error) {
	input, err := render.Input(request)
	if err != nil {
		return nil, err
	}
	written, err := t.form.Write(ctx, request, input)
	if err != nil {
		return nil, err
	}
	rendered := nats.NewMsg(t.subject)
	rendered.Data = written.Body
	for _, header := range written.Headers {
		rendered.Header.Set(header.Name, header.Value)
	}
	rendered.Header.Set(jetstream.MsgIDHeader, request.IdempotencyKey)
	if t.stream != "" {
		rendered.Header.Set(jetstream.ExpectedStreamHeader, t.stream)
	}
	return rendered, nil
}
