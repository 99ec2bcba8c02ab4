// Package console_test looks at the console as people do: with a browser, a keyboard, or a
// screen reader, on a desk and on a telephone.
package console_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

//go:embed testdata/seed.sql
var seed string

const (
	aliceToken = "alice-has-a-long-token-of-her-own"
	bobToken   = "bob-has-a-long-token-of-his-own-too"
	people     = "alice operator " + aliceToken + "\nbob viewer " + bobToken
)

// A run and a step of it, of the seed.
const (
	order   = "/runs/order-assistant%2F2026-11-25%2F7731"
	billing = "/runs/billing-agent-3f0c2b1e"
)

var errNoBrowser = errors.New("there is no chromium to test with; install it")

// shared is one browser for all tests; each has a window of its own, with its own cookies.
var shared = sync.OnceValues(func() (context.Context, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		folder, err := os.MkdirTemp("", "drainer-browser-")
		if err != nil {
			return nil, err
		}
		// Its sandbox needs rights that containers withhold; it sees pages of these tests alone.
		started, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.UserDataDir(folder), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WSURLReadTimeout(drainertest.Patience))...)
		browser, cancel := chromedp.NewContext(started)
		drainertest.AtEnd(func() { cancel(); stop(); os.RemoveAll(folder) })
		if err := chromedp.Do(browser); err != nil {
			return nil, fmt.Errorf("start %s: %w", path, err)
		}
		return browser, nil
	}
	return nil, errNoBrowser
})

// still keeps pages from renewing themselves, which would take from a slow visitor what it is about
// to click or has focused: a test renews them by its own call of renews. The page of a long change stays live: it is only watched.
const still = `if (!location.pathname.startsWith("/changes/")) window.setInterval = (renews) => { window.renews = renews; return 0; }`

// visitor is a person at a console over the seed.
type visitor struct {
	t  *testing.T
	at *httptest.Server
	db *pgxpool.Pool

	window context.Context
	still  page.ScriptIdentifier

	mu       sync.Mutex
	problems []string // what the browser said, such as that it kept a script from running
}

func newVisitor(t *testing.T) *visitor {
	t.Helper()
	browser, err := shared()
	if errors.Is(err, errNoBrowser) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	databaseURL := drainertest.Database(t)
	v := &visitor{t: t, db: drainertest.Connect(t, databaseURL)}
	drainertest.Exec(t, v.db, seed)
	pool, err := pgpool.Open(t.Context(), pgpool.At(databaseURL), 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	access, err := console.Tokens([]byte(people), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := console.New(console.Options{
		Pool: pool, Access: access, StatementTimeout: drainertest.Patience, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Tools: func() []console.Tool {
			return []console.Tool{
				{Name: "payments/charge", Class: "key_idempotent", KeyTTL: "24h", MaxAttempts: 8, Timeout: "30s", Undo: "payments/refund"},
				{Name: "tickets/open_with_attachments_and_watchers", Class: "non_idempotent", MaxAttempts: 3, Timeout: "10s", Undo: "missing", Missing: []string{"lookup", "compensate_with"}},
			}
		},
		Doctor: func(context.Context) []doctor.Finding {
			return []doctor.Finding{
				{Check: "schema", Verdict: doctor.OK, Seen: "version 8, as this program needs"},
				{Check: "autovacuum", Verdict: doctor.Warning, Seen: "it is off for the table outbox.queue", Cure: "ALTER TABLE outbox.queue RESET (autovacuum_enabled)"},
				{Check: "lanes", Verdict: doctor.Problem, Seen: "no worker serves 200 rows of mail", Cure: "start drainer run with a configuration that has it"},
				{Check: "pooler", Verdict: doctor.NotChecked, Seen: "the database is reached directly"},
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	v.at = httptest.NewServer(pages)
	t.Cleanup(v.at.Close)
	var leave context.CancelFunc
	v.window, leave = chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(leave)
	if err := chromedp.Do(v.window); err != nil { // the context that opens a tab closes it
		t.Fatal(err)
	}
	v.do(chromedp.EmulateViewport(1440, 900))
	added, err := chromedp.Call(v.window, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: still})
	if err != nil {
		t.Fatal(err)
	}
	v.still = added.Identifier
	if _, err := chromedp.Call(v.window, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	err = chromedp.Listen(v.window, func(event any) {
		if said, is := event.(*log.EventEntryAdded); is && said.Entry.Source != log.EntrySourceNetwork {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.problems = append(v.problems, said.Entry.Text)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// said returns the complaints of the browser since the last call.
func (v *visitor) said() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	said := v.problems
	v.problems = nil
	return said
}

func (v *visitor) do(steps ...chromedp.Action[chromedp.Void]) {
	v.t.Helper()
	window, cancel := context.WithTimeout(v.window, drainertest.Patience)
	defer cancel()
	if err := chromedp.Do(window, steps...); err != nil {
		v.t.Fatal(err)
	}
}

// lands runs what leads to another page, and returns that page's status.
func (v *visitor) lands(steps ...chromedp.Action[chromedp.Void]) int64 {
	v.t.Helper()
	window, cancel := context.WithTimeout(v.window, drainertest.Patience)
	defer cancel()
	response, err := chromedp.RunResponse(window, steps...)
	if err != nil {
		v.t.Fatalf("%v at %s", err, v.path())
	}
	return response.Status
}

func (v *visitor) open(path string) int64 {
	v.t.Helper()
	return v.lands(chromedp.Navigate(v.at.URL + path))
}

func (v *visitor) click(selector string) int64 {
	v.t.Helper()
	return v.lands(chromedp.Click(chromedp.CSS(selector)))
}

func (v *visitor) write(selector, text string) {
	v.t.Helper()
	v.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// login begins at a page and so leads back to it.
func (v *visitor) login(token, path string) {
	v.t.Helper()
	if status := v.open(path); status != http.StatusUnauthorized {
		v.t.Fatalf("before the login: %d", status)
	}
	v.write("input[name=token]", token)
	if status := v.click("button"); status != http.StatusOK {
		v.t.Fatalf("after the login: %d", status)
	}
}

// path is where the visitor is.
func (v *visitor) path() string {
	v.t.Helper()
	at, err := chromedp.Run(v.window, chromedp.Location())
	if err != nil {
		v.t.Fatal(err)
	}
	return strings.TrimPrefix(at, v.at.URL)
}

// reads is the text of what a selector finds, as it is seen.
func (v *visitor) reads(selector string) string {
	v.t.Helper()
	return evaluate[string](v, fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.innerText).join("\n")`, selector))
}

func (v *visitor) wantText(selector string, parts ...string) {
	v.t.Helper()
	v.do(chromedp.WaitReady(chromedp.CSS(selector)))
	text := v.reads(selector)
	for _, part := range parts {
		if !strings.Contains(text, part) {
			v.t.Errorf("%s: %s lacks %q:\n%s", v.path(), selector, part, text)
		}
	}
}

func evaluate[T any](v *visitor, script string) T {
	v.t.Helper()
	window, cancel := context.WithTimeout(v.window, drainertest.Patience)
	defer cancel()
	value, err := chromedp.Run(window, chromedp.Evaluate[T](script))
	if err != nil {
		v.t.Fatalf("%s: %v", script, err)
	}
	return value
}

func value[T any](v *visitor, sql string, args ...any) T {
	v.t.Helper()
	return drainertest.Value[T](v.t, v.db, sql, args...)
}

// prefers has the browser ask for a scheme of colours.
func (v *visitor) prefers(scheme string) {
	v.t.Helper()
	_, err := chromedp.Call(v.window, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		v.t.Fatal(err)
	}
}

// everyPage has each kind of page, with rows and without.
var everyPage = []string{
	"/", "/runs", order, billing, "/intents", "/intents?dead=1", "/intents?status=cancelled", "/intents/2", "/intents/9", "/incidents", "/incidents?kind=first_replay",
	"/sagas", "/providers", "/providers/mail", "/providers/shipping", "/workers", "/tenants", "/operations", "/doctor", "/config", "/search?q=customer", "/search?q=newsletter", "/nowhere",
}

// onEveryPage checks those, and the pages that only a form leads to.
func (v *visitor) onEveryPage(check func(at string)) {
	v.t.Helper()
	for _, path := range everyPage {
		v.open(path)
		check(path)
	}
	v.failedImport(501)
	drainertest.Exec(v.t, v.db, `SELECT outbox.enqueue('import', 'waits', 'shipping/book', 'parcel', '{}')`)
	for _, change := range []struct{ path, mark, button string }{
		{"/intents/9", "", "button[formaction='/intents/retry-may-duplicate']"},
		{"/intents/2", "", "form[action$='/reveal'] button"},
		{"/intents?status=failed&provider=tickets", "input[value='12']", "button[formaction='/intents/retry']"},
		{"/intents?run=import", "input[name=all]", "button[formaction='/intents/retry']"},
	} {
		v.open(change.path)
		if change.mark != "" {
			v.do(chromedp.Click(chromedp.CSS(change.mark)))
		}
		v.click(change.button)
		check(change.button + " of " + change.path)
		if evaluate[bool](v, `document.querySelector("input[name=typed]") !== null`) {
			v.write("input[name=typed]", "payments/charge")
		}
		v.write("input[name=reason]", "the vendor has mended it")
		v.click(".confirm button")
		check(v.path() + " after " + change.button)
	}
}
