// Package webhook is the adapter that notifies a receiver of an event. Requests are signed as Standard Webhooks
// specifies (https://www.standardwebhooks.com).
//
// It is the HTTP adapter with settings that are made here: one address, the key as webhook-id, and a signature over
// id, time and body. A key_idempotent tool is the receiver's promise to recognise a webhook-id.
package webhook

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	nethttp "net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Kind registers the adapter as "webhook".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "webhook",
		Classes:  []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.KeyIdempotent, dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// New builds the adapter. It returns everything that is wrong with the configuration, joined, and repeats no secret.
func New(spec dispatch.Spec) (*http.Adapter, error) {
	receiver, err := newReceiver(spec.Settings)
	tools, toolsErr := adapter.Tools(spec.Tools, func(operation string, tool dispatch.ToolSpec) (dispatch.ToolSpec, error) {
		settings, err := receiver.call(spec.Provider+"/"+operation, tool.Settings)
		tool.Settings = block[http.Tool]{settings}
		return tool, err
	})
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	spec.Settings, spec.Tools = block[http.Settings]{receiver.settings}, tools
	return http.NewSigned(spec, receiver.sign)
}

// block passes settings that were made here to an adapter that decodes the same type.
type block[T any] struct{ settings T }

func (b block[T]) Decode(into any) error {
	*into.(*T) = b.settings
	return nil
}

// Settings is the provider's `webhook` block.
type Settings struct {
	URL            string            `yaml:"url" jsonschema:"required,format=uri" jsonschema_description:"http or https. It may have a query, but no credentials."`
	SigningSecrets []string          `yaml:"signing_secrets" jsonschema:"required" jsonschema_description:"Each is whsec_ and 24 to 64 random bytes in base64. All sign each event."`
	Headers        map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of every request, sent as they are."`
	Envelope       string            `yaml:"envelope,omitempty" jsonschema:"enum=none,enum=cloudevents,default=none" jsonschema_description:"none: the body is the event. cloudevents: the event is the data of a CloudEvent 1.0 in structured mode; its id is the idempotency key."`
	Source         string            `yaml:"source,omitempty" jsonschema:"format=uri-reference" jsonschema_description:"The source of a CloudEvent. Required with that envelope."`
}

// Tool is a tool's `webhook` block.
type Tool struct {
	Type     string        `yaml:"type,omitempty" jsonschema_description:"The type of a CloudEvent. Default: the tool's full name."`
	Map      string        `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the event, over the intent. Default: the payload."`
	Response http.Response `yaml:"response,omitempty" jsonschema_description:"How the response is understood, as in the http adapter."`
}

const (
	noEnvelope  = "none"
	cloudEvents = "cloudevents"
)

// receiver is Settings, checked, in the form that the HTTP adapter needs.
type receiver struct {
	settings http.Settings
	path     string
	query    map[string]string
	secrets  secrets
	envelope string
	source   string
}

func newReceiver(block dispatch.Block) (*receiver, error) {
	settings := Settings{Envelope: noEnvelope}
	if err := block.Decode(&settings); err != nil {
		return &receiver{}, err
	}
	r := &receiver{envelope: settings.Envelope, source: settings.Source}
	r.settings.Headers = maps.Clone(settings.Headers)
	r.settings.IdempotencyKey = http.KeySettings{Header: idHeader}
	secrets, secretsErr := parseSecrets(settings.SigningSecrets)
	r.secrets = secrets
	return r, errors.Join(r.address(settings.URL), secretsErr, r.checkEnvelope())
}

// address splits the URL: the HTTP adapter keeps host, path and query in different places, and reads braces in path
// and query as placeholders.
func (r *receiver) address(text string) error {
	target, err := url.Parse(text)
	switch {
	case text == "":
		return errors.New("url is missing")
	case err != nil:
		return errors.New("url is not a URL")
	case target.Scheme != "http" && target.Scheme != "https", target.Host == "":
		return errors.New("url is neither http://host/… nor https://host/…")
	case target.User != nil:
		return errors.New("url carries credentials; the signature proves who we are")
	case target.Fragment != "":
		return errors.New("url has a fragment, which is never sent")
	}
	r.settings.BaseURL = target.Scheme + "://" + target.Host
	r.path = literal("/" + strings.TrimPrefix(target.EscapedPath(), "/"))
	r.query = map[string]string{}
	for name, values := range target.Query() {
		if len(values) > 1 {
			return fmt.Errorf("url has a parameter of its query twice: %s", name)
		}
		r.query[name] = literal(values[0])
	}
	return nil
}

func literal(text string) string {
	return strings.NewReplacer("{", "{{", "}", "}}").Replace(text)
}

func (r *receiver) checkEnvelope() error {
	switch {
	case r.envelope != noEnvelope && r.envelope != cloudEvents:
		return fmt.Errorf("envelope is neither %s nor %s", noEnvelope, cloudEvents)
	case r.envelope == cloudEvents && r.source == "":
		return errors.New("source is missing; a CloudEvent says who it is from, such as https://shop.example/agents")
	case r.envelope != cloudEvents && r.source != "":
		return errors.New("source has a meaning only with envelope: cloudevents; leave it out")
	}
	return nil
}

// call makes the HTTP adapter's settings of one tool.
func (r *receiver) call(name string, block dispatch.Block) (http.Tool, error) {
	var tool Tool
	if err := block.Decode(&tool); err != nil {
		return http.Tool{}, err
	}
	if err := checkMap(tool.Map); err != nil {
		return http.Tool{}, err
	}
	call := http.Tool{Path: r.path, Query: r.query, Map: tool.Map, Response: tool.Response}
	if r.envelope != cloudEvents {
		if tool.Type != "" {
			return call, errors.New("type has a meaning only with envelope: cloudevents; leave it out")
		}
		return call, nil
	}
	if tool.Type != "" {
		name = tool.Type
	}
	call.Map = r.event(name, tool.Map)
	call.Headers = map[string]string{"Content-Type": "application/cloudevents+json"}
	return call, nil
}

// checkMap compiles the expression alone, since inside the expression of an envelope it could have another meaning.
func checkMap(source string) error {
	if source == "" {
		return nil
	}
	if _, err := jq.Compile(source); err != nil {
		return fmt.Errorf("map: %w", err)
	}
	return nil
}

// event returns the expression that makes a CloudEvent. The event has no time, since every attempt must send the
// same bytes.
func (r *receiver) event(name, data string) string {
	if data == "" {
		data = ".payload"
	}
	return fmt.Sprintf(`{specversion: "1.0", id: .key, source: %s, type: %s, datacontenttype: "application/json", data: (%s)}`,
		jqText(r.source), jqText(name), data)
}

// jqText writes text as a jq string. JSON escapes the backslash of jq's \( placeholders.
func jqText(text string) string {
	written, _ := json.Marshal(text) // a string always has a JSON form
	return string(written)
}

const idHeader = standardwebhooks.HeaderWebhookID

// The lengths that Standard Webhooks demands of a secret, in bytes.
const (
	shortestSecret = 24
	longestSecret  = 64
)

type secrets []*standardwebhooks.Webhook

func parseSecrets(texts []string) (secrets, error) {
	if len(texts) == 0 {
		return nil, errors.New("signing_secrets is missing; a receiver could not verify that an event is ours")
	}
	parsed := make(secrets, len(texts))
	var problems []error
	for i, text := range texts {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
		if err != nil || len(raw) < shortestSecret || len(raw) > longestSecret {
			problems = append(problems, fmt.Errorf("signing_secrets.%d is not whsec_ and %d to %d bytes in base64", i, shortestSecret, longestSecret))
			continue
		}
		parsed[i], err = standardwebhooks.NewWebhookRaw(raw)
		problems = append(problems, err)
	}
	return parsed, errors.Join(problems...)
}

// sign adds one signature for each secret, in their order. The time is the time of the attempt, because receivers
// refuse old signatures.
func (r *receiver) sign(header nethttp.Header, body []byte) {
	now := time.Now()
	signatures := make([]string, 0, len(r.secrets))
	for _, secret := range r.secrets {
		signature, _ := secret.Sign(header.Get(idHeader), now, body) // an HMAC cannot fail
		signatures = append(signatures, signature)
	}
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
}
