package integration_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/program"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// spareConfig goes behind billingConfig, whose fallback it is to be.
const spareConfig = `  spare:
    adapter: http
    http: {base_url: %s}
    tools:
      charge:
        http: {method: POST, path: /v1/charges}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
`

func TestDrainingOnceFailsOnlyIfAShutGateLeavesDueRows(t *testing.T) {
	t.Parallel()
	const (
		paused = `UPDATE outbox.provider SET paused = true WHERE name = 'billing'`
		open   = `UPDATE outbox.provider SET state = 'open', open_until = now() + interval '1 hour' WHERE name = 'billing'`
		doubt  = `UPDATE outbox.queue SET maybe_applied = true, tries = 1, attempt = 1, first_attempt_at = now()`
		later  = `UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour'`
	)
	for name, test := range map[string]struct {
		tool     string
		setUp    []string
		fallback bool
		exit     int
		left     int
		status   string
	}{
		"nothing shut":                     {"billing/charge", nil, false, 0, 0, "billing 0 0 0 … … false closed"},
		"paused":                           {"billing/charge", []string{paused}, false, 1, 1, "billing 1 1 0 … … true closed"},
		"breaker open":                     {"billing/charge", []string{open}, false, 1, 1, "billing 1 1 0 … … false open …"},
		"paused, nothing due":              {"billing/charge", []string{paused, later}, false, 0, 1, "billing 1 0 0 … … true closed"},
		"breaker open, nothing due":        {"billing/charge", []string{open, later}, false, 0, 1, "billing 1 0 0 … … false open …"},
		"breaker open, a fallback":         {"billing/charge", []string{open}, true, 0, 0, "billing 0 0 0 … … false open …"},
		"breaker open, no fallback for it": {"billing/charge", []string{open, doubt}, true, 1, 1, "billing 1 1 0 … … false open …"},
		"a provider that no file names":    {"nobody/charge", nil, false, 0, 1, "nobody 1 1 0 … … false not configured"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, baseURL := dispatchtest.NewProvider(t, nil)
			url := drainertest.Database(t)
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			shell := program.New(t, url, "BILLING_TOKEN=t")
			text := fmt.Sprintf(billingConfig, baseURL)
			if test.fallback {
				text = strings.Replace(text, "    adapter: http\n", "    adapter: http\n    fallback: spare\n", 1) + fmt.Sprintf(spareConfig, baseURL)
			}
			config := program.WriteConfig(t, text)
			shell.Run(0, "run", "--once", "--config", config) // announces the providers
			shell.Run(0, "enqueue", "--run", "r", "--step", "s", "--tool", test.tool, "--scope", "x", "--payload", "{}")
			for _, statement := range test.setUp {
				if _, err := conn.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}

			_, stderr := shell.Run(test.exit, "run", "--once", "--config", config)
			if want := "drainer: due rows are left, because"; strings.Contains(stderr, want) != (test.exit == 1) || (test.exit == 1 && !strings.HasSuffix(stderr, "(billing 1)\n")) {
				t.Errorf("it says\n%s", stderr)
			}
			var left int
			if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM outbox.queue`).Scan(&left); err != nil {
				t.Fatal(err)
			}
			if left != test.left {
				t.Errorf("%d rows are left, want %d", left, test.left)
			}
			if stdout, _ := shell.Run(0, "status"); !hasRow(stdout, test.status) {
				t.Errorf("the status is\n%s\nwant %s", stdout, test.status)
			}
			drainertest.AssertInvariant(t, conn)
		})
	}
}

// hasRow looks for a table's row, in which a duration is any.
func hasRow(table, want string) bool {
	for row := range strings.Lines(table) {
		fields := strings.Fields(row)
		for i, field := range fields {
			if _, err := time.ParseDuration(field); err == nil && strings.HasSuffix(field, "s") {
				fields[i] = "…"
			}
		}
		if strings.Join(fields, " ") == want {
			return true
		}
	}
	return false
}
