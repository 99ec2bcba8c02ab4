package pages

import (
	"context"
	"time"
)

type pagerDuty struct{ url, routingKey string }

// NewPagerDuty sends to the Events API v2
// (https://developer.pagerduty.com/docs/events-api-v2-overview).
func NewPagerDuty(url, routingKey string) Sender { return pagerDuty{url, routingKey} }

var pagerDutyActions = map[State]string{Open: "trigger", Acknowledged: "acknowledge", Resolved: "resolve"}

type pagerDutyEvent struct {
	RoutingKey  string            `json:"routing_key"`
	EventAction string            `json:"event_action"`
	DedupKey    string            `json:"dedup_key"`
	Client      string            `json:"client"`
	Payload     *pagerDutyPayload `json:"payload,omitempty"` // only to trigger
}

type pagerDutyPayload struct {
	Summary   string    `json:"summary"`
	Source    string    `json:"source"`
	Severity  string    `json:"severity"`
	Timestamp time.Time `json:"timestamp"`
	Component string    `json:"component"`
	Class     Kind      `json:"class"`
	Details   details   `json:"custom_details"`
}

func (c pagerDuty) Send(ctx context.Context, page Page) error {
	event := pagerDutyEvent{
		RoutingKey: c.routingKey, EventAction: pagerDutyActions[page.State], DedupKey: page.DedupKey(), Client: "drainer",
	}
	if page.State == Open {
		event.Payload = &pagerDutyPayload{
			Summary: page.Summary(), Source: "drainer", Severity: "critical", Timestamp: page.OpenedAt.UTC(),
			Component: page.provider(), Class: page.Kind, Details: page.details(),
		}
	}
	return postJSON(ctx, c.url, event)
}
