package postgres_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/postgres"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

const (
	intoInbox    = "inbox: inbox.message"
	callFunction = "function: shop.act"
)

// recipient is a database with an inbox, and a schema for functions.
type recipient struct {
	*pgxpool.Pool
	t   *testing.T
	url string
}

func newRecipient(t *testing.T, setup ...string) recipient {
	t.Helper()
	r := recipient{t: t, url: insecure(t, drainertest.EmptyDatabase(t))}
	r.Pool = drainertest.Connect(t, r.url)
	r.execute(inboxSQL(t))
	r.execute("CREATE SCHEMA shop; CREATE TABLE shop.deed (key text NOT NULL, payload jsonb NOT NULL)")
	for _, sql := range setup {
		r.execute(sql)
	}
	return r
}

func (r recipient) execute(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// function makes shop.act, with body in PL/pgSQL.
func (r recipient) function(body string) {
	r.t.Helper()
	r.execute(functionSQL(body))
}

func functionSQL(body string) string {
	return `CREATE OR REPLACE FUNCTION shop.act(payload jsonb, key text, agent_run_id text, step_id text, tool_name text, business_scope text)
		RETURNS jsonb LANGUAGE plpgsql AS $act$ ` + body + ` $act$`
}

func (r recipient) count(table string) int {
	r.t.Helper()
	var count int
	if err := r.QueryRow(r.t.Context(), "SELECT count(*) FROM "+table).Scan(&count); err != nil {
		r.t.Fatal(err)
	}
	return count
}

// awaitWaiting returns the backend that waits for a lock of another.
func (r recipient) awaitWaiting() (pid int) {
	r.t.Helper()
	for {
		err := r.QueryRow(r.t.Context(), `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'drainer'`).Scan(&pid)
		if err != nil {
			r.t.Fatal(err)
		}
		if pid != 0 {
			return pid
		}
	}
}

func insecure(t *testing.T, databaseURL string) string {
	t.Helper()
	return changed(t, databaseURL, func(u *url.URL) {
		query := u.Query()
		query.Set("sslmode", "disable")
		u.RawQuery = query.Encode()
	})
}

func inboxSQL(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("inbox.sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func with(databaseURL, option string) string { return databaseURL + "&" + option }

func spec(databaseURL, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "shop",
		Timeout:  30 * time.Second,
		Settings: dispatchtest.Block(fmt.Sprintf("url: %q", databaseURL)),
		Tools:    map[string]dispatch.ToolSpec{"order": {Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block(tool)}},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *postgres.Adapter {
	t.Helper()
	adapter, err := postgres.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := adapter.Close(); err != nil {
			t.Error(err)
		}
	})
	return adapter
}

func request(step, payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: "run-001", StepID: step, ToolName: "shop/order", BusinessScope: "invoice_442"}
	return dispatch.Request{
		Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1,
		Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
}

func expect(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("got %s %q, want %s %q", got.Outcome, got.ErrorClass, outcome, class)
	}
}

// forThis puts the database's own name for %s.
func forThis(r recipient, sql string) string {
	name := ""
	changed(r.t, r.url, func(u *url.URL) { name = strings.TrimPrefix(u.Path, "/") })
	return strings.ReplaceAll(sql, "%s", name)
}

// rows is the number of rows in the inbox, or -1 without one. It is read by a
// session that began before the setup of a test.
func (r recipient) rows() int {
	r.t.Helper()
	var count int
	err := r.QueryRow(r.t.Context(), `SELECT CASE WHEN to_regclass('inbox.message') IS NULL THEN -1
		ELSE (xpath('/row/c/text()', query_to_xml('SELECT count(*) AS c FROM inbox.message', false, true, '')))[1]::text::int END`).Scan(&count)
	if err != nil {
		r.t.Fatal(err)
	}
	return count
}

// awaitGone waits until a backend runs nothing any more.
func (r recipient) awaitGone(pid int) {
	r.t.Helper()
	for active := true; active; {
		err := r.QueryRow(r.t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state <> 'idle')", pid).Scan(&active)
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// awaitIdle waits until no backend of an adapter is at work.
func (r recipient) awaitIdle() {
	r.t.Helper()
	for active := true; active; {
		err := r.QueryRow(r.t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'drainer' AND state <> 'idle')`).Scan(&active)
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// times counts how often each name comes.
func (r recipient) times(sql string) map[string]int {
	r.t.Helper()
	rows, err := r.Query(r.t.Context(), sql)
	if err != nil {
		r.t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	times := map[string]int{}
	for _, name := range names {
		times[name]++
	}
	return times
}

func changed(t *testing.T, databaseURL string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}
