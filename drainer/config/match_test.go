package config

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/drainer/incident"
)

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
