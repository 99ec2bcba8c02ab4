package pages

import (
	"context"
	"fmt"
	"strings"
	"time"
)

type slack struct{ webhookURL string }

// NewSlack sends to an incoming webhook
// (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks).
// Its URL is a secret.
func NewSlack(webhookURL string) Sender { return slack{webhookURL} }

func (c slack) Send(ctx context.Context, page Page) error {
	return postJSON(ctx, c.webhookURL, map[string]string{"text": slackText(page)})
}

// slackEscape keeps a tool's name from mentioning a channel or ending a quote.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'")

func slackText(page Page) string {
	heading := fmt.Sprintf("*drainer: incident %d is %s*", page.IncidentID, page.State)
	if page.By != "" {
		heading += " by " + slackEscape.Replace(page.By)
	}
	lines := []string{heading, slackEscape.Replace(page.Summary())}
	if page.State == Open {
		lines = append(lines,
			"since "+page.OpenedAt.UTC().Format(time.RFC3339)+", key "+page.IdempotencyKey,
			"```"+slackEscape.Replace(strings.Join(page.Todo(), "\n"))+"```")
	}
	return strings.Join(lines, "\n")
}
