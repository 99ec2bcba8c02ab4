package pages

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// An alert ends by itself unless it is sent again, so it is sent more often
// than other pages. Alertmanager has a repetition of its own.
const (
	AlertmanagerRepeat = time.Minute
	alertLife          = 5 * AlertmanagerRepeat
)

type alertmanager struct{ url string }

// NewAlertmanager sends to the API v2 below an Alertmanager's address
// (https://prometheus.io/docs/alerting/latest/alerts_api). Alertmanager knows
// no acknowledgement: the alert ends with it.
func NewAlertmanager(url string) Sender {
	return alertmanager{strings.TrimSuffix(url, "/") + "/api/v2/alerts"}
}

type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
}

func (c alertmanager) Send(ctx context.Context, page Page) error {
	return postJSON(ctx, c.url, []alert{newAlert(page, time.Now())})
}

func newAlert(page Page, now time.Time) alert {
	ends := now
	if page.State == Open {
		ends = now.Add(alertLife)
	}
	if ends.Before(page.OpenedAt) { // by the database's clock
		ends = page.OpenedAt
	}
	annotations := map[string]string{"summary": page.Summary(), "idempotency_key": page.IdempotencyKey}
	if todo := page.Todo(); len(todo) > 0 {
		annotations["description"] = strings.Join(todo, "\n")
	}
	return alert{
		// The labels are what the alert is known by: they are the same in every state.
		Labels: map[string]string{
			"alertname": "DrainerIncident",
			"severity":  "critical",
			"kind":      string(page.Kind),
			"provider":  page.provider(),
			"operation": page.operation(),
			"intent_id": strconv.FormatInt(page.IntentID, 10),
			"dedup_key": page.DedupKey(),
		},
		Annotations: annotations,
		StartsAt:    page.OpenedAt.UTC(),
		EndsAt:      ends.UTC(),
	}
}
