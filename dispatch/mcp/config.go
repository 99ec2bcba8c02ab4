package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/net/http/httpguts"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/rules"
	"github.com/agentoutbox/drainer/internal/jq"
)

const defaultMaxResponseBody = 1 << 20

// Settings is the provider's `mcp` block.
type Settings struct {
	URL             string            `yaml:"url,omitempty" jsonschema:"format=uri" jsonschema_description:"The endpoint for streamable HTTP, http or https. Either this or command."`
	Headers         map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of every request to url, sent as they are. Credentials belong here."`
	Command         []string          `yaml:"command,omitempty" jsonschema_description:"A program and its arguments: a child that speaks over stdin and stdout. Either this or url."`
	Env             map[string]string `yaml:"env,omitempty" jsonschema_description:"The environment of command, beside the daemon's PATH."`
	Directory       string            `yaml:"directory,omitempty" jsonschema_description:"Where command runs. Default: the daemon's own directory."`
	IdempotencyKey  KeySettings       `yaml:"idempotency_key,omitempty" jsonschema_description:"Where the idempotency key goes."`
	ReplayedMeta    string            `yaml:"replayed_meta,omitempty" jsonschema:"default=io.github.agentoutbox/replayed" jsonschema_description:"A name in a result's _meta that is true on a replay."`
	MaxResponseBody int64             `yaml:"max_response_body,omitempty" jsonschema:"minimum=1,default=1048576" jsonschema_description:"The longest answer to a call, in bytes."`
}

// KeySettings defines how the idempotency key is sent.
type KeySettings struct {
	Meta  string `yaml:"meta,omitempty" jsonschema:"default=io.github.agentoutbox/idempotency-key" jsonschema_description:"The name in a call's _meta with the key; none: not there."`
	Tuple bool   `yaml:"tuple,omitempty" jsonschema_description:"Also send the four-tuple, as an object under io.github.agentoutbox/idempotency-tuple."`
}

// Tool is a tool's `mcp` block.
type Tool struct {
	Name        string   `yaml:"name,omitempty" jsonschema_description:"The tool's name at the server. Default: the operation."`
	Arguments   string   `yaml:"arguments,omitempty" jsonschema_description:"A jq expression that makes the arguments, an object, over the intent. Default: the payload."`
	KeyArgument string   `yaml:"key_argument,omitempty" jsonschema_description:"The argument with the idempotency key, for servers that look there."`
	Response    Response `yaml:"response,omitempty" jsonschema_description:"How the answer is understood."`
}

// Response defines how a tool's answers are understood.
type Response struct {
	Ref     string `yaml:"ref,omitempty" jsonschema_description:"A jq expression over the same input as rules for the server's own id of the effect: .structured.id. A lookup's answer without it is not believed."`
	IsError string `yaml:"is_error,omitempty" jsonschema:"enum=ambiguous,enum=rejected,default=ambiguous" jsonschema_description:"The meaning of isError. rejected promises that the tool fails before it has any effect."`
	Rules   []Rule `yaml:"rules,omitempty" jsonschema_description:"Rules for results and JSON-RPC errors. The first that matches decides."`
}

// Rule gives the meaning of an answer that does not show its outcome.
type Rule struct {
	When    string `yaml:"when" jsonschema:"required" jsonschema_description:"A jq expression over {is_error, text, structured, content, code, message, data}: text is the text content joined by newlines; structured and content may be null; code, message and data are of a JSON-RPC error, else null. true matches, false and null do not; all else is ambiguous."`
	Outcome string `yaml:"outcome" jsonschema:"required,enum=completed,enum=throttled,enum=rejected,enum=credentials_refused,enum=forbidden,enum=in_flight,enum=ambiguous,enum=absent" jsonschema_description:"As in the http adapter. absent is believed only of a result, not of an error."`
	Error   string `yaml:"error,omitempty" jsonschema:"pattern=^[a-z][a-z0-9_]{0,63}$" jsonschema_description:"A short name for the failure."`
}

// provider is Settings, checked.
type provider struct {
	endpoint     string // "" for a child
	header       http.Header
	command      []string
	env          map[string]string
	directory    string
	keyMeta      string // "" if _meta carries no key
	tuple        bool
	replayedMeta string
	limit        int64
}

func newProvider(block dispatch.Block) (*provider, error) {
	var settings Settings
	if err := adapter.Decode(block, &settings); err != nil {
		return nil, err
	}
	p := &provider{
		endpoint:     settings.URL,
		header:       http.Header{},
		command:      settings.Command,
		directory:    settings.Directory,
		keyMeta:      cmp.Or(settings.IdempotencyKey.Meta, defaultKeyMeta),
		tuple:        settings.IdempotencyKey.Tuple,
		replayedMeta: cmp.Or(settings.ReplayedMeta, defaultReplayedMeta),
		limit:        cmp.Or(settings.MaxResponseBody, defaultMaxResponseBody),
	}
	if p.keyMeta == "none" {
		p.keyMeta = ""
	}
	problems := []error{
		checkTransport(settings), p.setHeaders(settings.Headers), p.setEnv(settings.Env),
		checkMetaName("replayed_meta", p.replayedMeta),
	}
	if p.keyMeta != "" {
		problems = append(problems, checkMetaName("idempotency_key.meta", p.keyMeta))
	}
	if p.limit < 0 {
		problems = append(problems, errors.New("max_response_body is negative"))
	}
	return p, errors.Join(problems...)
}

func checkTransport(settings Settings) error {
	switch {
	case settings.URL != "" && len(settings.Command) > 0:
		return errors.New("set one of url and command")
	case settings.URL != "" && (len(settings.Env) > 0 || settings.Directory != ""):
		return errors.New("env and directory are for a command, not for a url")
	case settings.URL != "":
		return checkURL(settings.URL)
	case len(settings.Command) == 0:
		return errors.New("set url or command")
	case len(settings.Headers) > 0:
		return errors.New("headers are for a url; give a command its credentials in env")
	case settings.Command[0] == "" || slices.ContainsFunc(settings.Command, hasNUL):
		return errors.New("command: its program is empty, or a part holds a NUL")
	}
	return nil
}

// checkURL checks the URL. Its errors repeat nothing of the URL, which may hold a secret.
func checkURL(text string) error {
	endpoint, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("url is not a URL")
	case endpoint.Scheme != "http" && endpoint.Scheme != "https":
		return errors.New("url is neither http nor https")
	case endpoint.Hostname() == "":
		return errors.New("url has no host")
	case endpoint.User != nil:
		return errors.New("url carries credentials; put them into headers")
	case strings.Contains(text, "#"):
		return errors.New("url has a fragment")
	}
	return nil
}

// reservedHeaders are headers that frame the message or belong to the protocol.
var reservedHeaders = []string{
	"Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Expect", "Host", "Keep-Alive",
	"Last-Event-Id", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func (p *provider) setHeaders(headers map[string]string) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			problems = append(problems, errors.New("headers: a name is not a valid header name"))
		case slices.Contains(reservedHeaders, canonical) || strings.HasPrefix(canonical, "Mcp-"):
			problems = append(problems, fmt.Errorf("headers: %s is set by the adapter itself", canonical))
		case !httpguts.ValidHeaderFieldValue(headers[name]):
			problems = append(problems, fmt.Errorf("headers: the value of %s holds a control character (a trailing newline in a secret file?)", name))
		}
		p.header.Set(name, headers[name])
	}
	return errors.Join(problems...)
}

func (p *provider) setEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.Contains(name, "=") || hasNUL(name) || hasNUL(value) {
			return errors.New("env: a name is empty or holds =, or something holds a NUL")
		}
	}
	p.env = env
	return nil
}

func hasNUL(text string) bool { return strings.Contains(text, "\x00") }

// The protocol defines no name for an idempotency key. So these names have a prefix of this project, as the protocol
// demands.
const (
	namespace           = "io.github.agentoutbox/"
	defaultKeyMeta      = namespace + "idempotency-key"
	defaultReplayedMeta = namespace + "replayed"
	tupleMeta           = namespace + "idempotency-tuple"
)

var (
	metaLabel = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	metaLeaf  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

	// takenMeta are the names without a prefix to which the protocol gives a meaning.
	takenMeta = []string{"progressToken", "traceparent", "tracestate", "baggage"}
)

// checkMetaName checks a name against the protocol's grammar (https://modelcontextprotocol.io/specification,
// "_meta").
func checkMetaName(field, name string) error {
	prefix, leaf, prefixed := strings.Cut(name, "/")
	if !prefixed {
		prefix, leaf = "", name
	}
	if !metaLeaf.MatchString(leaf) || (prefixed && !isPrefix(prefix)) {
		return fmt.Errorf("%s: not a name for _meta; write it like com.example/name", field)
	}
	if isReserved(prefix) || slices.Contains(takenMeta, name) {
		return fmt.Errorf("%s: MCP keeps that name for itself", field)
	}
	if name == tupleMeta {
		return fmt.Errorf("%s: that name is the tuple's", field)
	}
	return nil
}

func isPrefix(text string) bool {
	return !slices.ContainsFunc(strings.Split(text, "."), func(label string) bool { return !metaLabel.MatchString(label) })
}

// isReserved applies the rules of all revisions of the protocol so far.
func isReserved(prefix string) bool {
	labels := strings.Split(prefix, ".")
	for i, label := range labels {
		if (label == "mcp" || label == "modelcontextprotocol") && (i == 1 || i < len(labels)-1) {
			return true
		}
	}
	return false
}

// meta makes the _meta of a call. The trace context has names without a prefix
// (https://modelcontextprotocol.io/seps/414).
func (p *provider) meta(request dispatch.Request) map[string]any {
	meta := make(map[string]any)
	for name, value := range render.TraceContext(request.Headers) {
		meta[name] = value
	}
	if p.keyMeta != "" {
		meta[p.keyMeta] = request.IdempotencyKey
	}
	if p.tuple {
		meta[tupleMeta] = map[string]any{
			"agent_run_id":   request.Tuple.AgentRunID,
			"step_id":        request.Tuple.StepID,
			"tool_name":      request.Tuple.ToolName,
			"business_scope": request.Tuple.BusinessScope,
		}
	}
	return meta
}

// tool is Tool, checked and compiled.
type tool struct {
	provider    *provider
	name        string
	class       dispatch.Class
	arguments   *jq.Expression // nil to send the payload
	keyArgument string         // "" for none
	isError     dispatch.Outcome
	reading     rules.Reading
}

// newTool returns every problem, joined. provider is nil if its own settings are wrong.
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

// render makes the parameters of the call. They are the same for every attempt of the intent.
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
