package http

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/rules"
	"golang.org/x/net/http/httpguts"
)

const defaultMaxResponseBody = 1 << 20

// Settings is the provider's `http` block.
type Settings struct {
	BaseURL           string            `yaml:"base_url" jsonschema:"required,format=uri" jsonschema_description:"http or https, without query, credentials or fragment. Every request goes to this host."`
	Profile           string            `yaml:"profile,omitempty" jsonschema:"enum=github,enum=ietf,enum=none,enum=resend,enum=sendgrid,enum=slack,enum=stripe" jsonschema_description:"Defaults for a provider (docs/providers.md); other settings override them. ietf: any API that follows the Idempotency-Key draft. none: an API without keys."`
	Headers           map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of every request, sent as they are. Credentials belong here."`
	IdempotencyKey    KeySettings       `yaml:"idempotency_key,omitempty" jsonschema_description:"Where the idempotency key goes, and how."`
	ReplayHeader      string            `yaml:"replay_header,omitempty" jsonschema_description:"A response header that is true on a replay, beside Idempotency-Replay and Idempotent-Replayed."`
	ShouldRetryHeader string            `yaml:"should_retry_header,omitempty" jsonschema_description:"A response header that says true or false to another attempt."`
	MaxResponseBody   int64             `yaml:"max_response_body,omitempty" jsonschema:"minimum=1,default=1048576" jsonschema_description:"The longest response body, in bytes after decompression."`
	CaptureHeaders    []string          `yaml:"capture_headers,omitempty" jsonschema_description:"Response headers to store with the attempt."`
}

// Tool is a tool's `http` block.
type Tool struct {
	Method   string            `yaml:"method,omitempty" jsonschema:"enum=GET,enum=HEAD,enum=POST,enum=PUT,enum=PATCH,enum=DELETE,default=POST"`
	Path     string            `yaml:"path" jsonschema:"required" jsonschema_description:"Below base_url. {jq} inserts a value, escaped, inside one segment: /v1/charges/{.payload.id}/refunds. {{ and }} are braces."`
	Query    map[string]string `yaml:"query,omitempty" jsonschema_description:"Query parameters; {jq} inserts a value."`
	Headers  map[string]string `yaml:"headers,omitempty" jsonschema_description:"Headers of this tool; {jq} inserts a value."`
	Body     string            `yaml:"body,omitempty" jsonschema:"enum=json,enum=form,enum=none" jsonschema_description:"Default: json; none for GET, HEAD and DELETE."`
	Map      string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the body, over the intent. Default: the payload, byte for byte."`
	Response Response          `yaml:"response,omitempty" jsonschema_description:"How the response is understood."`
}

// Response defines how a tool's responses are understood.
type Response struct {
	Ref   string `yaml:"ref,omitempty" jsonschema_description:"A jq expression over the response body for the provider's own id of the effect: .id. A lookup's answer without it is not believed."`
	Rules []Rule `yaml:"rules,omitempty" jsonschema_description:"Rules for responses whose status is not enough. The first that matches decides, else the profile, else the status."`
}

// Rule gives the meaning of a response whose status alone is not enough.
type Rule struct {
	When       string `yaml:"when" jsonschema:"required" jsonschema_description:"A jq expression over {status, headers, body, date}: header names in lower case; body null if it is no JSON; date in seconds since 1970, by the provider's clock. true matches, false and null do not; all else is ambiguous."`
	Outcome    string `yaml:"outcome" jsonschema:"required,enum=completed,enum=throttled,enum=rejected,enum=credentials_refused,enum=forbidden,enum=in_flight,enum=ambiguous,enum=absent" jsonschema_description:"completed: the effect is there; never believed of a 5xx. throttled: refused for now, nothing happened. rejected: refused for good, nothing happened. credentials_refused, forbidden: the same, but of drainer and not of the intent. in_flight: busy with an earlier attempt; not for non_idempotent tools. ambiguous: not known. absent: there is no such effect; only for read_only tools."`
	RetryAfter string `yaml:"retry_after,omitempty" jsonschema_description:"A jq expression over the same: the least wait, in seconds. A longer Retry-After counts."`
	Error      string `yaml:"error,omitempty" jsonschema:"pattern=^[a-z][a-z0-9_]{0,63}$" jsonschema_description:"A short name for the failure, stored in place of http_<status> or absent."`
}

// ruleSettings converts the rules for package rules.
func ruleSettings(written []Rule) []rules.Setting {
	settings := make([]rules.Setting, len(written))
	for i, rule := range written {
		settings[i] = rules.Setting(rule)
	}
	return settings
}

// provider is Settings, checked, with its profile applied.
type provider struct {
	base        *url.URL
	headers     http.Header
	key         keyPlacement
	keyTTL      time.Duration // for how long the profile knows that the provider remembers a key; 0 if it does not say
	rules       rules.Rules   // those of the profile
	replay      []string      // headers that mark a replay
	shouldRetry string        // the header that asks for a retry or forbids it; "" for none
	limit       int64
	capture     []string
	sign        Signer // nil if requests are not signed
}

func newProvider(block dispatch.Block) (*provider, error) {
	var settings Settings
	if err := adapter.Decode(block, &settings); err != nil {
		return nil, err
	}
	base, baseErr := parseBase(settings.BaseURL)
	profile, profileErr := findProfile(settings.Profile)
	key, keyErr := newKeyPlacement(settings.IdempotencyKey.over(profile.key))
	known, rulesErr := rules.Compile(ruleSettings(profile.rules), "", bareAnswers...)
	p := &provider{
		base: base, headers: http.Header{}, limit: cmp.Or(settings.MaxResponseBody, defaultMaxResponseBody),
		key: key, keyTTL: profile.keyTTL, rules: known,
		replay:      []string{"Idempotency-Replay", "Idempotent-Replayed"}, // both are in common use
		shouldRetry: cmp.Or(settings.ShouldRetryHeader, profile.shouldRetryHeader),
	}
	problems := []error{
		baseErr, profileErr, keyErr, rulesErr,
		checkHeaderField("replay_header", settings.ReplayHeader),
		checkHeaderField("should_retry_header", settings.ShouldRetryHeader),
	}
	for _, name := range slices.Sorted(maps.Keys(settings.Headers)) {
		problem := p.checkHeaderName(name)
		if problem == nil && !httpguts.ValidHeaderFieldValue(settings.Headers[name]) {
			problem = fmt.Errorf("headers: the value of %s holds a control character (a trailing newline in a secret file?)", name)
		}
		problems = append(problems, problem)
		p.headers.Set(name, settings.Headers[name])
	}
	if settings.ReplayHeader != "" {
		p.replay = append(p.replay, settings.ReplayHeader)
	}
	for _, name := range settings.CaptureHeaders {
		problems = append(problems, checkHeaderField("capture_headers", name))
		p.capture = append(p.capture, http.CanonicalHeaderKey(name))
	}
	if p.limit < 0 {
		problems = append(problems, errors.New("max_response_body is negative"))
	}
	return p, errors.Join(problems...)
}

// checkHeaderField accepts an empty name, which means that the setting is absent.
func checkHeaderField(field, name string) error {
	if name != "" && !httpguts.ValidHeaderFieldName(name) {
		return fmt.Errorf("%s: not a header name", field)
	}
	return nil
}

func (p *provider) checkHeaderName(name string) error {
	switch canonical := http.CanonicalHeaderKey(name); {
	case !httpguts.ValidHeaderFieldName(name):
		return errors.New("headers: a name is not a valid header name")
	case slices.Contains(reservedHeaders, canonical):
		return fmt.Errorf("headers: %s is set by the adapter itself", canonical)
	case canonical == p.key.header:
		return fmt.Errorf("headers: %s carries the idempotency key", canonical)
	}
	return nil
}

// reservedHeaders are headers that frame the message, name the host or decide how the body is read. The
// configuration must not set them.
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

// profile holds the known facts about a provider, in the form of the configuration. docs/providers.md cites the
// sources.
type profile struct {
	key               KeySettings   // header, query and field are empty if the provider accepts no key
	keyTTL            time.Duration // how long the provider says it remembers a key; 0 if it does not say
	shouldRetryHeader string
	rules             []Rule
}

func findProfile(name string) (profile, error) {
	found, known := profiles[name]
	if !known {
		return profiles[""], fmt.Errorf("profile is none of %s", strings.Join(slices.Sorted(maps.Keys(profiles))[1:], ", "))
	}
	return found, nil
}

const idempotencyKey = "Idempotency-Key"

var profiles = map[string]profile{
	"":     {key: KeySettings{Header: idempotencyKey}},
	"none": {},
	"ietf": {
		key:   KeySettings{Header: idempotencyKey, Format: "quoted"},
		rules: []Rule{{When: `.status == 409`, Outcome: "in_flight", Error: "key_in_flight"}},
	},
	"stripe": {
		key:               KeySettings{Header: idempotencyKey},
		keyTTL:            24 * time.Hour,
		shouldRetryHeader: "Stripe-Should-Retry",
		rules: []Rule{
			{When: `.status == 409`, Outcome: "in_flight", Error: "key_in_flight"},
			{When: `.status == 400 and .body.error.type == "idempotency_error"`, Outcome: "rejected", Error: "key_mismatch"},
		},
	},
	"resend": {
		key:    KeySettings{Header: idempotencyKey},
		keyTTL: 24 * time.Hour,
		rules: []Rule{
			{When: `.status == 409 and .body.name == "concurrent_idempotent_requests"`, Outcome: "in_flight", Error: "key_in_flight"},
			{When: `.status == 409 and .body.name == "invalid_idempotent_request"`, Outcome: "rejected", Error: "key_mismatch"},
		},
	},
	"github": {
		rules: []Rule{
			{
				When:       `(.status == 403 or .status == 429) and .headers["x-ratelimit-remaining"] == "0"`,
				Outcome:    "throttled",
				RetryAfter: untilRateLimitReset,
				Error:      "rate_limited",
			},
			{When: `.status == 403 and .headers["retry-after"] != null`, Outcome: "throttled", Error: "rate_limited"},
			{
				When:       `.status == 429 or (.status == 403 and (.body | tostring | ascii_downcase | contains("rate limit")))`,
				Outcome:    "throttled",
				RetryAfter: `if .headers["retry-after"] then 0 else 60 end`,
				Error:      "rate_limited",
			},
		},
	},
	"slack": {
		rules: []Rule{
			{When: `.status == 200 and (.body.error == "ratelimited" or .body.error == "rate_limited")`, Outcome: "throttled", Error: "rate_limited"},
			{When: `.status == 200 and (.body.error == "internal_error" or .body.error == "fatal_error" or .body.error == "service_unavailable")`, Outcome: "ambiguous", Error: "not_ok"},
			{When: `.status == 200 and .body.ok == false and (.body.error | IN("not_authed", "invalid_auth", "account_inactive", "token_revoked", "token_expired"))`, Outcome: "credentials_refused", Error: "not_authed"},
			{When: `.status == 200 and .body.ok == false and .body.error == "missing_scope"`, Outcome: "forbidden", Error: "missing_scope"},
			{When: `.status == 200 and .body.ok == false`, Outcome: "rejected", Error: "not_ok"},
			{When: `.status == 200 and .body.ok != true`, Outcome: "ambiguous", Error: "not_ok"},
		},
	},
	"sendgrid": {
		rules: []Rule{{When: `.status == 429`, Outcome: "throttled", RetryAfter: untilRateLimitReset, Error: "rate_limited"}},
	},
}

// untilRateLimitReset reads a time in seconds since 1970.
const untilRateLimitReset = `(.headers["x-ratelimit-reset"] | tonumber) - .date`
