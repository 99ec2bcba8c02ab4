package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/incident"
)

func TestSchemaKnowsEveryFieldOfAFile(t *testing.T) {
	t.Parallel()
	schema := readSchema(t)
	for _, at := range []string{
		"version", "database.url", "worker.lease", "server.listen",
		"providers.*.adapter", "providers.*.fake.token", "providers.*.other.labels.*",
		"providers.*.tools.*.fake.path", "providers.*.tools.*.idempotency.class", "providers.*.tools.*.retry.cap",
		"providers.*.rate_limit.burst", "providers.*.circuit_breaker.cool_down", "providers.*.fallback",
		"providers.*.tools.*.lookup.margin", "providers.*.tools.*.compensate_with.tool", "providers.*.tools.*.reversal_window",
		"providers.*.tools.*.compensate_with.payload", "providers.*.tools.*.retention", "retention",
	} {
		if property(schema, at) == nil {
			t.Errorf("%s is missing", at)
		}
	}
}

func TestSchemaListsWhatMayBeChosen(t *testing.T) {
	t.Parallel()
	schema := readSchema(t)
	for at, want := range map[string][]any{
		"providers.*.adapter":                   {"fake", "other"},
		"providers.*.tools.*.idempotency.class": {"read_only", "naturally_idempotent", "key_idempotent", "non_idempotent"},
		"providers.*.tools.*.compensation":      {"none"},
		"providers.*.tools.*.on_failure":        {"compensate", "dead_letter"},
		"providers.*.tools.*.on_refused":        {"dead_letter", "compensate"},
		"providers.*.tools.*.on_first_replay":   {"incident", "accept"},
		"database.schema":                       {"outbox"},
	} {
		if got, _ := property(schema, at)["enum"].([]any); !slices.Equal(got, want) {
			t.Errorf("%s offers %v, want %v", at, got, want)
		}
	}
}

func TestSchemaDescribesEveryFieldAndForbidsOthers(t *testing.T) {
	t.Parallel()
	visit(readSchema(t), "", func(at string, schema map[string]any) {
		_, isMap := schema["additionalProperties"].(map[string]any)
		if schema["properties"] != nil && !isMap && schema["additionalProperties"] != false {
			t.Errorf("%s allows unknown fields", at)
		}
		ours := !strings.Contains(at, ".fake.") && !strings.Contains(at, ".other.") && !strings.HasSuffix(at, "*")
		if at != "" && ours && schema["description"] == nil {
			t.Errorf("%s is not described", at)
		}
	})
}

func readSchema(t *testing.T) map[string]any {
	t.Helper()
	text, err := Schema(fakeRegistry(t))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

// property follows names through properties; * follows additionalProperties.
func property(schema map[string]any, at string) map[string]any {
	for _, name := range strings.Split(at, ".") {
		if name == "*" {
			schema, _ = schema["additionalProperties"].(map[string]any)
			continue
		}
		properties, _ := schema["properties"].(map[string]any)
		schema, _ = properties[name].(map[string]any)
	}
	return schema
}

func visit(schema map[string]any, at string, see func(string, map[string]any)) {
	see(at, schema)
	properties, _ := schema["properties"].(map[string]any)
	for name, child := range properties {
		if child, ok := child.(map[string]any); ok {
			visit(child, at+"."+name, see)
		}
	}
	if child, ok := schema["additionalProperties"].(map[string]any); ok {
		visit(child, at+".*", see)
	}
}

const twoProviders = `version: 1
providers:
  stripe: {adapter: fake, tools: {charge: {idempotency: {class: read_only}, fake: {path: /c}}, refund: {idempotency: {class: read_only}, fake: {path: /r}}}}
  mail: {adapter: fake, tools: {send: {idempotency: {class: read_only}, fake: {path: /s}}}}
`

func TestIncidentsThatReachNoChannelAreNamed(t *testing.T) {
	t.Parallel()
	const slack = `slack: {webhook_url: "http://s"}`
	for name, test := range map[string]struct {
		pages     string
		all       []string // of outcome_unknown, key_collision, unknown_operation and unconfigured_provider
		unmatched []string
	}{
		"no channel":  {"", nil, nil},
		"no match":    {"pages: [{" + slack + "}]", []string{"key_collision"}, nil},
		"empty lists": {"pages: [{" + slack + ", match: {kinds: [], providers: [], tools: [], severities: []}}]", []string{"key_collision"}, nil},
		"warnings":    {"pages: [{" + slack + ", match: {severities: [page, warning]}}]", nil, nil},
		"a kind":      {"pages: [{" + slack + ", match: {kinds: [key_collision]}}]", []string{"outcome_unknown", "unknown_operation", "unconfigured_provider"}, nil},
		"a provider": {"pages: [{" + slack + ", match: {providers: [stripe]}}]", []string{
			"outcome_unknown of mail", "key_collision", "unknown_operation of mail", "unconfigured_provider of providers that this file does not name",
		}, nil},
		"each provider's own": {"pages: [{name: a, " + slack + ", match: {providers: [stripe]}}, {name: b, " + slack + ", match: {providers: [mail]}}]", []string{
			"key_collision", "unconfigured_provider of providers that this file does not name",
		}, nil},
		"a tool": {"pages: [{" + slack + ", match: {tools: [stripe/charge, mail/send]}}]", []string{
			"outcome_unknown of stripe", "key_collision", "unknown_operation", "unconfigured_provider of providers that this file does not name",
		}, nil},
		"a typo": {"pages: [{" + slack + ", match: {providers: [strip], tools: [mail/sent]}}]", []string{
			"outcome_unknown", "key_collision", "unknown_operation", "unconfigured_provider",
		}, []string{"slack: strip", "slack: mail/sent"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loaded, err := loadText(t, twoProviders+test.pages)
			if err != nil {
				t.Fatal(err)
			}
			all := loaded.Unrouted(incident.OutcomeUnknown, incident.KeyCollision, incident.UnknownOperation, incident.UnconfiguredProvider)
			if !slices.Equal(all, test.all) {
				t.Errorf("no channel gets %q, want %q", all, test.all)
			}
			if unmatched := loaded.Unmatched(); !slices.Equal(unmatched, test.unmatched) {
				t.Errorf("not configured are %q, want %q", unmatched, test.unmatched)
			}
		})
	}
}

const charge = `{
	"type": "object",
	"properties": {
		"amount": {"type": "integer", "minimum": 1, "maximum": 9007199254740993},
		"currency": {"$ref": "#/$defs/currency"},
		"mail": {"type": "string", "format": "email"},
		"items": {"type": "array", "items": {"type": "string", "maxLength": 3}}
	},
	"required": ["amount", "currency"],
	"additionalProperties": false,
	"$defs": {"currency": {"enum": ["eur", "usd"]}}
}`

func TestAViolationNamesTheDemandAndNothingOfThePayload(t *testing.T) {
	t.Parallel()
	schema, err := compilePayloadSchema(charge)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ payload, detail string }{
		"good":               {`{"amount": 1, "currency": "eur", "mail": "a@example.com"}`, ""},
		"exact at the limit": {`{"amount": 9007199254740993, "currency": "eur"}`, ""},
		"exact above it":     {`{"amount": 9007199254740994, "currency": "eur"}`, "#/properties/amount/maximum"},
		"wrong type":         {`{"amount": "secret", "currency": "eur"}`, "#/properties/amount/type"},
		"behind a reference": {`{"amount": 1, "currency": "secret"}`, "#/$defs/currency/enum"},
		"missing":            {`{}`, "#/required: amount, currency"},
		"unknown field":      {`{"amount": 1, "currency": "eur", "secret": 1}`, "#/additionalProperties"},
		"format":             {`{"amount": 1, "currency": "eur", "mail": "secret"}`, "#/properties/mail/format"},
		"the same again":     {`{"amount": 1, "currency": "eur", "items": ["secret", "secret", 1]}`, "#/properties/items/items/maxLength; #/properties/items/items/type"},
		"no object":          {`["secret"]`, "#/type"},
		"no JSON":            {`{"secret"`, "the payload is no JSON"},
		"two values":         {`{} {}`, "the payload is no JSON"},
		"no payload":         {``, "the payload is no JSON"},
	} {
		violation := schema.Violation(json.RawMessage(test.payload))
		switch {
		case test.detail == "" && violation != nil:
			t.Errorf("%s: %+v", name, violation)
		case test.detail != "" && (violation == nil || violation.Detail != test.detail):
			t.Errorf("%s: %+v, want %s", name, violation, test.detail)
		case violation != nil && strings.Contains(violation.Detail+violation.Title, "secret"):
			t.Errorf("%s: quotes the payload: %+v", name, violation)
		}
	}
}

func TestASchemaIsWholeAndValid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ schema, message string }{
		"no JSON":       {`{`, "not JSON"},
		"wrong keyword": {`{"properties": {"a": {"type": "strin"}}}`, "look at /properties/a/type"},
		"wrong shape":   {`[]`, "not a valid JSON Schema"},
		"bad pattern":   {`{"pattern": "("}`, "pattern"},
		"another file":  {`{"$ref": "file:///etc/passwd"}`, "leads out of the schema"},
		"another host":  {`{"$ref": "https://example.com/schema"}`, "leads out of the schema"},
		"nothing there": {`{"$ref": "#/$defs/none"}`, "not a valid JSON Schema"},
	} {
		if _, err := compilePayloadSchema(test.schema); err == nil || !strings.Contains(err.Error(), test.message) || strings.Contains(err.Error(), payloadURN) {
			t.Errorf("%s: %v, want %s", name, err, test.message)
		}
	}
}

// Whatever schema and payload meet, the verdict is the same every time, and
// what it says is the schema's own.
func FuzzAVerdictQuotesNothingOfThePayload(f *testing.F) {
	for _, payload := range []string{
		`{"amount": "canary1", "currency": {"canary2": ["canary3"]}, "canary4": null}`, `{"mail": "canary@canary", "items": ["canary5", "canary5"]}`, `["canary6"]`, `"canary7"`,
		`{"amount": 9007199254740994.5, "currency": "eur"}`, `{"amount": 1, "amount": 0, "currency": "eur"}`, `{"canary8"`, "{\"\xff\": \"\xff\"}", `{"a": "\ud800"}`, "",
		strings.Repeat("[", 300) + strings.Repeat("]", 300), `{"proto": {"items": {"canary9": 1}}}`,
	} {
		for _, schema := range []string{
			charge, `true`, `false`, `{"$ref": "#"}`, `{"items": {"$ref": "#"}, "uniqueItems": true, "contains": {"const": 1}}`, `{"propertyNames": {"pattern": "^a$"}, "minProperties": 2}`,
			`{"anyOf": [{"type": "null"}, {"not": {}}], "if": {}, "then": {"dependentRequired": {"amount": ["canary"]}}}`, `{"$dynamicRef": "#a", "$dynamicAnchor": "a", "unevaluatedProperties": false}`,
			`{"multipleOf": 0.01, "format": "uuid", "$schema": "http://json-schema.org/draft-07/schema#"}`, `{"type": "canary"}`, `{"$id": "http://other.example/", "$ref": "#/$defs/a"}`, `{`,
		} {
			f.Add([]byte(schema), []byte(payload))
		}
	}
	f.Fuzz(func(t *testing.T, text, payload []byte) {
		if hugeExponent.Match(text) || hugeExponent.Match(payload) {
			return // numbers that jsonb writes out in full; others should not
		}
		schema, err := compilePayloadSchema(string(text))
		if err != nil {
			if strings.Contains(err.Error(), payloadURN) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		violation := schema.Violation(payload)
		if again := schema.Violation(payload); !reflect.DeepEqual(again, violation) {
			t.Errorf("%q of %q: %v, then %v", text, payload, violation, again)
		}
		if violation == nil {
			if !json.Valid(payload) {
				t.Errorf("%q passes", payload)
			}
			return
		}
		for _, quoted := range words.FindAll(payload, -1) {
			if !bytes.Contains(text, quoted) && strings.Contains(violation.Title+violation.Detail, string(quoted)) {
				t.Errorf("%q of %q is said of %q", violation.Detail, payload, text)
			}
		}
	})
}

var (
	words        = regexp.MustCompile(`[a-z]{4,}[0-9]+`) // there is none in the verdict's own words
	hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)
)
