package pages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch/egress"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

// sendTimeout bounds the sending of a page. It is longer than the timeouts of the channel and of the
// database together. During this time no other process sends the page.
const sendTimeout = 20 * time.Second

// recordTimeout is how long recording a page's outcome may take during a shutdown.
const recordTimeout = 5 * time.Second

const (
	// atOnce is how many pages a process sends to one channel at a time.
	atOnce = 8
	// turnLength is after how long a job stops sending to its channel. The next look starts another job.
	turnLength = 30 * time.Second
)

type sendWorker struct {
	river.WorkerDefaults[sendArgs]
	pager *Pager
}

// Timeout leaves the last pages of a turn time to be sent.
func (w *sendWorker) Timeout(*river.Job[sendArgs]) time.Duration { return turnLength + sendTimeout }

// Work brings the job's channel up to date for at most turnLength.
func (w *sendWorker) Work(ctx context.Context, job *river.Job[sendArgs]) error {
	return w.pager.update(ctx, job.Args.Channel)
}

// update sends to one channel the pages that are due now, for at most turnLength. A process updates a channel
// only once at a time, so that a channel that hangs takes only one worker.
func (p *Pager) update(ctx context.Context, name string) error {
	if _, busy := p.busy.LoadOrStore(name, true); busy {
		return nil // the update under way or the next look finds the page
	}
	defer p.busy.Delete(name)
	for began := time.Now(); time.Since(began) < turnLength; {
		channel, configured := p.audience.Load().channel(name)
		if !configured {
			return nil // a process that has the channel in its configuration looks again
		}
		due, err := p.store.due(ctx, channel, atOnce)
		if err != nil || len(due) == 0 {
			return err
		}
		delivered, err := p.deliverAll(ctx, channel, due)
		if err != nil || delivered == 0 {
			return err // the next look tries again
		}
	}
	return nil
}

func (p *Pager) deliverAll(ctx context.Context, channel Channel, pages []Page) (delivered int64, err error) {
	var sending sync.WaitGroup
	var taken atomic.Int64
	errs := make([]error, len(pages))
	for i, page := range pages {
		sending.Go(func() {
			var took bool
			if took, errs[i] = p.deliver(ctx, channel, page); took {
				taken.Add(1)
			}
		})
	}
	sending.Wait()
	return taken.Load(), errors.Join(errs...)
}

// deliver sends a page and reports whether the channel accepted it. If the channel did not, that is no error: the
// page's row says when it is tried again.
func (p *Pager) deliver(ctx context.Context, channel Channel, page Page) (took bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	try, err := p.store.begin(ctx, channel.Name, page)
	if err != nil || try == 0 {
		return false, err
	}
	page.Console = channel.Console
	failure := channel.Sender.Send(ctx, page)
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if failure != nil {
		p.metrics.sent(channel.Name, outcomeOf(failure))
		p.log.Warn("a page was not delivered; it will be tried again", "channel", channel.Name,
			"incident_id", page.IncidentID, "intent_id", page.IntentID, "incidents", page.Count, "error", failure)
		return false, p.store.missed(recording, channel.Name, page, p.settings.Retry(try))
	}
	failpoint.PageSent.Hit()
	p.metrics.sent(channel.Name, delivered)
	p.log.Info("paged", "channel", channel.Name, "incident_id", page.IncidentID, "intent_id", page.IntentID,
		"kind", string(page.Kind), "state", string(page.State), "incidents", page.Count)
	return true, p.store.recordSent(recording, channel.Name, page)
}

func outcomeOf(err error) outcome {
	if errors.As(err, new(*RefusedError)) {
		return refused
	}
	return unreached
}

// client follows no redirect and uses no proxy of the environment, because the body may contain a secret
// and is for the configured address only. That address may be private, as an Alertmanager's is. A cloud's
// metadata service is refused at each connect, since a name can resolve to another address later.
var client = &http.Client{
	Transport: &http.Transport{
		DialContext: egress.Rules{}.Dial, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
		ForceAttemptHTTP2: true, MaxIdleConns: 100, MaxResponseHeaderBytes: 64 << 10,
	},
	Timeout:       10 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// RefusedError is a channel's answer with a status other than 2xx.
type RefusedError struct{ Status int }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("it answered with HTTP status %d; check its address and secret", e.Status)
}

var (
	errAddress  = errors.New("its address cannot be used; correct the configuration")
	errNoAnswer = errors.New("it gave no answer that could be read")
)

// post sends a JSON body. It returns no error of net/http as it is, because such an error repeats the address,
// and Slack's address is its secret.
func post(ctx context.Context, url string, header http.Header, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return errAddress
	}
	request.Header = header
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "drainer")
	response, err := client.Do(request)
	if err != nil {
		return unreachable(err)
	}
	_ = response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return &RefusedError{response.StatusCode}
	}
	return nil
}

func unreachable(err error) error {
	var connection *net.OpError
	var timeout net.Error
	switch {
	case errors.As(err, &connection):
		return fmt.Errorf("it cannot be reached: %w", connection)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("it cannot be reached: %w", context.DeadlineExceeded)
	}
	return errNoAnswer
}

func postJSON(ctx context.Context, url string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return post(ctx, url, http.Header{}, text)
}

// An alert ends after alertLife unless it is sent again, so it is sent more often than other
// pages. How often people are paged for it is set in Alertmanager.
const (
	AlertmanagerRepeat = time.Minute
	alertLife          = 5 * AlertmanagerRepeat
)

// severities maps to the words of PagerDuty and of most alert rules.
var severities = map[incident.Severity]string{incident.Page: "critical", incident.Warning: "warning"}

type alertmanager struct{ url string }

// NewAlertmanager returns a sender to the API v2 below an Alertmanager's address
// (https://prometheus.io/docs/alerting/latest/alerts_api). Alertmanager has no
// acknowledgement, so an acknowledgement ends the alert.
func NewAlertmanager(url string) Sender {
	return alertmanager{strings.TrimSuffix(url, "/") + "/api/v2/alerts"}
}

type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
	Link        string            `json:"generatorURL,omitempty"`
}

func (c alertmanager) Send(ctx context.Context, page Page) error {
	return postJSON(ctx, c.url, []alert{newAlert(page, time.Now())})
}

func newAlert(page Page, now time.Time) alert {
	ends := now
	if page.State == Open {
		ends = now.Add(alertLife)
	}
	if ends.Before(page.OpenedAt) { // the database's clock is ahead
		ends = page.OpenedAt
	}
	annotations := map[string]string{"summary": page.Summary()}
	if page.IdempotencyKey != "" {
		annotations["idempotency_key"] = page.IdempotencyKey
	}
	if todo := page.Todo(); len(todo) > 0 {
		annotations["description"] = strings.Join(todo, "\n")
	}
	// The labels identify the alert: they are the same in every state.
	labels := map[string]string{
		"alertname": "DrainerIncident",
		"severity":  severities[page.Kind.Severity()],
		"kind":      string(page.Kind),
		"dedup_key": page.DedupKey(),
	}
	if page.ToolName != "" {
		labels["provider"], labels["operation"] = page.provider(), page.operation() // an empty label counts as missing
	}
	if page.IntentID != 0 {
		labels["intent_id"] = strconv.FormatInt(page.IntentID, 10)
	}
	return alert{
		Labels:      labels,
		Annotations: annotations,
		StartsAt:    page.OpenedAt.UTC(),
		EndsAt:      ends.UTC(),
		Link:        page.link(),
	}
}

type pagerDuty struct{ url, routingKey string }

// NewPagerDuty returns a sender to the Events API v2
// (https://developer.pagerduty.com/docs/events-api-v2-overview).
func NewPagerDuty(url, routingKey string) Sender { return pagerDuty{url, routingKey} }

var pagerDutyActions = map[State]string{Open: "trigger", Acknowledged: "acknowledge", Resolved: "resolve"}

type pagerDutyEvent struct {
	RoutingKey  string            `json:"routing_key"`
	EventAction string            `json:"event_action"`
	DedupKey    string            `json:"dedup_key"`
	Client      string            `json:"client"`
	ClientURL   string            `json:"client_url,omitempty"`
	Payload     *pagerDutyPayload `json:"payload,omitempty"` // only in a trigger
}

type pagerDutyPayload struct {
	Summary   string        `json:"summary"`
	Source    string        `json:"source"`
	Severity  string        `json:"severity"`
	Timestamp time.Time     `json:"timestamp"`
	Component string        `json:"component,omitempty"`
	Class     incident.Kind `json:"class"`
	Details   details       `json:"custom_details"`
}

func (c pagerDuty) Send(ctx context.Context, page Page) error {
	event := pagerDutyEvent{
		RoutingKey: c.routingKey, EventAction: pagerDutyActions[page.State], DedupKey: page.DedupKey(), Client: "drainer", ClientURL: page.link(),
	}
	if page.State == Open {
		event.Payload = &pagerDutyPayload{
			Summary: page.Summary(), Source: "drainer", Severity: severities[page.Kind.Severity()], Timestamp: page.OpenedAt.UTC(),
			Component: page.provider(), Class: page.Kind, Details: page.details(),
		}
	}
	return postJSON(ctx, c.url, event)
}

type slack struct{ webhookURL string }

// NewSlack returns a sender to an incoming webhook
// (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks).
// The URL is a secret.
func NewSlack(webhookURL string) Sender { return slack{webhookURL} }

func (c slack) Send(ctx context.Context, page Page) error {
	return postJSON(ctx, c.webhookURL, map[string]string{"text": slackText(page)})
}

// slackEscape keeps a name from mentioning a channel or ending a quote. The name is shown as code, so that it
// becomes no link.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'")

func slackText(page Page) string {
	heading := fmt.Sprintf("*drainer: incident %d is %s*", page.IncidentID, page.State)
	if !page.isSingle() {
		heading = fmt.Sprintf("*drainer: %s: %s*", page.State, page.incidents())
	} else if page.By != "" {
		heading += " by `" + slackEscape.Replace(page.by()) + "`"
	}
	lines := []string{heading, page.summary("`" + page.tool() + "`")}
	if page.State == Open {
		since := "since " + page.OpenedAt.UTC().Format(time.RFC3339)
		if page.IdempotencyKey != "" {
			since += ", key " + page.IdempotencyKey
		}
		lines = append(lines, since,
			"```"+slackEscape.Replace(strings.Join(page.Todo(), "\n"))+"```")
	}
	if link := page.link(); link != "" {
		lines = append(lines, "<"+slackEscape.Replace(link)+"|Open the console>")
	}
	return strings.Join(lines, "\n")
}

type webhook struct {
	url  string
	sign *standardwebhooks.Webhook
}

// ErrWebhookSecret says that a secret cannot sign.
var ErrWebhookSecret = errors.New("a webhook's secret is whsec_ and bytes in base64")

// NewWebhook returns a sender of signed messages as specified by Standard Webhooks
// (https://www.standardwebhooks.com). It fails with ErrWebhookSecret.
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
	signature, _ := c.sign.Sign(page.MessageID(), now, body) // an HMAC cannot fail
	header := http.Header{}
	header.Set(standardwebhooks.HeaderWebhookID, page.MessageID())
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	return post(ctx, c.url, header, body)
}
