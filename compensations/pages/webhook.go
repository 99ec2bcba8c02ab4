package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type webhook struct {
	url  string
	sign *standardwebhooks.Webhook
}

// ErrWebhookSecret says that a secret cannot sign.
var ErrWebhookSecret = errors.New("a webhook's secret is whsec_ and octets in base64")

// NewWebhook sends what Standard Webhooks (https://www.standardwebhooks.com)
// specifies, signed.
func NewWebhook(url, secret string) (Sender, error) {
	sign, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, ErrWebhookSecret
	}
	return webhook{url, sign}, nil
}

var webhookTypes = map[State]string{
	Open: "incident.opened", Acknowledged: "incident.acknowledged", Resolved: "incident.resolved",
}

type webhookEvent struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      details   `json:"data"`
}

func (c webhook) Send(ctx context.Context, page Page) error {
	now := time.Now().UTC()
	body, err := json.Marshal(webhookEvent{webhookTypes[page.State], now, page.details()})
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	signature, _ := c.sign.Sign(page.MessageID(), now, body) // nothing can fail in an HMAC
	header := http.Header{}
	header.Set(standardwebhooks.HeaderWebhookID, page.MessageID())
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	return post(ctx, c.url, header, body)
}
