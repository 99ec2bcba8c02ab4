package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

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
	r.execute(sql(t, "inbox.sql"))
	r.execute("CREATE SCHEMA shop; CREATE TABLE shop.deed (key text NOT NULL, payload jsonb NOT NULL)")
	for _, sql := range setup {
		r.execute(sql)
	}
	return r
}

func (r recipient) execute(sql string, args ...any) {
	r.t.Helper()
	drainertest.Exec(r.t, r, sql, args...)
}

// function creates shop.act, with body in PL/pgSQL.
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
	return drainertest.Value[int](r.t, r, "SELECT count(*) FROM "+table)
}

// awaitWaiting returns the backend that waits for a lock of another backend.
func (r recipient) awaitWaiting() (pid int) {
	r.t.Helper()
	drainertest.Eventually(r.t, "a backend waits for a lock", func() bool {
		pid = drainertest.Value[int](r.t, r, `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'drainer'`)
		return pid != 0
	})
	return pid
}

func insecure(t *testing.T, databaseURL string) string {
	t.Helper()
	return changed(t, databaseURL, func(u *url.URL) {
		query := u.Query()
		query.Set("sslmode", "disable")
		u.RawQuery = query.Encode()
	})
}

// sql returns the text of a file that users copy.
func sql(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
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
	return dispatchtest.Build(t, postgres.New, spec)
}

func request(step, payload string) dispatch.Request {
	request := dispatchtest.Intent("shop/order", step, payload)
	request.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	return request
}

// forThis replaces %s by the name of the database.
func forThis(r recipient, sql string) string {
	name := ""
	changed(r.t, r.url, func(u *url.URL) { name = strings.TrimPrefix(u.Path, "/") })
	return strings.ReplaceAll(sql, "%s", name)
}

// rows returns the number of rows in the inbox, or -1 without an inbox. The session that reads it began before the
// setup of a test.
func (r recipient) rows() int {
	r.t.Helper()
	return drainertest.Value[int](r.t, r, `SELECT CASE WHEN to_regclass('inbox.message') IS NULL THEN -1
		ELSE (xpath('/row/c/text()', query_to_xml('SELECT count(*) AS c FROM inbox.message', false, true, '')))[1]::text::int END`)
}

// cutShort dispatches while it holds a lock, cuts the dispatch when it waits for that lock, and returns when its
// backend runs nothing any more.
func (r recipient) cutShort(adapter dispatch.Adapter, lock string, cut func(pid int, cancel context.CancelFunc)) (got dispatch.Result, release func()) {
	r.t.Helper()
	holder, err := r.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	release = func() { _ = holder.Rollback(context.Background()) }
	r.t.Cleanup(release)
	drainertest.Exec(r.t, holder, lock)
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	result := make(chan dispatch.Result, 1)
	go func() { result <- adapter.Dispatch(ctx, request("step-1", `{}`)) }()
	pid := r.awaitWaiting()
	cutAt := time.Now()
	cut(pid, cancel)
	got = <-result
	if took := time.Since(cutAt); took > drainertest.Patience/4 {
		r.t.Errorf("it took %s to return", took)
	}
	r.awaitGone(pid)
	return got, release
}

// awaitGone waits until a backend runs nothing any more.
func (r recipient) awaitGone(pid int) {
	r.t.Helper()
	drainertest.Eventually(r.t, "the backend runs nothing", func() bool {
		return drainertest.Value[bool](r.t, r, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state <> 'idle')", pid)
	})
}

// awaitIdle waits until no backend of an adapter is at work.
func (r recipient) awaitIdle() {
	r.t.Helper()
	drainertest.Eventually(r.t, "no backend is at work", func() bool {
		return drainertest.Value[bool](r.t, r, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'drainer' AND state <> 'idle')`)
	})
}

// times returns how often the query returns each name.
func (r recipient) times(sql string) map[string]int {
	r.t.Helper()
	times := map[string]int{}
	for _, name := range drainertest.Column[string](r.t, r, sql) {
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

// proxy is between the adapter and a real server.
type proxy struct {
	*dispatchtest.Gate
	url string

	mu    sync.Mutex
	onUp  func(session *session, raw []byte) bool // false ends the session; nil passes all
	limit func() int64                            // bytes that a new session may carry, both ways; nil is no limit
}

// session is one connection through the proxy.
type session struct {
	client, server net.Conn
	mute           bool // no answer is passed on any more
	mu             sync.Mutex
	left           int64
	limited        bool
}

func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	p.Gate = dispatchtest.OpenGate(t, u.Host, p.carry)
	u.Host = p.Address
	p.url = u.String()
	return p
}

func (p *proxy) intercept(onUp func(*session, []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onUp = onUp
}

// limited cuts each new session after the number of bytes that next returns.
func (p *proxy) limited(next func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = next
}

func (p *proxy) carry(client, server net.Conn) {
	s := &session{client: client, server: server}
	p.mu.Lock()
	if p.limit != nil {
		s.left, s.limited = p.limit(), true
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(s, client, server, true) })
	both.Go(func() { p.pump(s, server, client, false) })
	both.Wait()
}

func (p *proxy) pump(s *session, from, to net.Conn, up bool) {
	defer s.client.Close()
	defer s.server.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		raw, whole := s.take(buffer[:n])
		if up {
			p.mu.Lock()
			onUp := p.onUp
			p.mu.Unlock()
			if onUp != nil && !onUp(s, raw) {
				return
			}
		}
		if up || !s.isMute() {
			if _, err := to.Write(raw); err != nil {
				return
			}
		}
		if err != nil || !whole {
			return
		}
	}
}

// take returns the bytes that are within the session's limit, and whether the session goes on.
func (s *session) take(raw []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.limited {
		return raw, true
	}
	if int64(len(raw)) > s.left {
		raw = raw[:s.left]
	}
	s.left -= int64(len(raw))
	return raw, s.left > 0
}

func (s *session) isMute() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mute
}

func (s *session) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute = true
}

// The functions below are ways to handle a request that contains mark. All other requests, such as the check of an
// idle connection, pass unchanged.

// swallow passes the request on to the server and drops the answer.
func swallow(mark string) func(*session, []byte) bool {
	return func(s *session, raw []byte) bool {
		if bytes.Contains(raw, []byte(mark)) {
			s.silence()
		}
		return true
	}
}

// hangUpAfter passes the request on to the server and hangs up on both sides.
func hangUpAfter(mark string) func(*session, []byte) bool {
	return func(s *session, raw []byte) bool {
		if !bytes.Contains(raw, []byte(mark)) {
			return true
		}
		s.silence()
		_, _ = s.server.Write(raw)
		_ = s.server.(*net.TCPConn).CloseWrite()
		// The server closes the connection when it has handled all that it got.
		_, _ = io.Copy(io.Discard, s.server)
		return false
	}
}

// hangUpBefore ends the session before the request reaches the server.
func hangUpBefore(mark string) func(*session, []byte) bool {
	return func(_ *session, raw []byte) bool { return !bytes.Contains(raw, []byte(mark)) }
}

// babble passes the request on, and answers with text that is no message of the protocol.
func babble(mark string) func(*session, []byte) bool {
	return func(s *session, raw []byte) bool {
		if !bytes.Contains(raw, []byte(mark)) {
			return true
		}
		s.silence()
		_, _ = s.server.Write(raw)
		_, _ = io.WriteString(s.client, "SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n\r\n")
		return false
	}
}
