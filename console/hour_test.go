package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestAProviderHasItsLastHourAndItsBreakersHistory(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	for _, path := range []string{"/", "/providers/sim"} {
		if got := b.get(path); !strings.Contains(got.text, "there are no charts") {
			t.Errorf("%s before a minute was written: %d\n%s", path, got.code, got.text)
		}
	}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.minute (at, provider, completed, busy, took, oldest) VALUES
		(date_trunc('minute', now()) - interval '2 minutes', 'sim', 1200, 30, '{0,1194,0,36}', 7),
		(date_trunc('minute', now()) - interval '2 minutes', 'other', 5, 0, '{5}', 90)`)
	for range 30 {
		drainertest.Exec(t, b.db, `UPDATE outbox.provider SET state = 'open', reason = 'failure_rate' WHERE name = 'sim'`)
		drainertest.Exec(t, b.db, `UPDATE outbox.provider SET state = 'closed', reason = NULL WHERE name = 'sim'`)
	}
	var kept int
	if err := b.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.breaker_change`).Scan(&kept); err != nil || kept != 50 {
		t.Errorf("%d changes are kept, want 50 (%v)", kept, err)
	}
	for path, want := range map[string][]string{
		"/":              {"1,235 in the last hour", "1,205 in the last hour", "at most 90 s"},
		"/providers/sim": {"1,230 in the last hour", "at most 7.0 s", "completed: 1,200", "20.5", "<dd>2 ms", "<dd>8 ms", "failure_rate", "shut"},
	} {
		got := b.get(path)
		for _, text := range want {
			if !strings.Contains(got.text, text) {
				t.Errorf("%s lacks %q:\n%s", path, text, got.text)
			}
		}
	}
	if got := b.get("/providers/none"); got.code != http.StatusNotFound {
		t.Errorf("an unknown provider: %d", got.code)
	}
}
