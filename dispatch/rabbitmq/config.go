package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/duration"
)

const (
	defaultHeartbeat = 10 * time.Second
	minHeartbeat     = time.Second
	maxHeartbeat     = 60 * time.Second
)

// Settings is the provider's `rabbitmq` block.
type Settings struct {
	URL       string `yaml:"url" jsonschema:"required" jsonschema_description:"User, password and virtual host are percent-encoded: amqps://user:password@host:5671/vhost. amqp is without TLS. Without a path the virtual host is /."`
	Heartbeat string `yaml:"heartbeat,omitempty" jsonschema:"default=10s" jsonschema_description:"Time between heartbeats of an idle connection, 1s to 60s. After 1.5 times as long without one it is dead."`
}

// Tool is a tool's `rabbitmq` block.
type Tool struct {
	Exchange    string            `yaml:"exchange,omitempty" jsonschema:"maxLength=255" jsonschema_description:"The exchange, which must exist. Default: the default one, whose routing keys are names of queues."`
	RoutingKey  string            `yaml:"routing_key,omitempty" jsonschema:"maxLength=255" jsonschema_description:"The routing key. No payload changes it."`
	Headers     map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of the message; {jq} inserts a value."`
	Map         string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the body, over the intent. Default: the payload, byte for byte."`
	ContentType string            `yaml:"content_type,omitempty" jsonschema:"default=application/json,maxLength=255" jsonschema_description:"The message's content type. It does not change the body."`
}

// address is Settings, checked.
type address struct {
	url       string
	heartbeat time.Duration
}

func newAddress(block dispatch.Block) (address, error) {
	var settings Settings
	if err := adapter.Decode(block, &settings); err != nil {
		return address{}, err
	}
	heartbeat, err := parseHeartbeat(settings.Heartbeat)
	return address{url: settings.URL, heartbeat: heartbeat}, errors.Join(checkURL(settings.URL), err)
}

// checkURL checks the URL. Its errors never repeat the URL, which contains a password.
func checkURL(text string) error {
	if text == "" {
		return errors.New("url is missing")
	}
	parsed, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsAny(text, " \t\r\n"):
		return errors.New("url is not a URL; percent-encode what is special in the user, the password or the virtual host (a trailing newline in a secret file?)")
	case parsed.Scheme != "amqp" && parsed.Scheme != "amqps":
		return errors.New("url is neither amqp nor amqps")
	case parsed.Hostname() == "":
		return errors.New("url has no host")
	case parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "":
		return errors.New("url has a query or a fragment; heartbeat and tls are settings of their own")
	}
	if _, err := amqp.ParseURI(text); err != nil {
		return errors.New("url is no AMQP URI (https://www.rabbitmq.com/docs/uri-spec)")
	}
	return nil
}

func parseHeartbeat(text string) (time.Duration, error) {
	if text == "" {
		return defaultHeartbeat, nil
	}
	heartbeat, err := duration.Parse(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("heartbeat: %w", err)
	case heartbeat < minHeartbeat || heartbeat > maxHeartbeat || heartbeat%time.Second != 0:
		return 0, errors.New("heartbeat is not a whole number of seconds from 1s to 60s")
	}
	return heartbeat, nil
}

const maxShortString = 255 // bytes, AMQP 0-9-1, 4.2.5.3

// routed is the message that one dispatch publishes. It is the same on every attempt.
type routed struct {
	exchange   string
	routingKey string
	publishing amqp.Publishing
}

// tool is Tool, checked and compiled.
type tool struct {
	exchange    string
	routingKey  string
	form        *adapter.Form
	contentType string
}

// byThem are headers that change where or when a message arrives, so the configuration must not set them. CC and BCC
// add routing keys (https://www.rabbitmq.com/docs/sender-selected). With x-delay, the delayed message exchange
// stores the message and returns it as unroutable (https://github.com/rabbitmq/rabbitmq-delayed-message-exchange),
// so a return would prove nothing.
var byThem = []string{"CC", "BCC", "x-delay"}

func newTool(block dispatch.Block) (*tool, error) {
	var settings Tool
	if err := adapter.Decode(block, &settings); err != nil {
		return nil, err
	}
	form, err := adapter.CompileForm(settings.Headers, settings.Map, byThem...)
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
		return fmt.Errorf("%s is longer than %d bytes", field, maxShortString)
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

func tableOf(headers []adapter.Header) amqp.Table {
	table := make(amqp.Table, len(headers))
	for _, header := range headers {
		table[header.Name] = header.Value
	}
	return table
}
