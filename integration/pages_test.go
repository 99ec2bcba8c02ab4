package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

const pagerSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// pagerEvent is an event that the webhook of a test receives.
type pagerEvent struct {
	Type string
	Data struct {
		IncidentID int64  `json:"incident_id"`
		IntentID   int64  `json:"intent_id"`
		DedupKey   string `json:"dedup_key"`
		Kind       string
		By         string
	}
}

// newPager starts a webhook that checks the signature of each event and keeps the event.
func newPager(t *testing.T) (url string, events chan pagerEvent) {
	t.Helper()
	verify, err := standardwebhooks.NewWebhook(pagerSecret)
	if err != nil {
		t.Fatal(err)
	}
	events = make(chan pagerEvent, 100)
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var event pagerEvent
		if err := verify.Verify(body, r.Header); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(body, &event); err != nil || strings.Contains(string(body), "canary") {
			t.Errorf("got %s (%v)", body, err)
		}
		events <- event
	}))
	return baseURL, events
}

// nextEvent waits for the next event. It must have the type want, unless want is empty.
func nextEvent(t *testing.T, events chan pagerEvent, want string) pagerEvent {
	t.Helper()
	select {
	case event := <-events:
		if want != "" && event.Type != want {
			t.Fatalf("the pager receives %+v, want %s", event, want)
		}
		return event
	case <-time.After(drainertest.Patience):
		t.Fatalf("the pager never receives %s", want)
		return pagerEvent{}
	}
}

// River's queues are paused, so that no job of the pager finds the incident. Only the heartbeat can send its page.
// The delay depends on the machine, so the test only logs it.
func TestAPromotedStandbyPagesWithTheHeartbeatThatMeetsIt(t *testing.T) {
	t.Parallel()
	primary := cluster.Start(t)
	standby := cluster.Standby(t, primary)
	line := pgproxy.New(t, primary.URL)
	pager, events := newPager(t)
	shell := program.New(t, line.Behind(t, primary.URL), "BILLING_TOKEN=canary-token", "PAGER_SECRET="+pagerSecret)
	shell.Start(program.WriteConfig(t, fmt.Sprintf(billingConfig, "http://127.0.0.1:1")+
		fmt.Sprintf("pages:\n  - {webhook: {url: %q, secret: \"${env:PAGER_SECRET}\"}}\n", pager+"/canary")))
	drainertest.Eventually(t, "the pager has looked", func() bool {
		return cluster.Ask[bool](t, primary, `SELECT EXISTS (SELECT FROM outbox.river_job WHERE kind = 'page_look' AND state = 'completed')`)
	})
	cluster.Exec(t, primary, `UPDATE outbox.river_queue SET paused_at = now(), updated_at = now()`)
	drainertest.Eventually(t, "looks stand still", func() bool {
		return cluster.Ask[bool](t, primary, `SELECT EXISTS (SELECT FROM outbox.river_job WHERE kind = 'page_look' AND state = 'available' AND scheduled_at < now() - interval '5 seconds')`)
	})
	cluster.AwaitCaughtUp(t, primary, standby)
	line.TakeDown()
	cluster.Kill(t, primary)
	cluster.Exec(t, standby, `SELECT pg_promote()`)
	promoted := cluster.Ask[time.Time](t, standby, `SELECT clock_timestamp()`)
	line.LeadTo(t, standby.URL)
	line.BringUp()
	if event := nextEvent(t, events, "incident.opened"); event.Data.Kind != "history_changed" {
		t.Errorf("the pager receives %+v", event)
	}
	var told *time.Time
	drainertest.Eventually(t, "the page is noted as sent", func() bool {
		told = cluster.Ask[*time.Time](t, standby, `SELECT max(told_at) FROM outbox.page WHERE told = 'open'`)
		return told != nil
	})
	took := told.Sub(promoted).Round(10 * time.Millisecond)
	t.Logf("paged %s after the promotion", took)
	if cluster.Ask[bool](t, standby, `SELECT EXISTS (SELECT FROM outbox.river_job WHERE kind LIKE 'page%' AND attempted_at > '`+promoted.Format(time.RFC3339Nano)+`')`) {
		t.Error("a job of the pager has run, so that nothing is shown of the heartbeat")
	}
}

func TestAnUnknownOutcomePagesUntilItIsResolved(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.ErrorAfter, dispatchtest.ErrorAfter))
	pager, events := newPager(t)
	shell := program.New(t, url, "BILLING_TOKEN=canary-token", "PAGER_SECRET="+pagerSecret, "USER=on-call")
	config := program.WriteConfig(t, fmt.Sprintf(billingConfig, baseURL)+"        retry: {max_attempts: 1}\n"+
		fmt.Sprintf("pages:\n  - {webhook: {url: %q, secret: \"${env:PAGER_SECRET}\"}}\n", pager+"/canary"))
	daemon := shell.Start(config)

	shell.Run(0, "enqueue", "--run", "canary-run", "--step", "canary-step", "--tool", "billing/charge", "--scope", "canary-scope",
		"--payload", `{"card": "canary"}`)
	opened := nextEvent(t, events, "incident.opened")
	if opened.Data.Kind != "outcome_unknown" || opened.Data.IntentID != 1 {
		t.Errorf("the pager receives %+v", opened)
	}

	shell.Run(0, "incidents", "ack", strconv.FormatInt(opened.Data.IncidentID, 10), "--reason", "looking")
	if acknowledged := nextEvent(t, events, "incident.acknowledged"); acknowledged.Data.By != "operator:on-call" {
		t.Errorf("the pager receives %+v", acknowledged)
	}
	shell.Run(0, "intents", "retry", "1", "--may-duplicate", "--reason", "try again", "--config", config)

	// The retry also ends as unknown. So the incident is resolved and opens again, under another key.
	dedup := map[string]string{}
	for range 2 {
		event := nextEvent(t, events, "")
		dedup[event.Type] = event.Data.DedupKey
	}
	if dedup["incident.resolved"] != opened.Data.DedupKey || dedup["incident.opened"] == opened.Data.DedupKey || dedup["incident.opened"] == "" {
		t.Errorf("the pager receives %v after %s", dedup, opened.Data.DedupKey)
	}

	var listed []struct {
		State      string
		Generation int
	}
	shell.RunJSON(&listed, "incidents", "list")
	if len(listed) != 1 || listed[0].State != "open" || listed[0].Generation != 2 {
		t.Errorf("listed are %+v, want one that is open for the second time", listed)
	}
	var metrics string
	drainertest.Eventually(t, "four pages are counted", func() bool {
		metrics = daemon.Get("/metrics")
		return strings.Contains(metrics, `drainer_pages_total{channel="webhook",outcome="delivered"} 4`)
	})
	log := daemon.Terminate()
	for place, text := range map[string]string{"log": log, "metrics": metrics, "River": riverJobs(t, url)} {
		if strings.Contains(text, "canary") || strings.Contains(text, pagerSecret) {
			t.Errorf("the %s shows a secret:\n%s", place, text)
		}
	}
}

func riverJobs(t *testing.T, url string) string {
	t.Helper()
	return drainertest.Value[string](t, drainertest.Connect(t, url),
		`SELECT coalesce(string_agg(row_to_json(j)::text, ' '), '') FROM outbox.river_job j WHERE kind LIKE 'page%'`)
}

func TestIncidentsAreListedAndAcknowledgedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	d := newDeadLetters(t)
	d.enqueue("step-1")
	d.drain()
	d.assertSays(0, "outcome_unknown", "incidents", "list")
	d.assertSays(2, "no such kind", "incidents", "list", "--kind", "outcome")
	d.assertSays(2, "--reason is empty", "incidents", "ack", "1")
	d.assertSays(2, "no incident's number", "incidents", "ack", "all", "--reason", "mine")
	d.assertSays(0, "acknowledged", "incidents", "ack", "1", "--reason", "asking the provider")
	d.assertSays(1, "operator:on-call acknowledged it before", "incidents", "ack", "1", "--reason", "mine")
	d.assertSays(1, "not acknowledged: incident 4711: there is no such incident", "incidents", "ack", "4711", "--reason", "mine")
	if stdout, _ := d.Run(1, "incidents", "ack", "1", "4711", "--reason", "mine", "-o", "json"); !strings.Contains(stdout, `"state": "acknowledged"`) {
		t.Errorf("a refusal does not say where the incident stands:\n%s", stdout)
	}
	d.assertSays(0, "asking the provider", "incidents", "list")
	d.Run(0, "intents", "resolve", "1", "--as", "completed", "--reason", "found it")
	if stdout, _ := d.Run(0, "incidents", "list"); strings.Contains(stdout, "outcome_unknown") {
		t.Errorf("a resolved incident is still listed:\n%s", stdout)
	}
	d.assertSays(0, "resolved", "incidents", "list", "--all")
}
