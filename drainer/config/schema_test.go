package config

import (
	"encoding/json"
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
