package rabbitmq

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/internal/duration"
)

const (
	defaultHeartbeat = 10 * time.Second
	minHeartbeat     = time.Second
	maxHeartbeat     = 60 * time.Second
)

// Settings is the provider's `rabbitmq` block.
type Settings struct {
	URL       string `yaml:"url" jsonschema:"required" jsonschema_description:"Where the broker is, with user, password and virtual host: amqps://user:password@host:5671/vhost. amqp is without TLS. The path is the virtual host, percent-encoded; without one it is /."`
	Heartbeat string `yaml:"heartbeat,omitempty" jsonschema:"default=10s" jsonschema_description:"How often an idle connection is heard of, 1s to 60s. Without any sign for one and a half times as long, the connection counts as dead."`
}

// Tool is a tool's `rabbitmq` block.
type Tool struct {
	Exchange    string            `yaml:"exchange,omitempty" jsonschema:"maxLength=255" jsonschema_description:"The exchange to publish to. Without one it is the default exchange, whose routing keys are names of queues. It is never declared here."`
	RoutingKey  string            `yaml:"routing_key,omitempty" jsonschema:"maxLength=255" jsonschema_description:"The routing key, as it stands."`
	Headers     map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of the message; {jq} inserts a value. Write {{ and }} for braces."`
	Map         string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the body, over {payload, key, provider_ref, agent_run_id, step_id, tool_name, business_scope}. Without it the payload is published octet for octet."`
	ContentType string            `yaml:"content_type,omitempty" jsonschema:"default=application/json,maxLength=255" jsonschema_description:"The content type of the message. The body is JSON whatever this says."`
}

// address is Settings, checked.
type address struct {
	url       string
	heartbeat time.Duration
}

func newAddress(block dispatch.Block) (address, error) {
	var settings Settings
	if err := blocks.Decode(block, &settings); err != nil {
		return address{}, err
	}
	heartbeat, err := parseHeartbeat(settings.Heartbeat)
	return address{url: settings.URL, heartbeat: heartbeat}, errors.Join(checkURL(settings.URL), err)
}

// checkURL never repeats the URL, which holds a password.
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
	if _, err := amqpURI(text); err != nil {
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
