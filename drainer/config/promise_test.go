package config

import (
	"encoding/json"
	"testing"
)

func TestAToolPromisesNoMoreThanItsAdapterCan(t *testing.T) {
	t.Parallel()
	mistakes{
		"more": {provider("adapter: other\ntools: {t: {other: {path: /}, idempotency: {class: key_idempotent, ttl: 1h, scope: account}}}"), []string{
			"5:56: providers.p.tools.t.idempotency.class: the other adapter cannot promise this; it can: read_only, naturally_idempotent, non_idempotent",
		}},
		"as much": {provider("adapter: other\ntools: {t: {other: {path: /}, idempotency: {class: non_idempotent}}}"), nil},
	}.test(t)
}

func TestAPayloadSchemaIsABlockOrText(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]string{
		"block": "{type: object, required: [amount], properties: {amount: {type: integer, maximum: 9007199254740993}}}",
		"text":  `'{"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer", "maximum": 9007199254740993}}}'`,
	} {
		loaded, err := loadText(t, tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: "+written))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		schema := loaded.Providers[0].Tools["t"].Payload
		for payload, good := range map[string]bool{`{"amount": 9007199254740993}`: true, `{"amount": 9007199254740994}`: false, `{}`: false} {
			if violation := schema.Violation(json.RawMessage(payload)); (violation == nil) != good {
				t.Errorf("%s: %s: %+v", name, payload, violation)
			}
		}
	}
	mistakes{
		"no schema": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: {type: number_of_things}"), []string{
			"9:9: providers.p.tools.t.payload_schema: not a valid JSON Schema: look at /type",
		}},
		"no JSON": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: /etc/schema.json"), []string{
			"9:25: providers.p.tools.t.payload_schema: not JSON",
		}},
		"of somebody else": {tool("fake: {path: /}\nidempotency: {class: read_only}\npayload_schema: {$ref: 'https://example.com/s.json'}"), []string{
			"9:9: providers.p.tools.t.payload_schema: a $ref leads out of the schema; put what it stands for under $defs",
		}},
	}.test(t)
}
