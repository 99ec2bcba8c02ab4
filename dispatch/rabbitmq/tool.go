package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/message"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

const maxShortString = 255 // octets, AMQP 0-9-1, 4.2.5.3

// routed is what one dispatch publishes, the same on every attempt.
type routed struct {
	exchange   string
	routingKey string
	publishing amqp.Publishing
}

// tool is Tool, checked and compiled.
type tool struct {
	exchange    string
	routingKey  string
	form        *message.Form
	contentType string
}

// byThem a sender changes where a message goes, or when, so they are not the
// configuration's to give: CC and BCC add routing keys
// (https://www.rabbitmq.com/docs/sender-selected), and what x-delay makes the
// delayed message exchange keep for later is returned as unroutable meanwhile
// (https://github.com/rabbitmq/rabbitmq-delayed-message-exchange): a return
// would prove nothing any more.
var byThem = []string{"CC", "BCC", "x-delay"}

func newTool(block dispatch.Block) (*tool, error) {
	var settings Tool
	if err := blocks.Decode(block, &settings); err != nil {
		return nil, err
	}
	form, err := message.Compile(settings.Headers, settings.Map, byThem...)
	t := &tool{
		exchange:    settings.Exchange,
		routingKey:  settings.RoutingKey,
		form:        form,
		contentType: cmp.Or(settings.ContentType, "application/json"),
	}
	return t, errors.Join(
		t.checkDestination(),
		checkShort("content_type", t.contentType),
		err,
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

func (t *tool) render(ctx context.Context, request dispatch.Request) (routed, error) {
	input, err := render.Input(request)
	if err != nil {
		return routed{}, err
	}
	written, err := t.form.Write(ctx, request, input)
	if err != nil {
		return routed{}, err
	}
	return routed{
		exchange:   t.exchange,
		routingKey: t.routingKey,
		publishing: amqp.Publishing{
			MessageId:    request.IdempotencyKey,
			AppId:        "drainer",
			DeliveryMode: amqp.Persistent,
			ContentType:  t.contentType,
			Headers:      tableOf(written.Headers),
			Body:         written.Body,
		},
	}, nil
}

func tableOf(headers []message.Header) amqp.Table {
	table := make(amqp.Table, len(headers))
	for _, header := range headers {
		table[header.Name] = header.Value
	}
	return table
}
