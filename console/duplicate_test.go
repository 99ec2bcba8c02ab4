package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// A second effect is accepted for the tool alone whose name is typed, by the operator whom the history names.
func TestASecondEffectTakesTheNameOfItsTool(t *testing.T) {
	t.Parallel()
	const path = "/intents/retry-may-duplicate"
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
	if strings.Join(kept, "\n") != "3 retried_may_duplicate operator:alice twice is better" {
		t.Errorf("the history has %q", kept)
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
