package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// Pages are read with the login that can only read, as the own login has no rights at all; changes and reveals are
// made with the own login.
func TestPagesAreReadWithTheLoginOfViewers(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	databaseURL := b.db.Config().ConnString()
	open := func(role ...string) *httptest.Server {
		options := console.Options{Access: asTokens(t)}
		var err error
		if options.Pool, err = pgpool.Open(t.Context(), pgpool.At(drainertest.Login(t, databaseURL, role...)), 2); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(options.Pool.Close)
		if options.Viewing, err = pgpool.Open(t.Context(), pgpool.At(drainertest.Login(t, databaseURL, "outbox_auditor")), 2); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(options.Viewing.Close)
		pages, err := console.New(options)
		if err != nil {
			t.Fatal(err)
		}
		at := httptest.NewServer(pages)
		t.Cleanup(at.Close)
		return at
	}
	b.at = open()
	for _, token := range []string{"bob-has-a-long-token-of-his-own-too", "alice-has-a-long-token-of-her-own"} {
		b.login(token)
		for _, path := range append(slices.Clone(everyPage), "/workers", "/operations", "/config") {
			if got := b.get(path); got.code != http.StatusOK {
				t.Errorf("%s: %d\n%s", path, got.code, got.text)
			}
		}
	}
	for _, path := range []string{"/providers/pause", "/intents/2/reveal"} {
		if got := b.post(path, url.Values{"of": {"sim"}, "reason": {"because"}}); got.code != http.StatusForbidden || !strings.Contains(got.text, "outbox_operator") {
			t.Errorf("%s was done with the login of viewers: %d\n%s", path, got.code, got.text)
		}
	}
	b.at = open("outbox_operator")
	b.login("alice-has-a-long-token-of-her-own")
	for _, path := range []string{"/providers/pause", "/intents/2/reveal"} {
		if got := b.post(path, url.Values{"of": {"sim"}, "reason": {"because"}}); got.code != http.StatusOK {
			t.Errorf("%s: %d\n%s", path, got.code, got.text)
		}
	}
	if done := drainertest.Value[int](t, b.db, `SELECT count(*)::int FROM outbox.operation`); done != 2 {
		t.Errorf("%d of 2 operations are recorded", done)
	}
}

// Every table, sequence and function of the schema that changes something is tried.
func TestTheLoginOfViewersCanOnlySelect(t *testing.T) {
	t.Parallel()
	databaseURL := drainertest.Database(t)
	viewer, err := pgx.Connect(t.Context(), drainertest.Login(t, databaseURL, "outbox_auditor"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = viewer.Close(t.Context()) })
	statements := drainertest.Column[string](t, drainertest.Connect(t, databaseURL), `
		SELECT format(said, 'outbox.' || quote_ident(c.relname), quote_ident(a.attname))
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = 1, unnest(ARRAY[
			'INSERT INTO %s DEFAULT VALUES', 'UPDATE %1$s SET %2$s = DEFAULT', 'DELETE FROM %s', 'TRUNCATE %s', 'SELECT FROM %s FOR UPDATE', 'DROP TABLE %s']) said
		WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
		UNION ALL
		SELECT format('SELECT %s(%L%s)', f.name, 'outbox.' || c.relname, f.rest)
		FROM pg_class c, (VALUES ('nextval', ''), ('setval', ', 9')) f (name, rest)
		WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'S'
		UNION ALL
		SELECT format('SELECT outbox.%I(%s)', p.proname, (SELECT string_agg('NULL::' || t::regtype, ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (t, n)))
		FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.provolatile = 'v' AND p.prorettype <> 'trigger'::regtype
		UNION ALL
		SELECT unnest(ARRAY['CREATE TABLE outbox.mine ()', 'SET ROLE outbox_operator', 'SET ROLE outbox_drainer'])`)
	if len(statements) < 150 {
		t.Fatalf("only %d statements were found", len(statements))
	}
	for _, statement := range statements {
		var refused *pgconn.PgError
		if _, err := viewer.Exec(t.Context(), statement); !errors.As(err, &refused) || refused.Code != "42501" {
			t.Errorf("%s: %v", statement, err)
		}
	}
	writes, err := doctor.Writes(t.Context(), viewer)
	if err != nil || len(writes) > 0 {
		t.Errorf("the doctor says that it may write: %v, %v", writes, err)
	}
	for _, role := range []string{"outbox_operator", "outbox_drainer", "outbox_agent"} {
		other, err := pgx.Connect(t.Context(), drainertest.Login(t, databaseURL, "outbox_auditor", role))
		if err != nil {
			t.Fatal(err)
		}
		writes, err := doctor.Writes(t.Context(), other)
		if err != nil || len(writes) == 0 {
			t.Errorf("with %s it can write, and the doctor does not see it: %v", role, err)
		}
		_ = other.Close(t.Context())
	}
}

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
		"/":              {"1,235 in the last hour", "1,205 in the last hour", "highest column: 90 s", "the oldest that was due in the minute"},
		"/providers/sim": {"1,230 in the last hour", "highest column: 7.0 s", "completed: 1,200", "20.5", "<dd>2 ms", "<dd>8 ms", "failure_rate", "shut"},
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

func TestEveryAnswerIsKeptByNoCacheAndHasThePolicy(t *testing.T) {
	t.Parallel()
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
	b := newBrowser(t, asTokens(t))
	check := func(path string, code int, headers ...string) {
		t.Helper()
		got := b.get(path, headers...)
		if got.code != code || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Security-Policy") != policy || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, want %d, with %v", path, got.code, code, got.header)
		}
	}
	check("/login", http.StatusOK)
	check("/intents", http.StatusUnauthorized)
	check("/static/console.js", http.StatusOK)
	check("/static/console.css", http.StatusOK)
	check("/static/none.css", http.StatusNotFound)
	b.login("bob-has-a-long-token-of-his-own-too")
	check("/intents", http.StatusOK)
	check("/intents", http.StatusOK, "Accept", "application/json")
	check("/intents", http.StatusNotModified, "If-None-Match", b.get("/intents").header.Get("ETag"))
	check("/intents/99", http.StatusNotFound)
	check("/nowhere", http.StatusNotFound)
	if got := b.post("/intents/retry", nil, "Sec-Fetch-Site", "cross-site"); got.code != http.StatusForbidden || got.header.Get("Content-Security-Policy") != policy || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a form of another site: %d with %v", got.code, got.header)
	}
}

func TestAPageForWhichTheDatabaseTakesMoreThanTwoSecondsIsToldToBeTooSlow(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	locked, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locked.Exec(t.Context(), `LOCK TABLE outbox.intent`); err != nil {
		t.Fatal(err)
	}
	for _, accept := range []string{"text/html", "application/json"} {
		if got := b.get("/intents", "Accept", accept); got.code != http.StatusServiceUnavailable || !strings.Contains(got.text, "Too slow") || !strings.Contains(got.text, "more than 2s") {
			t.Errorf("%s: %d\n%s", accept, got.code, got.text)
		}
	}
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.get("/intents"); got.code != http.StatusOK {
		t.Errorf("once the lock is gone: %d\n%s", got.code, got.text)
	}
}

func TestProgramsReadTheDoctorTheOperationsAndAFirstStep(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	pages, err := console.New(console.Options{Pool: b.db, Access: asTokens(t), Doctor: func(context.Context) []doctor.Finding {
		return []doctor.Finding{{Check: "schema", Verdict: doctor.Problem, Seen: "it is behind", Cure: "drainer migrate up"}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.at = httptest.NewServer(pages)
	t.Cleanup(b.at.Close)
	b.login("alice-has-a-long-token-of-her-own")
	b.post("/providers/pause", url.Values{"of": {"sim"}, "reason": {"they migrate"}})
	first := b.post("/intents/retry", url.Values{"of": {"2", "1"}}, "Accept", "application/json")
	for _, told := range []struct {
		answer

		parts []string
	}{
		{b.get("/doctor", "Accept", "application/json"), []string{`"check": "schema"`, `"verdict": "problem"`, `"seen": "it is behind"`, `"cure": "drainer migrate up"`}},
		{b.get("/operations", "Accept", "application/json"), []string{`"action": "pause"`, `"provider": "sim"`, `"operator": "operator:alice"`, `"reason": "they migrate"`}},
		{first, []string{`"changes": 1`, `"refused": 1`, `"done": false`, `"subject": "intent 2"`, `"tool": "sim/act"`, `"before": "failed"`, `"after": "pending"`, `"shown": "20`}},
	} {
		if told.code != http.StatusOK || told.header.Get("Content-Type") != "application/json" || !json.Valid([]byte(told.text)) {
			t.Errorf("%d, %s:\n%s", told.code, told.header.Get("Content-Type"), told.text)
		}
		for _, part := range told.parts {
			if !strings.Contains(told.text, part) {
				t.Errorf("it lacks %s:\n%s", part, told.text)
			}
		}
	}
	if status := drainertest.Value[string](t, b.db, `SELECT status FROM outbox.status WHERE intent_id = 2`); status != "failed" {
		t.Errorf("the first step made it %s", status)
	}
}
