package console_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestTheInstallationIsShownAndTheDoctorIsAskedOnce(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	if got := b.get("/doctor"); got.code != http.StatusUnauthorized {
		t.Errorf("a stranger: %d", got.code)
	}
	pool, err := pgpool.Open(t.Context(), pgpool.At(b.db.Config().ConnString()), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	asked := 0
	pages, err := console.New(console.Options{
		Pool: pool, Access: asTokens(t),
		Tools: func() []console.Tool {
			return []console.Tool{{Name: "sim/act", Class: "non_idempotent", Missing: []string{"lookup"}}}
		},
		Doctor: func(context.Context) []doctor.Finding {
			asked++
			return []doctor.Finding{{Check: "schema", Verdict: doctor.Problem, Seen: "it is behind", Cure: "drainer migrate up"}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.at = httptest.NewServer(pages)
	t.Cleanup(b.at.Close)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.worker (worker_id, providers, tools, fingerprints)
		VALUES (gen_random_uuid(), '{sim,spare}', '{sim/act}', '{aaa,ccc}'), (gen_random_uuid(), '{sim,spare}', '{sim/act}', '{bbb,ccc}')`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.operation (operator, action, provider, reason) SELECT 'operator:eve', 'pause', 'p-' || n, 'because' FROM generate_series(1, 60) n`)
	b.login("bob-has-a-long-token-of-his-own-too")
	for path, parts := range map[string][]string{
		"/doctor": {"it is behind", "drainer migrate up"}, "/config": {"sim/act", "lacks lookup", "Workers differ", "sim aaa, spare ccc", `<td class="id">bbb</td>`}, "/workers": {"sim, spare"},
		"/operations": {"p-60", "operator:eve", "/operations?below=11"}, "/operations?below=11": {"p-10"},
	} {
		for range 2 {
			got := b.get(path)
			for _, part := range parts {
				if !strings.Contains(got.text, part) {
					t.Errorf("%s (%d) lacks %q:\n%s", path, got.code, part, got.text)
				}
			}
		}
	}
	if asked != 1 {
		t.Errorf("the doctor was asked %d times", asked)
	}
}
