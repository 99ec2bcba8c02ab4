package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// manyOf is a filter of 1,200 intents that wait, of a run of their own.
func (b *browser) manyOf(run string) url.Values {
	b.t.Helper()
	drainertest.Exec(b.t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT $1, 'step-' || n, 'sim/act', 'scope', '{}' FROM generate_series(1, 1200) n`, run)
	return url.Values{"all": {"1"}, "status": {"pending"}, "run": {run}}
}

var packedRows = regexp.MustCompile(`name="rows" value="([^"]+)"`)

type progress struct {
	Changed, Refused int
	Refusals         map[string]int
	EndedAt          *string `json:"ended_at"`
	Stopped          string
}

// follow returns the progress of a change once it ended.
func (b *browser) follow(path string) (now progress) {
	b.t.Helper()
	drainertest.Eventually(b.t, "a change of many rows ended", func() bool {
		if err := json.Unmarshal([]byte(b.get(path, "Accept", "application/json").text), &now); err != nil {
			b.t.Fatal(err)
		}
		return now.EndedAt != nil
	})
	return now
}

func TestAllThatMatchAreChangedInChunksAndLaterRowsAreNot(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	shown := b.post("/intents/cancel", b.manyOf("long"))
	rows := packedRows.FindStringSubmatch(shown.text)
	if rows == nil || !strings.Contains(shown.text, "1,200 would change") || strings.Count(shown.text, "<tr>") > 60 {
		t.Fatalf("the first step: %d\n%s", shown.code, shown.text)
	}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('long', 'later', 'sim/act', 'scope', '{}')`)
	drainertest.Exec(t, b.db, `UPDATE outbox.queue SET maybe_applied = true WHERE intent_id = (SELECT id FROM outbox.intent WHERE step_id = 'step-7' AND agent_run_id = 'long')`)
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	begun := b.post("/intents/cancel", url.Values{"rows": {rows[1]}, "reason": {"the agent ran wild"}})
	if begun.code != http.StatusSeeOther {
		t.Fatalf("the second step: %d\n%s", begun.code, begun.text)
	}
	if ended := b.follow(begun.header.Get("Location")); ended.Changed != 1199 || ended.Refused != 1 || len(ended.Refusals) != 1 || ended.Stopped != "" {
		t.Errorf("it ended as %+v", ended)
	}
	if page := b.get(begun.header.Get("Location")); !strings.Contains(page.text, "Cancel 1,200 intents: done") || !strings.Contains(page.text, "the agent ran wild") {
		t.Errorf("the page says:\n%s", page.text)
	}
	left := drainertest.Column[string](t, b.db, `SELECT step_id FROM outbox.status WHERE agent_run_id = 'long' AND status = 'pending' ORDER BY 1`)
	if strings.Join(left, " ") != "later step-7" {
		t.Errorf("left are %q", left)
	}
}

// A field that the form for a change forgot would make "all that match" change more rows than are listed.
func TestAllThatMatchAreWhatThePageLists(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	drainertest.Tenant(t, b.db)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
		SELECT 'few', 'step-' || n, CASE n WHEN 1 THEN 'sim/other' WHEN 5 THEN 'spare/act' ELSE 'sim/act' END, CASE n WHEN 2 THEN 'order' ELSE 'scope' END, '{}', now() - n * interval '1 day'
		FROM generate_series(1, 6) n`)
	drainertest.Exec(t, b.db, `UPDATE outbox.intent SET tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = 'other') WHERE step_id = 'step-3' AND agent_run_id = 'few'`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.provider (name) VALUES ('spare')`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
		SELECT id, 1, 'w', 'cancelled', 'cancelled' FROM outbox.intent WHERE agent_run_id = 'few' AND step_id = 'step-6'`)
	drainertest.Exec(t, b.db, `DELETE FROM outbox.queue WHERE intent_id = (SELECT id FROM outbox.intent WHERE agent_run_id = 'few' AND step_id = 'step-6')`)
	b.login("alice-has-a-long-token-of-her-own")
	hidden := regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)
	for filter, want := range map[string]string{
		"run=few": "6", "run=few&tool=sim/other": "1", "run=few&scope=order": "1", "run=few&tenant=other": "1", "run=few&since=60h": "2",
		"run=few&until=60h": "4", "run=few&status=pending": "5", "run=few&provider=sim": "5", "reference=eff_1": "1", "error=http_422": "1", "dead=1": "1",
	} {
		page := b.get("/intents?" + filter)
		if listed := fmt.Sprint(strings.Count(page.text, `name="of"`)); listed != want {
			t.Errorf("%s lists %s, want %s", filter, listed, want)
		}
		form := url.Values{"all": {"1"}}
		for _, input := range hidden.FindAllStringSubmatch(page.text, -1) {
			form.Set(input[1], html.UnescapeString(input[2]))
		}
		confirm := b.post("/intents/cancel", form)
		if rows := strings.Count(confirm.text, ">intent "); fmt.Sprint(rows) != want {
			t.Errorf("a change of all that match %s takes %d rows, want %s:\n%s", filter, rows, want, confirm.text)
		}
	}
	if got := b.get("/intents?since=yesterday"); got.code != http.StatusBadRequest || !strings.Contains(got.text, "Since: want how long ago") {
		t.Errorf("a time that is none: %d\n%s", got.code, got.text)
	}
}

// The rows are written without triggers, which would take longer than the look.
func TestAllThatMatchTellsThatOlderIntentsWereNotLookedAt(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	const note = "older ones may match, and stay as they are"
	if shown := b.post("/intents/cancel", url.Values{"all": {"1"}, "scope": {"scope"}}); strings.Contains(shown.text, note) {
		t.Errorf("of a few: %d\n%s", shown.code, shown.text)
	}
	drainertest.Exec(t, b.db, `SET session_replication_role = replica; INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, tenant)
		SELECT 'filler', n::text, 'sim/act', CASE n WHEN 100000 THEN 'scope' ELSE 'filler' END, '{}', 0 FROM generate_series(1, 100000) n; RESET session_replication_role`)
	if shown := b.post("/intents/cancel", url.Values{"all": {"1"}, "scope": {"scope"}}); !strings.Contains(shown.text, note) || !strings.Contains(shown.text, "newest 100,000") || strings.Count(shown.text, ">intent ") != 1 {
		t.Errorf("of many: %d\n%s", shown.code, shown.text)
	}
	if shown := b.post("/intents/cancel", url.Values{"all": {"1"}, "reference": {"eff_0"}}); shown.code != http.StatusUnprocessableEntity || !strings.Contains(shown.text, "older ones were not looked at") {
		t.Errorf("where none matches: %d\n%s", shown.code, shown.text)
	}
}

func TestAChangeOfManyRowsTakesOnlyWhatAFormMayHold(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	for _, rows := range []string{"!", "gA", strings.Repeat("AQ", 8000)} {
		if got := b.post("/intents/cancel", url.Values{"rows": {rows}, "reason": {"because"}}); got.code != http.StatusBadRequest {
			t.Errorf("%.10s: %d, want 400", rows, got.code)
		}
	}
	if got := b.get("/changes/none"); got.code != http.StatusNotFound {
		t.Errorf("a change that is not there: %d", got.code)
	}
	// A filter of intents names no incidents.
	if got := b.post("/incidents/acknowledge", url.Values{"all": {"1"}}); got.code != http.StatusUnprocessableEntity {
		t.Errorf("all intents as incidents: %d, want 422", got.code)
	}
}

// A second effect is accepted for the tool alone whose name is typed, by the operator whom the history names.
func TestASecondEffectTakesTheNameOfItsTool(t *testing.T) {
	t.Parallel()
	for path, outcome := range map[string]string{"/intents/retry-may-duplicate": "retried_may_duplicate", "/intents/retry-new-key-may-duplicate": "retried_new_key_may_duplicate"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			b := newBrowser(t, asTokens(t))
			drainertest.Exec(t, b.db, `DELETE FROM outbox.queue WHERE intent_id IN (3, 4)`)
			drainertest.Exec(t, b.db, `UPDATE outbox.intent SET tool_name = 'sim/other' WHERE id = 4`)
			drainertest.Exec(t, b.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, error)
				SELECT n, 1, 'w', now(), 'ambiguous', 'unknown', 'timeout' FROM generate_series(3, 4) n`)
			moved := func() int {
				return drainertest.Value[int](t, b.db, `SELECT count(*)::int FROM outbox.attempt WHERE operator IS NOT NULL`)
			}
			b.login("alice-has-a-long-token-of-her-own")
			if got := b.post("/intents/retry", url.Values{"of": {"3"}, "reason": {"because"}}); moved() != 0 || !strings.Contains(got.text, "accept a second effect") {
				t.Errorf("without the name: %s", got.text)
			}
			shown := b.post(path, url.Values{"of": {"3"}})
			if shown.code != http.StatusOK || !strings.Contains(shown.text, "1 would change") || !strings.Contains(shown.text, "may happen twice") || !strings.Contains(shown.text, `name="typed" required`) {
				t.Errorf("the first step: %d\n%s", shown.code, shown.text)
			}
			if got := b.post(path, url.Values{"of": {"3", "4"}}); got.code != http.StatusUnprocessableEntity || !strings.Contains(got.text, "several tools") {
				t.Errorf("of two tools: %d\n%s", got.code, got.text)
			}
			for _, typed := range [][]string{nil, {""}, {"sim"}, {"SIM/ACT"}, {"sim/other"}} {
				got := b.post(path, url.Values{"of": {"3"}, "typed": typed, "reason": {"twice is better"}})
				if moved() != 0 || !strings.Contains(got.text, "0 changed, 1 refused") || !strings.Contains(got.text, "only the tool that you name") {
					t.Errorf("%q: %d\n%s", typed, got.code, got.text)
				}
			}
			named := url.Values{"of": {"3", "4"}, "typed": {" sim/act "}, "reason": {"twice is better"}}
			b.login("bob-has-a-long-token-of-his-own-too")
			if got := b.post(path, named); got.code != http.StatusForbidden || moved() != 0 {
				t.Errorf("a viewer: %d", got.code)
			}
			b.login("alice-has-a-long-token-of-her-own")
			if got := b.post(path, named); !strings.Contains(got.text, "1 changed, 1 refused") {
				t.Errorf("the second step: %d\n%s", got.code, got.text)
			}
			kept := drainertest.Column[string](t, b.db, `SELECT concat_ws(' ', intent_id, outcome, operator, reason) FROM outbox.attempt WHERE operator IS NOT NULL`)
			if strings.Join(kept, "\n") != "3 "+outcome+" operator:alice twice is better" {
				t.Errorf("the history has %q", kept)
			}
		})
	}
}

// A run may have more steps than a page reads: the first step says that all of them are meant.
func TestARunOfMoreStepsThanAPageReadsIsSaidToBeMeantAsAWhole(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	b.manyOf("long")
	if shown := b.post("/runs/cancel", url.Values{"of": {"long"}}); !strings.Contains(shown.text, "steps after the first 500") {
		t.Errorf("%d\n%s", shown.code, shown.text)
	}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.saga (agent_run_id) VALUES ('long')`)
	if shown := b.post("/runs/cancel", url.Values{"of": {"long"}}); !strings.Contains(shown.text, "0 would change") {
		t.Errorf("of a run that is rolled back: %d\n%s", shown.code, shown.text)
	}
}

func TestASecondEffectOfThousandsTakesTheNameOfTheirTool(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	filter := b.manyOf("long")
	drainertest.Exec(t, b.db, `DELETE FROM outbox.queue WHERE agent_run_id = 'long'`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status)
		SELECT id, 1, 'w', now(), 'ambiguous', 'unknown' FROM outbox.intent WHERE agent_run_id = 'long'`)
	filter.Set("status", "unknown")
	shown := b.post("/intents/retry-may-duplicate", filter)
	rows := packedRows.FindStringSubmatch(shown.text)
	if rows == nil {
		t.Fatalf("the first step: %d\n%s", shown.code, shown.text)
	}
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for typed, changed := range map[string]int{"sim/acts": 0, "sim/act": 1200} {
		begun := b.post("/intents/retry-may-duplicate", url.Values{"rows": {rows[1]}, "typed": {typed}, "reason": {"because"}})
		if ended := b.follow(begun.header.Get("Location")); ended.Changed != changed || ended.Changed+ended.Refused != 1200 || ended.Stopped != "" {
			t.Errorf("%s: it ended as %+v", typed, ended)
		}
	}
}

func TestAPayloadIsShownToAnOperatorWithAReasonAndRecorded(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	drainertest.Exec(t, b.db, `UPDATE outbox.attempt SET response = '{"exact": 12345678901234567890.10, "turn": "\u202e<b>", "cards": [{"number": "4111-secret"}]}' WHERE intent_id = 2`)
	b.login("bob-has-a-long-token-of-his-own-too")
	if got := b.post("/intents/2/reveal", url.Values{"reason": {"curious"}}); got.code != http.StatusForbidden || strings.Contains(got.text, "secret") {
		t.Errorf("a viewer: %d", got.code)
	}
	b.login("alice-has-a-long-token-of-her-own")
	if got := b.get("/intents/2/reveal?reason=a+link"); got.code < 400 {
		t.Errorf("a link: %d", got.code)
	}
	if got := b.post("/intents/2/reveal", nil); got.code != http.StatusOK || strings.Contains(got.text, "secret") || !strings.Contains(got.text, "recorded with your name") {
		t.Errorf("the first step: %d\n%s", got.code, got.text)
	}
	if got := b.post("/intents/2/reveal", url.Values{"reason": {" "}}); got.code != http.StatusUnprocessableEntity {
		t.Errorf("without a reason: %d", got.code)
	}
	if n := drainertest.Value[int](t, b.db, `SELECT count(*)::int FROM outbox.operation`); n != 0 {
		t.Errorf("%d reveals are recorded, and nothing was shown", n)
	}
	shown := b.post("/intents/2/reveal", url.Values{"reason": {"the customer complained"}})
	if strings.Contains(shown.text, "data-renews") || !strings.Contains(b.get("/intents/2").text, "data-renews") {
		t.Error("a page renews itself if, and only if, its address shows it again")
	}
	for _, part := range []string{"12345678901234567890.10", `\u202e&lt;b&gt;`, "4111-secret"} {
		if !strings.Contains(shown.text, part) {
			t.Errorf("%s is not shown:\n%s", part, shown.text)
		}
	}
	if kept := drainertest.Value[string](t, b.db, `SELECT action || ' ' || agent_run_id || ' ' || operator || ': ' || reason FROM outbox.operation`); kept != "reveal trip 1/a operator:alice: intent 2: the customer complained" {
		t.Errorf("recorded is %q", kept)
	}
	if got := b.post("/intents/99/reveal", url.Values{"reason": {"because"}}); got.code != http.StatusNotFound {
		t.Errorf("an intent that is not there: %d", got.code)
	}
}

func TestWhatIsRedactedIsNeverShown(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	var redactions []console.Redaction
	for _, path := range []string{".card", ".cards[].number", ".*.token"} {
		redaction, err := console.ParseRedaction(path)
		if err != nil {
			t.Fatal(err)
		}
		redactions = append(redactions, redaction)
	}
	pool, err := pgpool.Open(t.Context(), pgpool.At(b.db.Config().ConnString()), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	pages, err := console.New(console.Options{
		Pool: pool, Access: asTokens(t), Redactions: redactions,
		PolicyOf: func(_, operation string) (policy dispatch.Policy, known bool) {
			if operation == "strict" {
				policy.Payload = refuses{}
			}
			return policy, true
		},
		Preview: func(_ context.Context, request dispatch.Request) (string, error) {
			if request.Tuple.ToolName == "sim/broken" {
				return "", errors.New("no such tool")
			}
			return fmt.Sprintf("POST /act\nKey: %s\n\n<b>pan=%s\u202e", request.IdempotencyKey, request.Payload), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.at = httptest.NewServer(pages)
	t.Cleanup(b.at.Close)
	drainertest.Exec(t, b.db, `UPDATE outbox.attempt SET response = '{"cards": [{"number": "4111-secret", "name": "Ada"}], "a": {"token": "t-secret"}}' WHERE intent_id = 2`)
	b.login("alice-has-a-long-token-of-her-own")
	key := drainertest.Value[string](t, b.db, `SELECT idempotency_key FROM outbox.status WHERE intent_id = 2`)
	shown := b.post("/intents/2/reveal", url.Values{"reason": {"because"}})
	if strings.Contains(shown.text, "secret") || !strings.Contains(shown.text, "Ada") || strings.Count(shown.text, "[redacted]") != 4 || !strings.Contains(shown.text, ".cards[].number") {
		t.Errorf("shown is:\n%s", shown.text)
	}
	if request := "POST /act\nKey: " + key; !strings.Contains(shown.text, request) || !strings.Contains(html.UnescapeString(shown.text), `<b>pan={"card":"[redacted]"}\u202e`) || strings.Contains(shown.text, "<b>pan") {
		t.Errorf("the request is not shown as text:\n%s", shown.text)
	}
	if hidden := b.get("/intents/2"); strings.Contains(hidden.text, "POST /act") {
		t.Error("the request is shown without a reason")
	}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', 's', 'sim/broken', 'b', '{}')`)
	if broken := b.post("/intents/5/reveal", url.Values{"reason": {"because"}}); !strings.Contains(broken.text, "None: no such tool") {
		t.Errorf("that there is no request is not told:\n%s", broken.text)
	}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', 's2', 'sim/strict', 'b', '{}')`)
	if refused := b.post("/intents/6/reveal", url.Values{"reason": {"because"}}); !strings.Contains(refused.text, "None: the payload violates payload_schema: #/required: sum") || strings.Contains(refused.text, "POST /act") {
		t.Errorf("a request that is never sent is shown:\n%s", refused.text)
	}
	for _, path := range []string{"", "card", ".", ".a..b", ".a."} {
		if _, err := console.ParseRedaction(path); err == nil {
			t.Errorf("%q was taken for a path", path)
		}
	}
}

type refuses struct{ dispatch.PayloadSchema }

func (refuses) Violation(json.RawMessage) *dispatch.Problem {
	return &dispatch.Problem{Detail: "#/required: sum"}
}
