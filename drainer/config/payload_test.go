package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

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
