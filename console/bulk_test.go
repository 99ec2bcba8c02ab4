package console_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
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
