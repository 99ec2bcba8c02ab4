package http

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
)

const defaultMaxResponseBody = 1 << 20

// Settings is the provider's `http` block.
type Settings struct {
	BaseURL           string            `yaml:"base_url" jsonschema:"required,format=uri" jsonschema_description:"Where the provider lives, http or https, without query, credentials or fragment. Every request goes to this host."`
	Profile           string            `yaml:"profile,omitempty" jsonschema:"enum=github,enum=ietf,enum=none,enum=resend,enum=sendgrid,enum=slack,enum=stripe" jsonschema_description:"What is known of the provider: where it wants the key, how long it remembers one, what its responses mean. Other settings go before it. ietf is for any API that follows the Idempotency-Key draft, none for one that knows no keys. docs/providers.md has the table."`
	Headers           map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of every request, sent as they are: the place for credentials."`
	IdempotencyKey    KeySettings       `yaml:"idempotency_key,omitempty" jsonschema_description:"Where the provider wants the idempotency key, and how."`
	ReplayHeader      string            `yaml:"replay_header,omitempty" jsonschema_description:"The response header that says true where the answer is that of an earlier request with the same key. Idempotency-Replay and Idempotent-Replayed are always understood."`
	ShouldRetryHeader string            `yaml:"should_retry_header,omitempty" jsonschema_description:"The response header by which the provider says true or false to another attempt."`
	MaxResponseBody   int64             `yaml:"max_response_body,omitempty" jsonschema:"minimum=1,default=1048576" jsonschema_description:"The longest response body that is read, in octets after decompression."`
	CaptureHeaders    []string          `yaml:"capture_headers,omitempty" jsonschema_description:"Response headers to store with the attempt."`
}

// Tool is a tool's `http` block.
type Tool struct {
	Method   string            `yaml:"method,omitempty" jsonschema:"enum=GET,enum=HEAD,enum=POST,enum=PUT,enum=PATCH,enum=DELETE,default=POST"`
	Path     string            `yaml:"path" jsonschema:"required" jsonschema_description:"The path below base_url. {jq} inserts a value, escaped, inside one segment: /v1/charges/{.payload.id}/refunds. Write {{ and }} for braces."`
	Query    map[string]string `yaml:"query,omitempty" jsonschema_description:"Query parameters; {jq} inserts a value."`
	Headers  map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of this tool; {jq} inserts a value."`
	Body     string            `yaml:"body,omitempty" jsonschema:"enum=json,enum=form,enum=none" jsonschema_description:"How the body is written. json by default; none for GET, HEAD and DELETE."`
	Map      string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the body, over {payload, key, provider_ref, agent_run_id, step_id, tool_name, business_scope}; provider_ref is what an earlier attempt brought, for lookups, and null otherwise. Without it the payload is sent octet for octet."`
	Response Response          `yaml:"response,omitempty" jsonschema_description:"How the response is understood."`
}

// Response says how a tool's responses are understood.
type Response struct {
	Ref   string `yaml:"ref,omitempty" jsonschema_description:"A jq expression over the response body that finds the provider's own id of the effect: .id. Where the tool answers lookups, an answer without it is not believed."`
	Rules []Rule `yaml:"rules,omitempty" jsonschema_description:"What responses mean whose status does not tell. The first rule that matches decides; where none does, the profile decides, and then the status."`
}

// provider is Settings, checked, with its profile applied.
type provider struct {
	base        *url.URL
	headers     http.Header
	key         keyPlacement
	keyTTL      time.Duration // the longest that the profile vouches for; 0 where it does not say
	rules       rules         // the profile's
	replay      []string      // headers that mark a replay
	shouldRetry string        // header that says whether to try again; "" where there is none
	limit       int64
	capture     []string
	sign        Signer // nil where nobody asks for a signature
}

func newProvider(block dispatch.Block) (*provider, error) {
	var settings Settings
	if err := blocks.Decode(block, &settings); err != nil {
		return nil, err
	}
	base, baseErr := parseBase(settings.BaseURL)
	profile, profileErr := findProfile(settings.Profile)
	key, keyErr := newKeyPlacement(settings.IdempotencyKey.over(profile.key))
	rules, rulesErr := compileRules(profile.rules, "")
	p := &provider{
		base: base, headers: http.Header{}, limit: settings.MaxResponseBody,
		key: key, keyTTL: profile.keyTTL, rules: rules,
		replay:      replayHeaders(settings.ReplayHeader),
		shouldRetry: cmp.Or(settings.ShouldRetryHeader, profile.shouldRetryHeader),
	}
	problems := []error{
		baseErr, profileErr, keyErr, rulesErr,
		checkHeaderField("replay_header", settings.ReplayHeader),
		checkHeaderField("should_retry_header", settings.ShouldRetryHeader),
	}
	for _, name := range sortedKeys(settings.Headers) {
		problems = append(problems, p.checkHeader(name, settings.Headers[name]))
		p.headers.Set(name, settings.Headers[name])
	}
	for _, name := range settings.CaptureHeaders {
		problems = append(problems, checkHeaderField("capture_headers", name))
		p.capture = append(p.capture, http.CanonicalHeaderKey(name))
	}
	switch {
	case p.limit == 0:
		p.limit = defaultMaxResponseBody
	case p.limit < 0:
		problems = append(problems, errors.New("max_response_body is negative"))
	}
	return p, errors.Join(problems...)
}

// checkHeaderField takes a name that was left out for a good one.
func checkHeaderField(field, name string) error {
	if name != "" && !validHeaderName(name) {
		return fmt.Errorf("%s: not a header name", field)
	}
	return nil
}

func (p *provider) checkHeader(name, value string) error {
	if err := p.checkHeaderName(name); err != nil {
		return err
	}
	if !validHeaderValue(value) {
		return fmt.Errorf("headers: the value of %s holds a control character (a trailing newline in a secret file?)", name)
	}
	return nil
}

func (p *provider) checkHeaderName(name string) error {
	switch canonical := http.CanonicalHeaderKey(name); {
	case !validHeaderName(name):
		return errors.New("headers: a name is not a valid header name")
	case slices.Contains(reservedHeaders, canonical):
		return fmt.Errorf("headers: %s is set by the adapter itself", canonical)
	case canonical == p.key.header:
		return fmt.Errorf("headers: %s carries the idempotency key", canonical)
	}
	return nil
}

// reservedHeaders frame the message, name the host or decide how the body is
// read; none of them is a matter of configuration.
var reservedHeaders = []string{
	"Accept-Encoding", "Connection", "Content-Length", "Expect", "Host", "Keep-Alive",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	tupleHeader,
}

func parseBase(text string) (*url.URL, error) {
	if text == "" {
		return nil, errors.New("base_url is missing")
	}
	base, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("base_url is not a URL") // the parser's error would repeat it
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, errors.New("base_url is neither http nor https")
	case base.Hostname() == "":
		return nil, errors.New("base_url has no host")
	case base.User != nil:
		return nil, errors.New("base_url carries credentials; put them into headers")
	case base.RawQuery != "" || base.ForceQuery || strings.Contains(text, "#"):
		return nil, errors.New("base_url has a query or a fragment")
	}
	return base, nil
}

func validHeaderName(name string) bool {
	const others = "!#$%&'*+-.^_`|~"
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte(others, c) >= 0:
		default:
			return false
		}
	}
	return name != ""
}

func validHeaderValue(value string) bool {
	for _, c := range []byte(value) {
		if (c < ' ' && c != '\t') || c == 0x7f {
			return false
		}
	}
	return true
}
