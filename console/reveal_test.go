package console_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

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
	pages, err := console.New(console.Options{Pool: pool, Access: asTokens(t), Redactions: redactions})
	if err != nil {
		t.Fatal(err)
	}
	b.at = httptest.NewServer(pages)
	t.Cleanup(b.at.Close)
	drainertest.Exec(t, b.db, `UPDATE outbox.attempt SET response = '{"cards": [{"number": "4111-secret", "name": "Ada"}], "a": {"token": "t-secret"}}' WHERE intent_id = 2`)
	b.login("alice-has-a-long-token-of-her-own")
	shown := b.post("/intents/2/reveal", url.Values{"reason": {"because"}})
	if strings.Contains(shown.text, "secret") || !strings.Contains(shown.text, "Ada") || strings.Count(shown.text, "[redacted]") != 3 || !strings.Contains(shown.text, ".cards[].number") {
		t.Errorf("shown is:\n%s", shown.text)
	}
	for _, path := range []string{"", "card", ".", ".a..b", ".a."} {
		if _, err := console.ParseRedaction(path); err == nil {
			t.Errorf("%q was taken for a path", path)
		}
	}
}
