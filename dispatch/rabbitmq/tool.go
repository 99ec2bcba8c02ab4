package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

const maxShortString = 255 // octets, AMQP 0-9-1, 4.2.5.3

// message is what one dispatch publishes, the same on every attempt.
type message struct {
	exchange   string
	routingKey string
	publishing amqp.Publishing
}

// tool is Tool, checked and compiled.
type tool struct {
	exchange    string
	routingKey  string
	headers     map[string]render.Template
	mapping     *jq.Expression // nil publishes the payload as it is
	contentType string
}

func newTool(block dispatch.Block) (*tool, error) {
	var settings Tool
	if err := decode(block, &settings); err != nil {
		return nil, err
	}
	t := &tool{
		exchange:    settings.Exchange,
		routingKey:  settings.RoutingKey,
		contentType: cmp.Or(settings.ContentType, "application/json"),
	}
	return t, errors.Join(
		t.checkDestination(),
		checkShort("content_type", t.contentType),
		t.compileHeaders(settings.Headers),
		t.compileMap(settings.Map),
	)
}

func (t *tool) checkDestination() error {
	if t.exchange == "" && t.routingKey == "" {
		return errors.New("exchange and routing_key are both missing; for the default exchange, routing_key is the name of the queue")
	}
	return errors.Join(checkShort("exchange", t.exchange), checkShort("routing_key", t.routingKey))
}

func checkShort(field, text string) error {
	if len(text) > maxShortString {
		return fmt.Errorf("%s is longer than %d octets", field, maxShortString)
	}
	return nil
}

func (t *tool) compileHeaders(texts map[string]string) error {
	var problems []error
	t.headers = make(map[string]render.Template, len(texts))
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		template, err := render.ParseTemplate(texts[name])
		if err != nil {
			problems = append(problems, fmt.Errorf("headers.%s: %w", name, err))
		}
		problems = append(problems, checkHeaderName(name))
		t.headers[name] = template
	}
	return errors.Join(problems...)
}

// checkHeaderName keeps out the headers by which a sender adds routing keys
// (https://www.rabbitmq.com/docs/sender-selected).
func checkHeaderName(name string) error {
	switch {
	case name == "" || len(name) > maxShortString:
		return fmt.Errorf("headers: a name is empty or longer than %d octets", maxShortString)
	case strings.EqualFold(name, "CC"), strings.EqualFold(name, "BCC"):
		return fmt.Errorf("headers: %s would route the message elsewhere; bind the queue to the exchange instead", name)
	}
	return nil
}

func (t *tool) compileMap(source string) error {
	if source == "" {
		return nil
	}
	mapping, err := jq.Compile(source)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	t.mapping = mapping
	return nil
}

func (t *tool) render(ctx context.Context, request dispatch.Request) (message, error) {
	input, err := render.Input(request)
	if err != nil {
		return message{}, err
	}
	headers, err := t.renderHeaders(ctx, input, request.Headers)
	if err != nil {
		return message{}, err
	}
	body, err := t.renderBody(ctx, input, request.Payload)
	if err != nil {
		return message{}, err
	}
	return message{
		exchange:   t.exchange,
		routingKey: t.routingKey,
		publishing: amqp.Publishing{
			MessageId:    request.IdempotencyKey,
			AppId:        "drainer",
			DeliveryMode: amqp.Persistent,
			ContentType:  t.contentType,
			Headers:      headers,
			Body:         body,
		},
	}, nil
}

func (t *tool) renderHeaders(ctx context.Context, input any, trace map[string]string) (amqp.Table, error) {
	headers := amqp.Table{}
	for name, value := range render.TraceContext(trace) {
		headers[name] = value
	}
	for name, template := range t.headers {
		value, err := template.Render(ctx, input, render.AsIs)
		if err != nil {
			return nil, err
		}
		headers[name] = value
	}
	return headers, nil
}

func (t *tool) renderBody(ctx context.Context, input any, payload []byte) ([]byte, error) {
	if t.mapping == nil {
		return payload, nil
	}
	value, err := t.mapping.Eval(ctx, input)
	if err != nil {
		return nil, err
	}
	return jq.Encode(value)
}
