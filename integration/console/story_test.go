package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestAnIntentIsFoundByTheProvidersReference(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(bobToken, "/")
	v.write("#q", "ch_3PqX8v")
	v.lands(chromedp.KeyEvent("\r"))
	if at := v.path(); at != "/intents/2" {
		t.Errorf("the search led to %s", at)
	}
	v.wantText("main", "payments/charge", "ch_3PqX8v", "http_503")
}

func TestARetryTakesAReasonAndTheHistoryNamesWhoGaveIt(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/intents/10")
	v.click("button[formaction='/intents/retry']")
	v.wantText("main", "1 would change", "intent 10", "mail/send")
	if status := value[string](v, `SELECT status FROM outbox.status WHERE intent_id = 10`); status != "failed" {
		t.Fatalf("the first step made it %s", status)
	}
	v.write("input[name=reason]", "the customer corrected the address")
	v.click(".confirm button")
	v.wantText("main", "1 changed")
	v.open("/intents/10")
	v.wantText("h1", "pending")
	v.wantText("tbody", "operator:alice", "the customer corrected the address")
}

func TestARetryThatMayDuplicateTakesTheNameOfTheTool(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/intents/9")
	v.click("button[formaction='/intents/retry-may-duplicate']")
	v.wantText("main", "1 would change", "may happen twice")
	v.write("input[name=typed]", "payments/charge")
	v.write("input[name=reason]", "the customer says it never came")
	v.click(".confirm button")
	v.wantText("main", "1 changed")
	v.open("/intents/9")
	v.wantText("tbody", "retried_may_duplicate", "operator:alice", "the customer says it never came")
}

func TestARunIsRolledBack(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, billing)
	v.click("button[formaction='/runs/roll-back']")
	v.wantText("main", "intent 9", "payments/charge", "awaited first")
	v.write("input[name=reason]", "the agent invoiced the wrong company")
	v.click(".confirm button")
	v.wantText("main", "rollback begun")
	v.open(billing)
	v.wantText("main", "Rollback: begun", "operator:alice: the agent invoiced the wrong company")
	if v.reads("button[formaction='/runs/roll-back']") != "" {
		t.Error("the page offers to roll back a run whose rollback has begun")
	}
}

func TestAProviderIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/providers")
	for _, step := range []struct {
		button string
		paused bool
	}{{"Pause payments", true}, {"Resume payments", false}} {
		v.click(fmt.Sprintf("button[aria-label=%q]", step.button))
		v.write("input[name=reason]", "they call us back")
		v.click(".confirm button")
		v.wantText("main", "1 changed")
		if paused := value[bool](v, `SELECT paused FROM outbox.provider WHERE name = 'payments'`); paused != step.paused {
			t.Errorf("after %s, paused is %t", step.button, paused)
		}
		v.open("/providers")
		v.wantText("tbody", "operator:alice", "they call us back")
	}
}

func TestMarkedIntentsAreChangedAndOthersAreNot(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/intents?status=failed")
	v.do(chromedp.Click(chromedp.CSS("input[value='12']")), chromedp.Click(chromedp.CSS("input[value='16']")))
	v.click("button[formaction='/intents/retry']")
	v.wantText("main", "2 would change")
	v.write("input[name=reason]", "the workspace permits it now")
	v.click(".confirm button")
	v.wantText("main", "2 changed")
	if got := drainertest.Column[int64](t, v.db, `SELECT intent_id FROM outbox.attempt WHERE outcome = 'retried' ORDER BY 1`); fmt.Sprint(got) != "[12 16]" {
		t.Errorf("retried: %v", got)
	}
}

func TestThousandsAreRetriedAndTheirProgressIsSeen(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.failedImport(10_000)
	v.login(aliceToken, "/intents?status=failed&run=import")
	v.do(chromedp.Click(chromedp.CSS("input[name=all]")))
	v.click("button[formaction='/intents/retry']")
	v.wantText("main", "10,000 would change", "And 9,950 more")
	v.write("input[name=reason]", "the courier changed its format")
	v.click(".confirm button")
	if _, err := chromedp.Run(v.window, chromedp.Poll[chromedp.Void](`document.querySelector("h1").textContent.includes("done")`, chromedp.WithPollingMutation(), chromedp.WithPollingTimeout(drainertest.Patience))); err != nil {
		t.Fatal(err)
	}
	v.wantText("main", "Retry 10,000 intents: done", "alice", "the courier changed its format")
	if left := value[int](v, `SELECT count(*)::int FROM outbox.status WHERE agent_run_id = 'import' AND status <> 'pending'`); left != 0 {
		t.Errorf("%d were not retried", left)
	}
}

// failedImport adds the run import, each step of which has failed.
func (v *visitor) failedImport(steps int) {
	v.t.Helper()
	drainertest.Exec(v.t, v.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'import', 'step-' || n, 'shipping/book', 'parcel', '{}' FROM generate_series(1, $1::int) n`, steps)
	drainertest.Exec(v.t, v.db, `DELETE FROM outbox.queue WHERE agent_run_id = 'import'`)
	drainertest.Exec(v.t, v.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, error)
		SELECT id, 1, 'w', now(), 'rejected', 'failed', 'http_422' FROM outbox.intent WHERE agent_run_id = 'import'`)
	drainertest.Exec(v.t, v.db, `ANALYZE`)
}

// Another site can make the browser of an operator send a form, but neither with the cookie
// nor past the check of where it comes from.
func TestAnotherSiteChangesNothing(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/")
	v.visitElsewhere(`<form method="post" action="%s/intents/retry"><input name="of" value="10"><input name="reason" value="because"><button>Win</button></form>`)
	if status := v.click("button"); status != http.StatusForbidden {
		t.Errorf("answered %d, want 403", status)
	}
	if status := value[string](v, `SELECT status FROM outbox.status WHERE intent_id = 10`); status != "failed" {
		t.Errorf("the intent is %s", status)
	}
}

// visitElsewhere shows a page of another site, in which %s is the console's address.
func (v *visitor) visitElsewhere(page string) {
	v.t.Helper()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, strings.ReplaceAll(page, "%s", v.at.URL))
	}))
	v.t.Cleanup(site.Close)
	v.lands(chromedp.Navigate(strings.Replace(site.URL, "127.0.0.1", "localhost", 1)))
}

func TestALinkOnAnotherSiteOpensThePage(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/")
	v.visitElsewhere(`<a href="%s/intents/10">the page</a>`)
	v.click("a")
	v.do(chromedp.WaitVisible(chromedp.CSS("nav")))
	v.wantText("main h1", "10")
}

func TestAViewerIsOfferedNothingAndRefused(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(bobToken, "/intents/10")
	for _, path := range everyPage {
		v.open(path)
		if buttons := v.reads("main button:not(.filter button)"); buttons != "" {
			t.Errorf("%s offers a viewer %q", path, buttons)
		}
	}
	v.open("/intents/10")
	evaluate[bool](v, `document.querySelector("main").innerHTML =
		'<form method="post" action="/intents/retry"><input name="of" value="10"><input name="reason" value="because"><button>Retry</button></form>', true`)
	if status := v.click("main button"); status != http.StatusForbidden {
		t.Errorf("answered %d, want 403", status)
	}
	v.wantText("main", "Not permitted", "a viewer only reads")
}

func (v *visitor) runsNoScripts() {
	v.t.Helper()
	if _, err := chromedp.Call(v.window, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		v.t.Fatal(err)
	}
}

func TestEverythingWorksWithoutJavaScript(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.runsNoScripts()
	v.login(aliceToken, "/intents?status=failed")
	v.do(chromedp.Click(chromedp.CSS("input[value='12']")))
	v.click("button[formaction='/intents/retry']")
	v.write("input[name=reason]", "no script ran")
	v.click(".confirm button")
	if reason := value[string](v, `SELECT reason FROM outbox.attempt WHERE intent_id = 12 AND outcome = 'retried'`); reason != "no script ran" {
		t.Errorf("the history says %q", reason)
	}
	v.write("#q", "ch_3PqX8v")
	v.lands(chromedp.KeyEvent("\r"))
	if at := v.path(); at != "/intents/2" {
		t.Errorf("the search led to %s", at)
	}
	v.click("form.who button")
	if at := v.path(); at != "/login" {
		t.Errorf("logging out led to %s", at)
	}
}

func TestTheProgressOfThousandsIsSeenWithoutJavaScript(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.runsNoScripts()
	v.failedImport(600)
	v.login(aliceToken, "/intents?status=failed&run=import")
	v.do(chromedp.Click(chromedp.CSS("input[name=all]")))
	v.click("button[formaction='/intents/retry']")
	v.wantText("main", "600 would change")
	v.write("input[name=reason]", "no script ran")
	holding, err := v.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holding.Exec(t.Context(), `LOCK TABLE outbox.attempt IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	v.click(".confirm button")
	v.wantText("main", "Retry 600 intents …")
	if err := holding.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.do(chromedp.WaitReady(chromedp.CSS("main:not(:has(meta)) progress[value='600']")))
	v.wantText("main", "Retry 600 intents: done", "no script ran")
	if left := value[int](v, `SELECT count(*)::int FROM outbox.status WHERE agent_run_id = 'import' AND status <> 'pending'`); left != 0 {
		t.Errorf("%d were not retried", left)
	}
}

func TestKeysOpenAndMarkButNeverAct(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	v.login(aliceToken, "/")
	v.lands(chromedp.KeyEvent("gi"))
	if at := v.path(); at != "/intents" {
		t.Fatalf("g i led to %s", at)
	}
	v.do(chromedp.KeyEvent("jjkx"))
	if marked := evaluate[string](v, `[...document.querySelectorAll("input[name=of]:checked")].map(e => e.value).join()`); marked != "270" {
		t.Errorf("j j k x marked %q, want the first row", marked)
	}
	v.lands(chromedp.KeyEvent("\r"))
	if at := v.path(); at != "/intents/270" {
		t.Errorf("Enter led to %s", at)
	}
	v.do(chromedp.KeyEvent("?"))
	v.wantText("dialog[open]", "search", "mark the row")
	v.do(chromedp.KeyEvent("\u001b"), chromedp.WaitNotPresent(chromedp.CSS("dialog[open]")))
	v.do(chromedp.KeyEvent("/"), chromedp.WaitVisible(chromedp.CSS("#q:focus")))
	// The whole way to a retry by Tab and Enter alone.
	v.open("/intents/10")
	for evaluate[string](v, `document.activeElement.getAttribute("formaction") || ""`) != "/intents/retry" {
		v.do(chromedp.KeyEvent("\t"))
	}
	v.lands(chromedp.KeyEvent("\r"))
	// A browser sets the focus some time after the page has loaded.
	v.do(chromedp.WaitVisible(chromedp.CSS("input[name=reason]:focus")), chromedp.KeyEvent("by keys"))
	v.lands(chromedp.KeyEvent("\r"))
	v.wantText("main", "1 changed")
}

// New rows would move a marked one from under the hand, and take its mark.
func TestAPageRenewsItselfButNotWhileARowIsMarked(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	intent := func(step string) {
		t.Helper()
		drainertest.Exec(t, v.db, `SELECT outbox.enqueue('renewed', $1, 'payments/charge', 'invoice_442', '{}')`, step)
	}
	intent("first")
	v.login(aliceToken, "/intents?run=renewed")
	evaluate[bool](v, `const answered = fetch; window.asked = 0; window.fetch = (...given) => { asked++; return answered(...given); }; true`)
	// A renewal has asked by the time that its first step returns.
	renew := func(meanwhile string) (asked int) {
		t.Helper()
		before := evaluate[int](v, `asked`)
		asked = evaluate[int](v, `window.renewing = true; renews().then(() => { window.renewing = false; }); `+meanwhile+`; asked`) - before
		drainertest.Eventually(t, "the renewal ends", func() bool { return !evaluate[bool](v, `renewing`) })
		return asked
	}
	marked := func() int { return evaluate[int](v, `document.querySelectorAll("main tbody input:checked").length`) }
	rows := func() int { return evaluate[int](v, `document.querySelectorAll("main tbody tr").length`) }

	intent("second")
	if asked := renew(""); asked != 1 || rows() != 2 {
		t.Errorf("no row is marked: it asked %d times, and shows %d rows", asked, rows())
	}
	intent("third")
	v.do(chromedp.KeyEvent("jx"))
	if asked := renew(""); asked != 0 || marked() != 1 || rows() != 2 {
		t.Errorf("a row is marked: it asked %d times, and shows %d rows", asked, rows())
	}
	v.do(chromedp.KeyEvent("x"))
	if asked := renew(`document.querySelector("main tbody input").checked = true`); asked != 1 || marked() != 1 || rows() != 2 {
		t.Errorf("a row was marked before the answer: it asked %d times, and shows %d rows", asked, rows())
	}
	v.do(chromedp.KeyEvent("x"))
	if asked := renew(""); asked != 1 || marked() != 0 || rows() != 3 {
		t.Errorf("no row is marked any more: it asked %d times, and shows %d rows", asked, rows())
	}
}

// The other tests renew a page by a call of their own; here it is left to itself, and what it asks is counted.
func TestAPageAsksAgainEveryTwoSecondsUnlessItIsHiddenOrARowIsMarked(t *testing.T) {
	t.Parallel()
	v := newVisitor(t)
	if _, err := chromedp.Call(v.window, page.RemoveScriptToEvaluateOnNewDocument, page.RemoveScriptToEvaluateOnNewDocumentParams{Identifier: v.still}); err != nil {
		t.Fatal(err)
	}
	drainertest.Exec(t, v.db, `SELECT outbox.enqueue('renewed', 'first', 'payments/charge', 'invoice_442', '{}')`)
	v.login(aliceToken, "/intents?run=renewed")
	evaluate[bool](v, `const answered = fetch; window.asked = []; window.statuses = []; window.beats = 0; setInterval(() => beats++, 2000);
		window.fetch = async (...given) => { asked.push(performance.now()); const answer = await answered(...given); statuses.push(answer.status); return answer; }; true`)
	drainertest.Eventually(t, "the page has asked four times", func() bool { return evaluate[int](v, `statuses.length`) >= 4 })
	// The first answer is a whole page, as the script has no tag yet.
	if got := evaluate[string](v, `statuses.slice(1).join(" ")`); strings.Trim(got, "304 ") != "" {
		t.Errorf("a page on which nothing changes was answered with %s", got)
	}
	// Three intervals; where the machine is busy a timer is late, and the next one seems early.
	if took := evaluate[float64](v, `asked[3] - asked[0]`); took < 4000 {
		t.Errorf("it asked three times more within %.0f ms", took)
	}
	for _, rest := range []struct{ while, begin, end string }{
		{"its tab is hidden", `Object.defineProperty(document, "hidden", { value: true, configurable: true })`, `delete document.hidden`},
		{"a row is marked", `document.querySelector("input[name=of]").click()`, `document.querySelector("input[name=of]").click()`},
	} {
		before := evaluate[int](v, rest.begin+`; window.from = beats; asked.length`)
		drainertest.Eventually(t, "two of its intervals have passed", func() bool { return evaluate[bool](v, `beats >= from + 2`) })
		if more := evaluate[int](v, `asked.length`) - before; more > 0 {
			t.Errorf("while %s it asked %d times", rest.while, more)
		}
		evaluate[bool](v, rest.end+`; true`)
		drainertest.Eventually(t, "the page asks again", func() bool { return evaluate[int](v, `asked.length`) > before })
	}
}
