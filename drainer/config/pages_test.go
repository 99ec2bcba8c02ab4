package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/internal/duration"
)

func TestPagesNameOneChannelEachThatCanBeReached(t *testing.T) {
	t.Parallel()
	const key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	one := func(page string) string { return "version: 1\npages:\n  - " + page + "\n" }
	mistakes{
		"no list":       {"version: 1\npages: {slack: {}}\n", []string{"2:1: pages: want a list"}},
		"no channel":    {one("{name: nobody}"), []string{"3:5: pages.0: want one channel: one of pagerduty, slack, alertmanager, webhook"}},
		"two channels":  {one("{alertmanager: {url: \"http://a\"}, slack: {webhook_url: \"http://s\"}}"), []string{"3:5: pages.0: want one channel: one of pagerduty, slack, alertmanager, webhook"}},
		"misspelt":      {one("{slak: {webhook_url: \"http://s\"}}"), []string{"3:5: pages.0: want one channel: one of pagerduty, slack, alertmanager, webhook", `3:6: pages.0: unknown field "slak"; did you mean "slack"?`}},
		"twice":         {one("{slack: {webhook_url: \"http://s\"}}\n  - {slack: {webhook_url: \"http://t\"}}"), []string{"4:5: pages.1.name: there is another channel of this name; give each a name of its own"}},
		"no service":    {one("{pagerduty: {}}"), []string{"3:6: pages.0.pagerduty.routing_key: say which service to page: the integration key of its Events API v2"}},
		"no address":    {one("{slack: {}}"), []string{"3:6: pages.0.slack.webhook_url: want an address that begins with https:// or http://"}},
		"no protocol":   {one("{alertmanager: {url: \"alertmanager:9093\"}}"), []string{"3:26: pages.0.alertmanager.url: want an address that begins with https:// or http://"}},
		"no secret":     {one("{webhook: {url: \"http://w\"}}"), []string{"3:6: pages.0.webhook.secret: want whsec_ and 24 to 64 random octets in base64"}},
		"short secret":  {one("{webhook: {url: \"http://w\", secret: whsec_c2hvcnQ=}}"), []string{"3:41: pages.0.webhook.secret: want whsec_ and 24 to 64 random octets in base64"}},
		"never again":   {"version: 1\npage_repeat: 0s\n", []string{"2:14: page_repeat: must be longer than 0"}},
		"no duration":   {"version: 1\npage_repeat: often\n", []string{"2:14: page_repeat: " + duration.Hint}},
		"another field": {one("{webhook: {url: \"http://w\", secret: " + key + ", token: x}}"), []string{`3:81: pages.0.webhook: unknown field "token"; known here: secret, url`}},
	}.test(t)
}

func TestMistakesInPagesNeverShowASecret(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, `version: 1
pages:
  - {slack: {webhook_url: "${env:TOKEN}"}}
  - {webhook: {url: "https://${env:TOKEN}", secret: "${env:TOKEN}"}}
  - {alertmanager: {url: "${env:TOKEN}"}}
`)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 4 || strings.Contains(err.Error(), "leak me") {
		t.Errorf("got %v; want four problems and no secret", err)
	}
}
