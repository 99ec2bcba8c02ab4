package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Settings is the provider's `kafka` block.
type Settings struct {
	Brokers  []string `yaml:"brokers" jsonschema:"required,minItems=1" jsonschema_description:"Some brokers of the cluster, host:port. They name the others."`
	TLS      bool     `yaml:"tls,omitempty" jsonschema_description:"TLS to every broker, with the provider's tls settings."`
	SASL     *SASL    `yaml:"sasl,omitempty" jsonschema_description:"The login. Default: none."`
	ClientID string   `yaml:"client_id,omitempty" jsonschema:"default=drainer" jsonschema_description:"The name in the brokers' logs and quotas."`
}

// SASL defines a login.
type SASL struct {
	Mechanism string `yaml:"mechanism" jsonschema:"required,enum=plain,enum=scram-sha-256,enum=scram-sha-512" jsonschema_description:"plain sends the password as it is: set tls, too."`
	Username  string `yaml:"username" jsonschema:"required"`
	Password  string `yaml:"password" jsonschema:"required"`
}

func readSettings(block dispatch.Block) (settings Settings, err error) {
	if err := adapter.Decode(block, &settings); err != nil {
		return settings, err
	}
	return settings, settings.check()
}

func (s Settings) check() error {
	var problems []error
	if len(s.Brokers) == 0 {
		problems = append(problems, errors.New("brokers is missing"))
	}
	for i, broker := range s.Brokers {
		if !isAddress(broker) {
			problems = append(problems, fmt.Errorf("brokers[%d] is not host:port", i))
		}
	}
	if s.SASL != nil {
		_, err := s.SASL.mechanism()
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

func (s SASL) mechanism() (sasl.Mechanism, error) {
	if s.Username == "" || s.Password == "" {
		return nil, errors.New("sasl needs a username and a password")
	}
	switch s.Mechanism {
	case "plain":
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism(), nil
	}
	return nil, errors.New("sasl.mechanism is none of plain, scram-sha-256 and scram-sha-512")
}

const (
	keyHeader = "idempotency-key"

	// The default record key is the idempotency key. So a repeated record goes to the same partition, and to the
	// same consumer, and each intent has its own entry in a compacted topic.
	defaultKey = "{.key}"

	maxTopicName = 249
)

// Tool is a tool's `kafka` block.
type Tool struct {
	Topic   string            `yaml:"topic" jsonschema:"required" jsonschema_description:"The topic, which must exist. No payload changes it."`
	Key     string            `yaml:"key,omitempty" jsonschema:"default={.key}" jsonschema_description:"The record key, which decides the partition; {jq} inserts a value."`
	Headers map[string]string `yaml:"headers,omitempty" jsonschema_description:"Record headers, beside idempotency-key and the trace context; {jq} inserts a value."`
	Map     string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the value, over the intent. Default: the payload, byte for byte. null makes a tombstone."`
}

// tool is Tool, checked and compiled.
type tool struct {
	topic string
	key   render.Template
	form  *adapter.Form
}

// record is the message of one intent. It is the same on every attempt.
type record struct {
	topic   string
	key     []byte
	value   []byte // nil for a tombstone
	headers []adapter.Header
}

func newTool(spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := adapter.Decode(spec.Settings, &block); err != nil {
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
	form, formErr := adapter.CompileForm(block.Headers, block.Map, keyHeader)
	problems = append(problems, checkTopic(block.Topic), keyErr, formErr)
	return &tool{topic: block.Topic, key: key, form: form}, errors.Join(problems...)
}

// checkTopic accepts the names that brokers accept.
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
		return record{}, render.In("key", err)
	}
	written, err := t.form.Write(ctx, request, input)
	if err != nil {
		return record{}, err
	}
	headers := append([]adapter.Header{{Name: keyHeader, Value: request.IdempotencyKey}}, written.Headers...)
	return record{topic: t.topic, key: []byte(key), value: written.Body, headers: headers}, nil
}
