package postgres_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
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

// proxy stands between the adapter and a real server.
type proxy struct {
	t        *testing.T
	server   string
	listener net.Listener
	url      string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
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
	p := &proxy{t: t, server: u.Host, conns: map[net.Conn]struct{}{}}
	p.listen("127.0.0.1:0")
	u.Host = p.listener.Addr().String()
	p.url = u.String()
	t.Cleanup(p.cut)
	return p
}

func (p *proxy) listen(address string) {
	p.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listener = listener
	p.mu.Unlock()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
}

// cut closes all connections and answers none.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener.Close()
	for conn := range p.conns {
		conn.Close()
	}
}

// mend answers again.
func (p *proxy) mend() {
	p.listen(p.listener.Addr().String())
}

func (p *proxy) intercept(onUp func(*session, []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onUp = onUp
}

// limited cuts sessions after as many bytes as next says.
func (p *proxy) limited(next func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = next
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	s := &session{client: client, server: server}
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	if p.limit != nil {
		s.left, s.limited = p.limit(), true
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(s, client, server, true) })
	both.Go(func() { p.pump(s, server, client, false) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
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

// take says how much of the bytes is within the session's limit.
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

// The ways to receive a request that holds mark. What else goes through, like
// the asking of an idle connection whether it lives, is left alone.

// swallow passes it on to the server and drops the answer.
func swallow(mark string) func(*session, []byte) bool {
	return func(s *session, raw []byte) bool {
		if bytes.Contains(raw, []byte(mark)) {
			s.silence()
		}
		return true
	}
}

// hangUpAfter passes it on to the server and hangs up on both.
func hangUpAfter(mark string) func(*session, []byte) bool {
	return func(s *session, raw []byte) bool {
		if !bytes.Contains(raw, []byte(mark)) {
			return true
		}
		s.silence()
		_, _ = s.server.Write(raw)
		_ = s.server.(*net.TCPConn).CloseWrite()
		// The server closes once it has dealt with what it was sent.
		_, _ = io.Copy(io.Discard, s.server)
		return false
	}
}

// hangUpBefore keeps it from the server.
func hangUpBefore(mark string) func(*session, []byte) bool {
	return func(_ *session, raw []byte) bool { return !bytes.Contains(raw, []byte(mark)) }
}

// babble answers with what is no message of the protocol.
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
