package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
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
