package pages_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

const webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

var opened = time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("CET", 3600))

func somePage(state pages.State) pages.Page {
	page := pages.Page{
		Outbox: "0123456789ab", IncidentID: 7, Generation: 2, State: state, Kind: incident.OutcomeUnknown, IntentID: 42, ToolName: "stripe/create_charge",
		IdempotencyKey: "idem_v1_0123456789abcdef0123456789abcdef", OpenedAt: opened, Sends: 3,
	}
	if state != pages.Open {
		page.By = "operator:on-call"
	}
	return page
}

// told sends a page and returns the message that arrived.
func told(t *testing.T, sender func(url string) pages.Sender, page pages.Page) message {
	t.Helper()
	r := newReceiver(t)
	if err := sender(r.server.URL).Send(t.Context(), page); err != nil {
		t.Fatal(err)
	}
	return r.next()
}

const dedup = "outbox-incident-0123456789ab-7-2"

const detailsOf = `{"count":1,"incident_id":7,"generation":2,"dedup_key":"` + dedup + `","state":"%s","kind":"outcome_unknown",` +
	`"provider":"stripe","operation":"create_charge","intent_id":42,"idempotency_key":"idem_v1_0123456789abcdef0123456789abcdef",` +
	`"opened_at":"2026-03-01T11:00:00Z",%s` +
	`"summary":"outcome_unknown: it is not known whether this effect happened (stripe/create_charge, intent 42)"%s}`

// todoOf is the text that only a page of an open incident has.
const todoOf = `,"todo":["drainer intents show 42","drainer intents retry 42 --config FILE --reason TEXT","drainer intents resolve 42 --as completed|failed --reason TEXT","drainer incidents ack 7 --reason TEXT"]`

func TestPagerDutyIsTriggeredAcknowledgedAndResolvedUnderOneKey(t *testing.T) {
	t.Parallel()
	for state, want := range map[pages.State]string{
		pages.Open: `{"routing_key":"R0","event_action":"trigger","dedup_key":"` + dedup + `","client":"drainer","payload":{` +
			`"summary":"outcome_unknown: it is not known whether this effect happened (stripe/create_charge, intent 42)",` +
			`"source":"drainer","severity":"critical","timestamp":"2026-03-01T11:00:00Z","component":"stripe","class":"outcome_unknown",` +
			`"custom_details":` + fmt.Sprintf(detailsOf, "open", "", todoOf) + `}}`,
		pages.Acknowledged: `{"routing_key":"R0","event_action":"acknowledge","dedup_key":"` + dedup + `","client":"drainer"}`,
		pages.Resolved:     `{"routing_key":"R0","event_action":"resolve","dedup_key":"` + dedup + `","client":"drainer"}`,
	} {
		got := told(t, func(url string) pages.Sender { return pages.NewPagerDuty(url, "R0") }, somePage(state))
		if got.body != want {
			t.Errorf("%s:\ngot  %s\nwant %s", state, got.body, want)
		}
	}
}

func TestSlackIsToldInWords(t *testing.T) {
	t.Parallel()
	for state, want := range map[pages.State]string{
		pages.Open: "*drainer: incident 7 is open*\n" +
			"outcome_unknown: it is not known whether this effect happened (`stripe/create_charge`, intent 42)\n" +
			"since 2026-03-01T11:00:00Z, key idem_v1_0123456789abcdef0123456789abcdef\n" +
			"```drainer intents show 42\ndrainer intents retry 42 --config FILE --reason TEXT\ndrainer intents resolve 42 --as completed|failed --reason TEXT\ndrainer incidents ack 7 --reason TEXT```",
		pages.Acknowledged: "*drainer: incident 7 is acknowledged* by `operator:on-call`\n" +
			"outcome_unknown: it is not known whether this effect happened (`stripe/create_charge`, intent 42)",
		pages.Resolved: "*drainer: incident 7 is resolved* by `operator:on-call`\n" +
			"outcome_unknown: it is not known whether this effect happened (`stripe/create_charge`, intent 42)",
	} {
		if got := slackText(t, somePage(state)); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", state, got, want)
		}
	}
}

// An agent may enqueue with any tool name, and an operator may acknowledge under any name.
func TestAToolsNameWritesNoLinkAndNoMentionIntoAPage(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"x/<!channel>\n```all is well```":       "x/??channel?????all?is?well???",
		"pay/https://evil.example/login":        "pay/https?//evil·example/login",
		"pay/evil.example":                      "pay/evil·example",
		"pay/<https://evil.example|click here>": "pay/?https?//evil·example?click?here?",
		"<@U123>/*bold*":                        "??U123?/?bold?",
		"a\r\nSubject: paid/b\u202e":            "a??Subject??paid/b?",
	} {
		page := somePage(pages.Open)
		page.ToolName = name
		if got := page.Summary(); !strings.HasSuffix(got, " ("+want+", intent 42)") {
			t.Errorf("%q: the summary is %s", name, got)
		}
		if got := slackText(t, page); !strings.Contains(got, "(`"+want+"`, intent 42)\n") {
			t.Errorf("%q: Slack is told %s", name, got)
		}
		pagerDuty := told(t, func(url string) pages.Sender { return pages.NewPagerDuty(url, "R0") }, page)
		alert := told(t, pages.NewAlertmanager, page)
		webhook := told(t, func(url string) pages.Sender { return mustWebhook(t, url) }, page)
		for _, body := range []string{pagerDuty.body, alert.body, webhook.body} {
			if strings.Contains(body, "evil.") || strings.Contains(body, "://evil") || strings.Contains(body, "@U123") || strings.ContainsRune(body, '\u202e') {
				t.Errorf("%q: told is %s", name, body)
			}
		}
		fault.Injected(t, 73, 1)
	}
	page := somePage(pages.Acknowledged)
	page.By = "operator:<!here>\n*https://evil.example*"
	if got := slackText(t, page); !strings.Contains(got, "by `operator:&lt;!here&gt;??https://evil.example?`\n") {
		t.Errorf("Slack is told %s", got)
	}
}

func slackText(t *testing.T, page pages.Page) string {
	t.Helper()
	var body map[string]string
	got := told(t, pages.NewSlack, page)
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || len(body) != 1 {
		t.Fatalf("%s: %v", got.body, err)
	}
	return body["text"]
}

func TestAnAlertEndsInMinutesOrAtOnce(t *testing.T) {
	t.Parallel()
	const description = `"description":"drainer intents show 42\ndrainer intents retry 42 --config FILE --reason TEXT\ndrainer intents resolve 42 --as completed|failed --reason TEXT\ndrainer incidents ack 7 --reason TEXT",`
	for state, want := range map[pages.State]struct {
		life        time.Duration
		description string
	}{
		pages.Open: {5 * pages.AlertmanagerRepeat, description}, pages.Acknowledged: {}, pages.Resolved: {},
	} {
		before := time.Now()
		got := told(t, func(url string) pages.Sender { return pages.NewAlertmanager(url + "/prefix/") }, somePage(state))
		if got.path != "/prefix/api/v2/alerts" {
			t.Errorf("sent to %s", got.path)
		}
		var alerts []map[string]any
		if err := json.Unmarshal([]byte(got.body), &alerts); err != nil || len(alerts) != 1 {
			t.Fatalf("%s: %v", got.body, err)
		}
		ends, err := time.Parse(time.RFC3339, alerts[0]["endsAt"].(string))
		if late := ends.Sub(before.Add(want.life)); err != nil || late < 0 || late > drainertest.Patience {
			t.Errorf("%s: ends at %v, want %v from now (%v)", state, ends, want.life, err)
		}
		delete(alerts[0], "endsAt")
		rest, _ := json.Marshal(alerts[0])
		if want := `{"annotations":{` + want.description +
			`"idempotency_key":"idem_v1_0123456789abcdef0123456789abcdef",` +
			`"summary":"outcome_unknown: it is not known whether this effect happened (stripe/create_charge, intent 42)"},` +
			`"labels":{"alertname":"DrainerIncident","dedup_key":"` + dedup + `","intent_id":"42","kind":"outcome_unknown",` +
			`"operation":"create_charge","provider":"stripe","severity":"critical"},"startsAt":"2026-03-01T11:00:00Z"}`; string(rest) != want {
			t.Errorf("%s:\ngot  %s\nwant %s", state, rest, want)
		}
	}
}

// The database's clock may be ahead of this machine's.
func TestNoAlertEndsBeforeItStarts(t *testing.T) {
	t.Parallel()
	page := somePage(pages.Resolved)
	page.OpenedAt = time.Now().Add(time.Hour)
	got := told(t, pages.NewAlertmanager, page)
	var alerts []struct{ StartsAt, EndsAt time.Time }
	if err := json.Unmarshal([]byte(got.body), &alerts); err != nil || alerts[0].EndsAt.Before(alerts[0].StartsAt) {
		t.Errorf("%s (%v)", got.body, err)
	}
}

func TestAWebhookIsSignedAndSaysWhatHappened(t *testing.T) {
	t.Parallel()
	verify, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	for state, want := range map[pages.State]struct{ event, by, todo string }{
		pages.Open:         {"incident.opened", "", todoOf},
		pages.Acknowledged: {"incident.acknowledged", `"by":"operator:on-call",`, ""},
		pages.Resolved:     {"incident.resolved", `"by":"operator:on-call",`, ""},
	} {
		got := told(t, func(url string) pages.Sender { return mustWebhook(t, url) }, somePage(state))
		if err := verify.Verify([]byte(got.body), got.header); err != nil {
			t.Errorf("%s: %v", state, err)
		}
		if err := verify.Verify([]byte(got.body+" "), got.header); err == nil {
			t.Errorf("%s: another body has the same signature", state)
		}
		if id := got.header.Get("webhook-id"); id != dedup+"-"+string(state)+"-3" {
			t.Errorf("%s: the message is %s", state, id)
		}
		var event struct {
			Type      string
			Timestamp time.Time
			Data      json.RawMessage
		}
		if err := json.Unmarshal([]byte(got.body), &event); err != nil {
			t.Fatal(err)
		}
		if event.Type != want.event || time.Since(event.Timestamp) > drainertest.Patience || string(event.Data) != fmt.Sprintf(detailsOf, state, want.by, want.todo) {
			t.Errorf("%s: got %s", state, got.body)
		}
	}
}

func mustWebhook(t *testing.T, url string) pages.Sender {
	t.Helper()
	sender, err := pages.NewWebhook(url, webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	return sender
}

// canary stands for every secret: in addresses, in keys and in the text that servers echo.
const canary = "c4n4ry"

func TestAFailedPageShowsNeitherAddressNorSecret(t *testing.T) {
	t.Parallel()
	echo := newReceiver(t)
	echo.answer = func(_ int64, w http.ResponseWriter) bool {
		w.Header().Set("Location", "http://"+canary+".invalid/")
		http.Error(w, canary, http.StatusTemporaryRedirect)
		return false
	}
	garbage := newReceiver(t)
	garbage.answer = func(_ int64, w http.ResponseWriter) bool {
		connection, _, _ := w.(http.Hijacker).Hijack()
		connection.Write([]byte(canary + "\r\n\r\n"))
		connection.Close()
		return false
	}
	closed := newReceiver(t)
	closed.server.Close()

	for name, url := range map[string]string{
		"an answer that is none": garbage.server.URL,
		"a redirect":             echo.server.URL,
		"nobody there":           closed.server.URL,
		"no address":             "http://" + canary + "%zz",
		"another protocol":       "ftp://" + canary,
	} {
		url += "/services/" + canary
		for _, sender := range []pages.Sender{
			pages.NewPagerDuty(url, canary), pages.NewSlack(url), pages.NewAlertmanager(url), mustWebhook(t, url),
		} {
			if err := sender.Send(t.Context(), somePage(pages.Open)); err == nil || strings.Contains(err.Error(), canary) {
				t.Errorf("%s, %T: %v", name, sender, err)
			}
		}
	}
	if tries := echo.tries.Load(); tries != 4 {
		t.Errorf("the redirecting server was called %d times, want 4", tries)
	}
}

func TestAWebhookNeedsASecretThatCanSign(t *testing.T) {
	t.Parallel()
	if _, err := pages.NewWebhook("http://localhost", "whsec_"+canary+"!"); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("got %v", err)
	}
}

func TestEveryKindSaysWhatItMeansAndWhatToType(t *testing.T) {
	t.Parallel()
	saga := []string{
		"drainer sagas show --intent 42", "drainer sagas retry --intent 42 --reason TEXT", "drainer sagas resolve --intent 42 --reason TEXT",
	}
	remedies := map[incident.Kind][]string{
		incident.OutcomeUnknown:        {"drainer intents retry 42 --config FILE --reason TEXT", "drainer intents resolve 42 --as completed|failed --reason TEXT"},
		incident.CompensationFailed:    saga,
		incident.ReversalWindowExpired: {saga[0], "drainer sagas retry --intent 42 --undone 42 --reason TEXT", saga[2]},
		incident.UnconfiguredProvider:  {"drainer status", "drainer intents cancel 42 --reason TEXT"},
		incident.KeyCollision:          nil,
		incident.UnknownOperation:      {"drainer status", "drainer intents cancel 42 --reason TEXT"},
		incident.FirstReplay:           nil,
		incident.RefusedIntent:         {"drainer intents retry 42 --config FILE --reason TEXT"},
		incident.SagaStalled:           saga,
		incident.CredentialsRefused:    {"drainer providers list", "drainer providers resume stripe --reason TEXT"},
		incident.Forbidden:             {"drainer providers list", "drainer providers resume stripe --reason TEXT"},
		incident.Misconfigured:         {"drainer providers list", "drainer providers resume stripe --reason TEXT"},
		incident.HistoryChanged:        {"drainer history", "drainer history accept --reason TEXT"},
	}
	for _, kind := range incident.Kinds() {
		page := somePage(pages.Open)
		page.Kind = kind
		show := []string{"drainer intents show 42"}
		if kind == incident.HistoryChanged {
			page, show = ofOutbox(), nil
		}
		if !strings.Contains(page.Summary(), string(kind)+": ") || strings.Contains(page.Summary(), ":  (") {
			t.Errorf("%s: %s", kind, page.Summary())
		}
		remedy, listed := remedies[kind]
		want := slices.Concat(show, remedy, []string{"drainer incidents ack 7 --reason TEXT"})
		if got := page.Todo(); !listed || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
	}
}

// ofOutbox returns the page of a changed history, which is about no intent.
func ofOutbox() pages.Page {
	page := somePage(pages.Open)
	page.Kind, page.IntentID, page.ToolName, page.IdempotencyKey = incident.HistoryChanged, 0, "", ""
	return page
}

func TestAPageAboutTheWholeOutboxNamesNoIntent(t *testing.T) {
	t.Parallel()
	const subject = "history_changed: the database may have lost commits; providers with a non_idempotent tool or a fallback wait (the whole outbox)"
	want := "*drainer: incident 7 is open*\n" + subject + "\nsince 2026-03-01T11:00:00Z\n" +
		"```drainer history\ndrainer history accept --reason TEXT\ndrainer incidents ack 7 --reason TEXT```"
	if got := slackText(t, ofOutbox()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for name, sender := range map[string]func(string) pages.Sender{
		"pagerduty":    func(url string) pages.Sender { return pages.NewPagerDuty(url, "R0") },
		"alertmanager": pages.NewAlertmanager,
		"webhook":      func(url string) pages.Sender { return mustWebhook(t, url) },
	} {
		body := told(t, sender, ofOutbox()).body
		for _, field := range []string{`"intent_id"`, `"idempotency_key"`, `"provider"`, `"component"`} {
			if strings.Contains(body, field) || !strings.Contains(body, subject) {
				t.Errorf("%s is told %s", name, body)
			}
		}
	}
}

func TestAPageAboutARefusalOfAForgottenIntentNamesWhatIsShut(t *testing.T) {
	t.Parallel()
	for gate, kind := range map[string]incident.Kind{"stripe": incident.CredentialsRefused, "stripe/refund": incident.Forbidden} {
		page := ofOutbox()
		page.Kind, page.ToolName = kind, gate
		if got, want := page.Summary(), fmt.Sprintf("%s: %s (%s)", kind, kind.Means(), gate); got != want {
			t.Errorf("it says %s, want %s", got, want)
		}
		want := []string{"drainer providers list", "drainer providers resume stripe --reason TEXT", "drainer incidents ack 7 --reason TEXT"}
		if got := page.Todo(); !slices.Equal(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
		body := told(t, pages.NewAlertmanager, page).body
		if !strings.Contains(body, `"provider":"stripe"`) || strings.Contains(body, `"intent_id"`) || strings.Contains(body, `"operation":"stripe"`) {
			t.Errorf("Alertmanager is told %s", body)
		}
	}
}

func TestAPageOfAPrunedRunOrIntentIsNotAboutTheWholeOutbox(t *testing.T) {
	t.Parallel()
	for intent, want := range map[int64]string{0: "(its tool is not known any more)", 99: "(its tool is not known any more, intent 99)"} {
		page := ofOutbox()
		page.Kind, page.IntentID = incident.SagaStalled, intent
		if got := page.Summary(); !strings.HasSuffix(got, want) {
			t.Errorf("it says %s, want %s", got, want)
		}
		if body := told(t, pages.NewAlertmanager, page).body; strings.Contains(body, `"provider"`) {
			t.Errorf("Alertmanager is told %s", body)
		}
	}
}

func TestAPageOfAGroupCountsAndSaysHowToListIt(t *testing.T) {
	t.Parallel()
	page := somePage(pages.Open)
	page.Count = 1000
	want := "*drainer: open: 1000 incidents*\n" +
		"outcome_unknown, 1000 incidents: it is not known whether this effect happened (the first: `stripe/create_charge`, intent 42)\n" +
		"since 2026-03-01T11:00:00Z, key idem_v1_0123456789abcdef0123456789abcdef\n" +
		"```drainer incidents list --kind outcome_unknown --provider stripe\ndrainer intents show INTENT\n" +
		"drainer intents retry INTENT --config FILE --reason TEXT\ndrainer intents resolve INTENT --as completed|failed --reason TEXT\ndrainer incidents ack --kind outcome_unknown --provider stripe --reason TEXT```"
	if got := slackText(t, page); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	page.Kind = incident.UnconfiguredProvider
	if got := page.Todo()[0]; got != "drainer incidents list --kind unconfigured_provider" {
		t.Errorf("of many providers it says %s", got)
	}
	page.Kind, page.ToolName = incident.OutcomeUnknown, "odd name/act"
	if got := page.Todo(); got[len(got)-1] != "drainer incidents ack INCIDENT... --reason TEXT" {
		t.Errorf("of a provider that a shell would take apart it says %q", got)
	}
	page.Kind, page.Count, page.FirstIsOver = incident.UnconfiguredProvider, 1, true
	if got := page.Summary(); !strings.Contains(got, "unconfigured_provider, 1 incident: ") {
		t.Errorf("of another than the first it says %s", got)
	}
	page.State, page.Count = pages.Resolved, 1000
	if got := slackText(t, page); !strings.HasPrefix(got, "*drainer: resolved: 1000 incidents*\n") {
		t.Errorf("at the end it says %s", got)
	}
}

func TestAPageLinksToWhatTheConsoleShowsOfIt(t *testing.T) {
	t.Parallel()
	single := func(*pages.Page) {}
	for name, test := range map[string]struct {
		console string
		of      func(*pages.Page)
		want    string // empty: no link
	}{
		"no console":            {"", single, ""},
		"one incident":          {"https://outbox.example", single, "https://outbox.example/incidents?id=7"},
		"below a path":          {"https://ops.example/outbox/", single, "https://ops.example/outbox/incidents?id=7"},
		"a resolved one":        {"https://outbox.example", func(p *pages.Page) { p.State = pages.Resolved }, "https://outbox.example/incidents?id=7"},
		"a group":               {"https://outbox.example", func(p *pages.Page) { p.Count = 9 }, "https://outbox.example/incidents?kind=outcome_unknown&provider=stripe"},
		"of every provider":     {"https://outbox.example", func(p *pages.Page) { p.Count, p.Kind = 9, incident.UnconfiguredProvider }, "https://outbox.example/incidents?kind=unconfigured_provider"},
		"a name with a query":   {"https://outbox.example", func(p *pages.Page) { p.Count, p.ToolName = 9, "x&id=1#@evil.example/act" }, "https://outbox.example/incidents?kind=outcome_unknown"},
		"a name that is a path": {"https://outbox.example", func(p *pages.Page) { p.Count, p.ToolName = 9, "../evil/act" }, "https://outbox.example/incidents?kind=outcome_unknown"},
		"a name that ends it":   {"https://outbox.example", func(p *pages.Page) { p.Count, p.ToolName = 9, "x|evil>/act" }, "https://outbox.example/incidents?kind=outcome_unknown"},
	} {
		page := somePage(pages.Open)
		page.Console = test.console
		test.of(&page)
		var pagerDuty, webhook struct {
			ClientURL string `json:"client_url"`
			Data      struct{ Link string }
		}
		var alerts []struct{ GeneratorURL string }
		read := func(body string, into any) {
			if err := json.Unmarshal([]byte(body), into); err != nil {
				t.Fatal(err)
			}
		}
		read(told(t, func(url string) pages.Sender { return pages.NewPagerDuty(url, "R0") }, page).body, &pagerDuty)
		read(told(t, pages.NewAlertmanager, page).body, &alerts)
		read(told(t, func(url string) pages.Sender { return mustWebhook(t, url) }, page).body, &webhook)
		for channel, got := range map[string]string{"pagerduty": pagerDuty.ClientURL, "alertmanager": alerts[0].GeneratorURL, "webhook": webhook.Data.Link} {
			if got != test.want {
				t.Errorf("%s: %s links to %q, want %q", name, channel, got, test.want)
			}
		}
		last := ""
		if test.want != "" {
			last = "\n<" + strings.ReplaceAll(test.want, "&", "&amp;") + "|Open the console>"
		}
		if text := slackText(t, page); !strings.HasSuffix(text, last) || strings.Count(text, "://") != strings.Count(test.want, "://") {
			t.Errorf("%s: Slack is told %s", name, text)
		}
	}
}

func TestAWarningIsNoCriticalAlert(t *testing.T) {
	t.Parallel()
	page := somePage(pages.Open)
	page.Kind = incident.KeyCollision
	pagerDuty := told(t, func(url string) pages.Sender { return pages.NewPagerDuty(url, "R0") }, page)
	alert := told(t, pages.NewAlertmanager, page)
	for _, body := range []string{pagerDuty.body, alert.body} {
		if !strings.Contains(body, `"severity":"warning"`) {
			t.Errorf("told is %s", body)
		}
	}
}

func TestAToolWithoutASlashIsItsOwnProvider(t *testing.T) {
	t.Parallel()
	page := somePage(pages.Open)
	page.ToolName = "mail"
	got := told(t, func(url string) pages.Sender { return mustWebhook(t, url) }, page)
	if !strings.Contains(got.body, `"provider":"mail","operation":"mail"`) {
		t.Errorf("got %s", got.body)
	}
}

// receiver is the server of a channel: a real HTTP server that keeps the messages that it accepted.
type receiver struct {
	t        *testing.T
	server   *httptest.Server
	accepted chan message
	tries    atomic.Int64
	answer   func(try int64, w http.ResponseWriter) bool // false: not accepted
}

type message struct {
	header http.Header
	path   string
	body   string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, accepted: make(chan message, 1000), answer: func(_ int64, w http.ResponseWriter) bool {
		w.WriteHeader(http.StatusAccepted)
		return true
	}}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		r.t.Error(err)
	}
	if request.Method != http.MethodPost || request.Header.Get("Content-Type") != "application/json" {
		r.t.Errorf("got %s of %s", request.Method, request.Header.Get("Content-Type"))
	}
	if r.answer(r.tries.Add(1), w) {
		r.accepted <- message{request.Header, request.URL.Path, string(body)}
	}
}

// next waits for a message.
func (r *receiver) next() message {
	r.t.Helper()
	select {
	case m := <-r.accepted:
		return m
	case <-time.After(drainertest.Patience):
		r.t.Fatal("nothing was received")
		return message{}
	}
}

// assertSilent fails if there is a message that no test waited for.
func (r *receiver) assertSilent() {
	r.t.Helper()
	select {
	case m := <-r.accepted:
		r.t.Errorf("received %s", m.body)
	default:
	}
}

// cut ends the connection without an answer.
func cut(w http.ResponseWriter) {
	connection, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		connection.Close()
	}
}
