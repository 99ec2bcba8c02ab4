package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

const people = `
# who may do what
alice operator alice-has-a-long-token-of-her-own
bob   viewer   bob-has-a-long-token-of-his-own-too
`

// hostile is a text that would be noticed wherever a page did not write it as text.
const hostile = `"><img src=x onerror=alert(1)><script>alert(2)</script>{{.}}'; -- ` + "\u202e" + `javascript:alert(3)`

// browser is a person at a console over a database with a few intents: 1 to 3 of run
// `trip 1/a` (completed, failed, waiting) and 4 of a run with a hostile name.
type browser struct {
	t      *testing.T
	at     *httptest.Server
	client *http.Client
	db     *pgxpool.Pool
}

func newBrowser(t *testing.T, access console.Access) *browser {
	t.Helper()
	databaseURL := drainertest.Database(t)
	pool, err := pgpool.Open(t.Context(), pgpool.At(databaseURL), 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	pages, err := console.New(console.Options{Pool: pool, Access: access})
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, at: httptest.NewServer(pages), db: drainertest.Connect(t, databaseURL)}
	t.Cleanup(b.at.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b.client = &http.Client{Jar: jar}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'trip 1/a', 'step-' || n, 'sim/act', 'scope', '{"card": "4111-secret"}' FROM generate_series(1, 3) n`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		VALUES ($1, $1, 'sim/act', $1, to_jsonb($1::text))`, hostile)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.provider (name) VALUES ('sim')`)
	drainertest.Exec(t, b.db, `DELETE FROM outbox.queue WHERE intent_id IN (1, 2)`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, error, response, provider_ref)
		VALUES (1, 1, 'w', now() - interval '1 s', 'completed', 'completed', NULL, '"4111-secret"', 'eff_1'),
		       (2, 1, 'w', now() - interval '2 s', 'rejected', 'failed', 'http_422', '"4111-secret"', NULL)`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail) VALUES ('outcome_unknown', 4, $1, $1)`, hostile)
	return b
}

func asTokens(t *testing.T) console.Access {
	t.Helper()
	access, err := console.Tokens([]byte(people), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return access
}

func (b *browser) login(token string) {
	b.t.Helper()
	if got := b.post("/login", url.Values{"token": {token}, "to": {"/runs"}}); got.code != http.StatusOK || !strings.Contains(got.text, "<h1>Runs</h1>") {
		b.t.Fatalf("logging in: %d\n%s", got.code, got.text)
	}
}

type answer struct {
	code   int
	header http.Header
	text   string
}

func (b *browser) get(path string, headers ...string) answer {
	return b.send(http.MethodGet, path, nil, headers...)
}

func (b *browser) post(path string, form url.Values, headers ...string) answer {
	return b.send(http.MethodPost, path, strings.NewReader(form.Encode()),
		append([]string{"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin"}, headers...)...)
}

func (b *browser) send(method, path string, body io.Reader, headers ...string) answer {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), method, b.at.URL+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for pair := range slices.Chunk(headers, 2) {
		request.Header.Set(pair[0], pair[1])
	}
	response, err := b.client.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

var everyPage = []string{
	"/", "/runs", "/runs/trip%201%2Fa", "/runs/" + url.PathEscape(hostile), "/intents", "/intents?status=failed", "/intents?dead=1",
	"/intents?run=" + url.QueryEscape(hostile), "/intents/1", "/intents/4", "/incidents", "/incidents?all=1", "/sagas", "/sagas?state=begun",
	"/providers", "/providers/sim", "/tenants", "/search?q=trip", "/search?q=" + url.QueryEscape(hostile), "/search?q=%3Cscript%3E",
}

func TestEveryPageAnswersPeopleAndPrograms(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	for _, path := range everyPage {
		if got := b.get(path); got.code != http.StatusOK || !strings.Contains(got.text, "</html>") {
			t.Errorf("%s: %d\n%s", path, got.code, got.text)
		}
		if got := b.get(path, "Accept", "application/json"); got.code != http.StatusOK || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s as JSON: %d\n%s", path, got.code, got.text)
		}
	}
	for path, code := range map[string]int{
		"/nowhere": http.StatusNotFound, "/intents/99": http.StatusNotFound, "/intents/x": http.StatusNotFound, "/runs/none": http.StatusNotFound,
		"/intents?status=nope": http.StatusBadRequest, "/runs?below=x": http.StatusBadRequest,
	} {
		if got := b.get(path); got.code != code || !strings.Contains(got.text, "</html>") {
			t.Errorf("%s: %d, want %d", path, got.code, code)
		}
	}
}

func TestNoPageShowsAPayloadAResponseOrTextThatRuns(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	for _, path := range everyPage {
		for _, accept := range []string{"text/html", "application/json"} {
			got := b.get(path, "Accept", accept)
			if strings.Contains(got.text, "4111-secret") {
				t.Errorf("%s as %s shows a payload or a response", path, accept)
			}
			if accept == "text/html" && regexp.MustCompile(`<img|<script>|onerror=alert\(1\)>|href="javascript`).MatchString(got.text) {
				t.Errorf("%s: the hostile text is no text:\n%s", path, got.text)
			}
		}
		policy := b.get(path).header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: policy %q", path, policy)
		}
	}
}

func TestAPageThatDidNotChangeIsNotSentAgain(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	tag := b.get("/intents").header.Get("ETag")
	if got := b.get("/intents", "If-None-Match", tag); tag == "" || got.code != http.StatusNotModified {
		t.Errorf("got %d for %q, want 304", got.code, tag)
	}
	drainertest.Exec(t, b.db, `DELETE FROM outbox.queue WHERE intent_id = 3`)
	if got := b.get("/intents", "If-None-Match", tag); got.code != http.StatusOK {
		t.Errorf("after a change: %d, want 200", got.code)
	}
}

// claim has a worker try intent 4 for so long already.
func (b *browser) claim(since string) {
	b.t.Helper()
	drainertest.Exec(b.t, b.db, `DELETE FROM outbox.queue WHERE intent_id = 4`)
	drainertest.Exec(b.t, b.db, `INSERT INTO outbox.claim (worker_id, provider, server, claimed_at, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
		SELECT worker_id, 'sim', 'sim', now() - $1::interval, '{4}', '{1}', '{1}', '{NULL}', '{false}', '{false}', '{""}' FROM outbox.worker LIMIT 1`, since)
}

var tagTime = regexp.MustCompile(`-(\d+)"$`)

// A row is due, and a worker beats: their ages differ on every look, and nothing happens.
func TestAPageOfWhichOnlyAgesChangeIsSentAgainOnceAMinute(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	drainertest.Exec(t, b.db, `INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{sim}')`)
	drainertest.Exec(t, b.db, `UPDATE outbox.provider SET state = 'open', open_until = now() + interval '1 hour'`)
	b.claim("1 s")
	b.login("bob-has-a-long-token-of-his-own-too")
	for _, path := range []string{"/", "/providers", "/providers/sim", "/workers"} {
		for _, accept := range []string{"text/html", "application/json"} {
			tag := b.get(path, "Accept", accept).header.Get("ETag")
			drainertest.Exec(t, b.db, `UPDATE outbox.worker SET beat_at = clock_timestamp()`)
			if got := b.get(path, "Accept", accept, "If-None-Match", tag); got.code != http.StatusNotModified || got.header.Get("ETag") != tag {
				t.Errorf("%s: %d, want 304", path, got.code)
			}
			sent := tagTime.FindStringSubmatch(tag)
			if sent == nil {
				t.Fatalf("%s has the tag %s", path, tag)
			}
			at, err := strconv.Atoi(sent[1])
			if err != nil {
				t.Fatal(err)
			}
			old := tagTime.ReplaceAllString(tag, fmt.Sprintf(`-%d"`, at-61))
			if got := b.get(path, "Accept", accept, "If-None-Match", old); got.code != http.StatusOK {
				t.Errorf("%s after a minute: %d, want 200", path, got.code)
			}
		}
	}
	tag := b.get("/").header.Get("ETag")
	drainertest.Exec(t, b.db, `UPDATE outbox.worker SET beat_at = now() - interval '1 hour'`)
	if got := b.get("/", "If-None-Match", tag); got.code != http.StatusOK {
		t.Errorf("after the worker's death: %d, want 200", got.code)
	}
}

func TestAProgramThatIsNotLoggedInIsToldSo(t *testing.T) {
	t.Parallel()
	proxy := console.Proxy{Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, UserHeader: "X-User"}
	for name, access := range map[string]console.Access{"tokens": asTokens(t), "a proxy": proxy} {
		b := newBrowser(t, access)
		for path, got := range map[string]answer{
			"/runs": b.get("/runs", "Accept", "application/json"), "/intents/retry": b.post("/intents/retry", url.Values{"of": {"2"}}, "Accept", "application/json"),
		} {
			var told struct {
				Status        int
				Title, Detail string
			}
			if err := json.Unmarshal([]byte(got.text), &told); err != nil || got.code != http.StatusUnauthorized || got.header.Get("Content-Type") != "application/json" || told.Status != got.code || told.Title == "" || told.Detail == "" {
				t.Errorf("%s of %s: %d %v\n%s", name, path, got.code, err, got.text)
			}
		}
		if got := b.get("/runs", "Accept", "text/html"); got.code != http.StatusUnauthorized || got.header.Get("Content-Type") == "application/json" {
			t.Errorf("%s of a person: %d\n%s", name, got.code, got.text)
		}
	}
}

func TestTheFirstStepOfAnAcknowledgementLooksAtTheIncidents(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	drainertest.Exec(t, b.db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id, resolved_at) VALUES ('saga_stalled', 2, 'trip 1/a', now()), ('key_collision', 3, 'trip 1/a', NULL)`)
	shown := b.post("/incidents/acknowledge", url.Values{"of": {"1", "2", "3", "99"}})
	for _, part := range []string{
		"2 would change, 2 refused", "incident 1 outcome_unknown", "<td>open</td><td>acknowledged</td>", "incident 2 saga_stalled", "<td>it is resolved</td>",
		"incident 3 key_collision", "<td>open</td><td>resolved</td>", "incident 99", "<td>there is no such incident</td>", "sim/act",
	} {
		if !strings.Contains(shown.text, part) {
			t.Errorf("the first step lacks %q:\n%s", part, shown.text)
		}
	}
}

func TestAnIncidentThatOpenedAgainSinceItWasShownStaysOpen(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	of := url.Values{"of": {"1"}}
	of["shown"] = shownTime.FindStringSubmatch(b.post("/incidents/acknowledge", of).text)[1:]
	of["reason"] = []string{"outage"}
	drainertest.Exec(t, b.db, `UPDATE outbox.incident SET resolved_at = now() WHERE id = 1`)
	drainertest.Exec(t, b.db, `UPDATE outbox.incident SET opened_at = now() WHERE id = 1`)
	if done := b.post("/incidents/acknowledge", of); !strings.Contains(done.text, "0 changed, 1 refused") || !strings.Contains(done.text, "list it again") {
		t.Errorf("%d\n%s", done.code, done.text)
	}
	of["shown"] = shownTime.FindStringSubmatch(b.post("/incidents/acknowledge", url.Values{"of": {"1"}}).text)[1:]
	if done := b.post("/incidents/acknowledge", of); !strings.Contains(done.text, "1 changed") {
		t.Errorf("as it is shown now: %d\n%s", done.code, done.text)
	}
}

// The run changes too, and is counted with its steps.
func TestTheFirstStepOfAChangeOfARunCountsWhatChanges(t *testing.T) {
	t.Parallel()
	const undo = `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates) VALUES ('trip 1/a', 'compensate:1', 'sim/undo', 'scope', '{}', 1)`
	for name, test := range map[string]struct {
		path, given string
		want        []string
	}{
		"a rollback":                    {"/runs/roll-back", "", []string{"3 would change, 1 would stay as they are", "no rollback", "rollback begun", "undone, if its tool says how"}},
		"a rollback of a cancelled run": {"/runs/roll-back", `INSERT INTO outbox.saga (agent_run_id, state) VALUES ('trip 1/a', 'cancelled')`, []string{"3 would change"}},
		"a cancelled run":               {"/runs/cancel", "", []string{"2 would change, 2 would stay as they are"}},
		"the end of a rollback":         {"/sagas/resolve", `INSERT INTO outbox.saga (agent_run_id) VALUES ('trip 1/a')`, []string{"1 would change, 3 would stay as they are", "the rollback is over", `name="reason"`}},
		"the end, while an undo waits":  {"/sagas/resolve", undo + `; INSERT INTO outbox.saga (agent_run_id) VALUES ('trip 1/a')`, []string{"2 would change, 3 would stay", "intent 5, an undo", "<td>pending</td><td>cancelled</td>"}},
		"the end, while an undo is under way": {
			"/sagas/resolve", undo + `; DELETE FROM outbox.queue WHERE intent_id = 5; INSERT INTO outbox.saga (agent_run_id) VALUES ('trip 1/a')`,
			[]string{"0 would change, 4 refused", "the saga is under way; an undo of it is on its way, or in doubt"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBrowser(t, asTokens(t))
			b.login("alice-has-a-long-token-of-her-own")
			for given := range strings.SplitSeq(test.given, "; ") {
				drainertest.Exec(t, b.db, given)
			}
			shown := b.post(test.path, url.Values{"of": {"trip 1/a"}})
			for _, part := range test.want {
				if !strings.Contains(shown.text, part) {
					t.Errorf("the first step (%d) lacks %q:\n%s", shown.code, part, shown.text)
				}
			}
			if done := b.post(test.path, url.Values{"of": {"trip 1/a"}, "reason": {"because"}}); strings.Contains(done.text, "1 changed") == strings.Contains(shown.text, "0 would change") {
				t.Errorf("the second step differs from the first: %d\n%s", done.code, done.text)
			}
		})
	}
}

func TestWhatAnAgentScheduledIsSentBeforeOnlyIfItIsNamedAlone(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	drainertest.Exec(t, b.db, `UPDATE outbox.intent SET not_before = now() + interval '1 day' WHERE id = 3`)
	drainertest.Exec(t, b.db, `UPDATE outbox.queue SET next_attempt_at = now() + interval '1 day'`)
	const path, refused = "/intents/forward", "name it alone"
	filter := url.Values{"all": {"1"}, "run": {"trip 1/a"}, "status": {"pending"}}
	for name, form := range map[string]url.Values{
		"among others": {"of": {"3", "4"}}, "by a filter": filter, "by a filter, in the second step": {"of": {"3"}, "bulk": {"1"}, "reason": {"it is back"}},
	} {
		if got := b.post(path, form); !strings.Contains(got.text, refused) {
			t.Errorf("%s: %d\n%s", name, got.code, got.text)
		}
	}
	if shown := b.post(path, url.Values{"of": {"3"}}); strings.Contains(shown.text, refused) || !strings.Contains(shown.text, "<td>pending, due now</td>") {
		t.Errorf("alone: %d\n%s", shown.code, shown.text)
	}
	if done := b.post(path, url.Values{"of": {"3"}, "reason": {"it is back"}}); !strings.Contains(done.text, "1 changed") {
		t.Errorf("alone: %d\n%s", done.code, done.text)
	}
	if due := drainertest.Value[bool](t, b.db, `SELECT next_attempt_at <= now() FROM outbox.queue WHERE intent_id = 3`); !due {
		t.Error("it still waits")
	}
}

// Enter takes the first link of a row, or of the cell that is marked.
func TestTheKeyOpensARowAndNoFilter(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	drainertest.Exec(t, b.db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('key_collision', 4711, 'gone')`)
	row, marked, first := regexp.MustCompile(`(?s)<tbody>(<tr>.*?)</tbody>`), regexp.MustCompile(`data-open><a[^>]* href="([^"]*)"`), regexp.MustCompile(`<a[^>]* href="([^"]*)"`)
	for _, path := range []string{"/", "/incidents", "/intents", "/runs", "/providers"} {
		for _, table := range row.FindAllStringSubmatch(b.get(path).text, -1) {
			for line := range strings.SplitSeq(table[1], "</tr>") {
				link := marked.FindStringSubmatch(line)
				if link == nil {
					link = first.FindStringSubmatch(line)
				}
				if link != nil && strings.Contains(link[1], "?") {
					t.Errorf("%s: Enter leads to %s", path, link[1])
				}
			}
		}
	}
	for _, path := range []string{"/", "/incidents"} {
		if got := b.get(path); !strings.Contains(got.text, `data-open><a href="/intents/4"`) || !strings.Contains(got.text, `data-open><a class="id" href="/runs/gone"`) {
			t.Errorf("%s marks no link of its rows:\n%s", path, got.text)
		}
	}
}

func TestWhatNeedsALookSaysWhyAndHowLong(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	if got := b.get("/"); !strings.Contains(got.text, "No living worker serves it.") || !strings.Contains(got.text, "No worker lives") {
		t.Errorf("without a worker:\n%s", got.text)
	}
	for _, path := range []string{"/", "/providers", "/providers/sim"} {
		if got := b.get(path); !strings.Contains(got.text, ">no worker serves it<") || strings.Contains(got.text, ">sends<") {
			t.Errorf("%s of a provider that nothing serves:\n%s", path, got.text)
		}
	}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.worker (worker_id, providers, beat_at) VALUES (gen_random_uuid(), '{sim}', now() + interval '1 hour'), (gen_random_uuid(), '{sim}', now() - interval '1 hour')`)
	b.claim("3 hours")
	if got := b.get("/"); !strings.Contains(got.text, "An attempt does not end") || !strings.Contains(got.text, "<td>3 h</td>") || !strings.Contains(got.text, ">sends<") {
		t.Errorf("of an attempt that lasts:\n%s", got.text)
	}
	if got := b.get("/workers"); strings.Count(got.text, ">silent<") != 1 {
		t.Errorf("of two workers one is silent:\n%s", got.text)
	}
}

func TestARunShowsItsUndosBelowItsSteps(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		SELECT 'trip 1/a', 'compensate:' || n, 'sim/undo', 'scope', '{}', n FROM generate_series(1, 2) n`)
	drainertest.Exec(t, b.db, `DELETE FROM outbox.queue WHERE intent_id IN (5, 6)`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, next_attempt_at)
		VALUES (5, 1, 'w', now(), 'unavailable', 'pending', now()), (5, 2, 'w', now(), 'completed', 'completed', NULL), (6, 1, 'w', now(), 'ambiguous', 'unknown', now())`)
	page := b.get("/runs/trip%201%2Fa").text
	for _, part := range []string{`class="part unknown"`, `<span class="key unknown">in doubt</span>`, ">2 ×, ", ">1 ×</small>"} {
		if !strings.Contains(page, part) {
			t.Errorf("the run's page lacks %q:\n%s", part, page)
		}
	}
	if last, first := strings.Index(page, ">6 undo"), strings.Index(page, ">5 undo"); last < 0 || first < last {
		t.Errorf("the undo of the last step is not next to the line: %d and %d", last, first)
	}
}

func TestAnOperatorDecidesInTwoSteps(t *testing.T) {
	t.Parallel()
	const (
		lost  = `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) SELECT 2, max(attempt) + 1, 'a', 'unknown', 'unknown' FROM outbox.attempt WHERE intent_id = 2`
		stuck = `INSERT INTO outbox.saga (agent_run_id, state, ended_at) VALUES ('trip 1/a', 'compensation_failed', now())`
	)
	for _, test := range []struct {
		path, of string
		state    string    // SQL that yields one text
		want     [2]string // before and after
		given    string    // SQL that comes first
	}{
		{"/intents/retry", "2", "SELECT status FROM outbox.status WHERE intent_id = 2", [2]string{"failed", "pending"}, ""},
		{"/intents/cancel", "3", "SELECT status FROM outbox.status WHERE intent_id = 3", [2]string{"pending", "cancelled"}, ""},
		{"/incidents/acknowledge", "1", "SELECT coalesce(acknowledged_by, 'open') FROM outbox.incident WHERE id = 1", [2]string{"open", "operator:alice"}, ""},
		{"/providers/pause", "sim", "SELECT paused::text FROM outbox.provider WHERE name = 'sim'", [2]string{"false", "true"}, ""},
		{"/runs/roll-back", "trip 1/a", "SELECT coalesce((SELECT state FROM outbox.saga), 'none')", [2]string{"none", "begun"}, ""},
		{"/intents/retry-new-key", "2", "SELECT status FROM outbox.status WHERE intent_id = 2", [2]string{"failed", "pending"}, ""},
		{"/intents/resolve-completed", "2", "SELECT status FROM outbox.status WHERE intent_id = 2", [2]string{"failed", "completed"}, ""},
		{"/intents/resolve-failed", "2", "SELECT status FROM outbox.status WHERE intent_id = 2", [2]string{"unknown", "failed"}, lost},
		{"/runs/cancel", "trip 1/a", "SELECT coalesce((SELECT state FROM outbox.saga), 'none')", [2]string{"none", "cancelled"}, ""},
		{"/sagas/retry", "trip 1/a", "SELECT state FROM outbox.saga", [2]string{"compensation_failed", "begun"}, stuck},
		{"/sagas/retry-new-key", "trip 1/a", "SELECT state FROM outbox.saga", [2]string{"compensation_failed", "begun"}, stuck},
		{"/sagas/resolve", "trip 1/a", "SELECT state FROM outbox.saga", [2]string{"compensation_failed", "resolved"}, stuck},
	} {
		t.Run(test.path, func(t *testing.T) {
			t.Parallel()
			b := newBrowser(t, asTokens(t))
			b.login("alice-has-a-long-token-of-her-own")
			if test.given != "" {
				drainertest.Exec(t, b.db, test.given)
			}
			form := url.Values{"of": {test.of}}
			shown := b.post(test.path, form)
			if shown.code != http.StatusOK || !strings.Contains(shown.text, "would change") {
				t.Fatalf("the first step: %d\n%s", shown.code, shown.text)
			}
			if now := drainertest.Value[string](t, b.db, test.state); now != test.want[0] {
				t.Fatalf("the first step changed it to %q", now)
			}
			form.Set("reason", " ")
			if got := b.post(test.path, form); got.code != http.StatusUnprocessableEntity {
				t.Errorf("without a reason: %d, want 422", got.code)
			}
			form.Set("reason", "the provider mended it")
			if done := b.post(test.path, form); done.code != http.StatusOK || !strings.Contains(done.text, "1 changed") {
				t.Errorf("the second step: %d\n%s", done.code, done.text)
			}
			if now := drainertest.Value[string](t, b.db, test.state); now != test.want[1] {
				t.Errorf("it is %q, want %q", now, test.want[1])
			}
		})
	}
}

func TestTheReferenceOfOneIntentIsRecordedAsItIsResolved(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	const path = "/intents/resolve-completed"
	if shown := b.post(path, url.Values{"of": {"2"}}); !strings.Contains(shown.text, `name="provider_ref"`) {
		t.Errorf("the second step does not ask for the reference\n%s", shown.text)
	}
	if shown := b.post(path, url.Values{"of": {"2", "3"}}); strings.Contains(shown.text, `name="provider_ref"`) {
		t.Errorf("it asks for one reference of two intents\n%s", shown.text)
	}
	for name, form := range map[string]url.Values{
		"of two intents":    {"of": {"2", "3"}, "provider_ref": {"ch_7"}, "reason": {"found"}},
		"of several lines":  {"of": {"2"}, "provider_ref": {"ch_7\nch_8"}, "reason": {"found"}},
		"without a reason":  {"of": {"2"}, "provider_ref": {"ch_7"}, "reason": {""}},
		"of many in chunks": {"of": manyOf(501), "provider_ref": {"ch_7"}, "reason": {"found"}},
	} {
		if got := b.post(path, form); got.code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d\n%s", name, got.code, got.text)
		}
	}
	const standing = `SELECT status || ' ' || coalesce(provider_ref, '') FROM outbox.status WHERE intent_id = 2`
	if now := drainertest.Value[string](t, b.db, standing); now != "failed " {
		t.Errorf("a refused form has left %q", now)
	}
	if done := b.post(path, url.Values{"of": {"2"}, "provider_ref": {" ch_7 "}, "reason": {"found in its log"}}); !strings.Contains(done.text, "1 changed") {
		t.Errorf("%d\n%s", done.code, done.text)
	}
	if now := drainertest.Value[string](t, b.db, standing); now != "completed ch_7" {
		t.Errorf("it is %q", now)
	}
}

// The field of a list's filter has another name than the answer.
func TestAFilterByReferenceIsNoAnswer(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	if shown := b.post("/intents/resolve-completed", url.Values{"of": {"2", "3"}, "reference": {"ch_7"}}); shown.code != http.StatusOK || !strings.Contains(shown.text, "would change") {
		t.Errorf("%d\n%s", shown.code, shown.text)
	}
}

var shownTime = regexp.MustCompile(`name="shown" value="([^"]+)"`)

// The first step has shown it as unknown. What another operator has found out since is not overruled unseen.
func TestWhatHasChangedSinceItWasShownStays(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	drainertest.Exec(t, b.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) SELECT 2, max(attempt) + 1, 'a', 'unknown', 'unknown' FROM outbox.attempt WHERE intent_id = 2`)
	of := url.Values{"of": {"2"}}
	shown := shownTime.FindStringSubmatch(b.post("/intents/resolve-failed", of).text)
	if shown == nil {
		t.Fatal("the form does not carry when it was shown")
	}
	others := url.Values{"of": {"2"}, "reason": {"found in the log"}, "provider_ref": {"ch_7"}}
	if done := b.post("/intents/resolve-completed", others); !strings.Contains(done.text, "1 changed") {
		t.Fatalf("%d\n%s", done.code, done.text)
	}
	of["reason"], of["shown"] = []string{"not in the log"}, shown[1:]
	if done := b.post("/intents/resolve-failed", of); !strings.Contains(done.text, "0 changed, 1 refused") {
		t.Errorf("%d\n%s", done.code, done.text)
	}
	if now := drainertest.Value[string](t, b.db, `SELECT status FROM outbox.status WHERE intent_id = 2`); now != "completed" {
		t.Errorf("the intent is %s", now)
	}
	of["shown"] = []string{"yesterday"}
	if done := b.post("/intents/resolve-failed", of); done.code != http.StatusBadRequest {
		t.Errorf("a time that cannot be read: %d", done.code)
	}
	of["shown"] = shownTime.FindStringSubmatch(b.post("/intents/resolve-failed", url.Values{"of": {"2"}}).text)[1:]
	if done := b.post("/intents/resolve-failed", of); !strings.Contains(done.text, "1 changed") {
		t.Errorf("as it is shown now: %d\n%s", done.code, done.text)
	}
}

func manyOf(count int) (ids []string) {
	for id := range count {
		ids = append(ids, strconv.Itoa(id+1))
	}
	return ids
}

func TestAChangedHistoryIsAcceptedAsItWasShown(t *testing.T) {
	t.Parallel()
	for path, inDoubt := range map[string]bool{"/history/accept": true, "/history/accept-lossless": false} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := newBrowser(t, asTokens(t))
			b.login("alice-has-a-long-token-of-her-own")
			change := func() string {
				return drainertest.Value[string](t, b.db, `INSERT INTO outbox.history (id, table_oid, database_oid, change, era, doubted_before)
					SELECT coalesce(max(id), 0) + 1, 'outbox.history'::regclass, 1, 'another timeline', coalesce(max(era), 0) + 1, 0 FROM outbox.history RETURNING id::text`)
			}
			change()
			drainertest.Exec(t, b.db, `INSERT INTO outbox.incident (intent_id, agent_run_id, kind) VALUES (0, '', 'history_changed')`)
			if page := b.get("/incidents?kind=history_changed"); !strings.Contains(page.text, `formaction="`+path+`"`) {
				t.Errorf("the page of the incident has no button\n%s", page.text)
			}
			for _, address := range []string{"/", "/incidents"} {
				if page := b.get(address); !strings.Contains(page.text, "<small>the whole outbox</small>") || strings.Contains(page.text, `href="/runs/"`) {
					t.Errorf("%s does not say what the incident is about\n%s", address, page.text)
				}
			}
			shown := change()
			if page := b.post(path, nil); page.code != http.StatusOK || !strings.Contains(page.text, "another timeline") || !strings.Contains(page.text, `name="of" value="`+shown+`"`) {
				t.Fatalf("the first step: %d\n%s", page.code, page.text)
			}
			later := change()
			form := url.Values{"of": {shown}, "reason": {"the standby was synchronous"}}
			if page := b.post(path, form); !strings.Contains(page.text, "1 refused") {
				t.Errorf("what was shown is not the newest: %d\n%s", page.code, page.text)
			}
			const accepted = `SELECT coalesce(accepted_by, 'none') || ', in doubt: ' || (doubted_before = era) FROM outbox.history ORDER BY id DESC LIMIT 1`
			if now := drainertest.Value[string](t, b.db, accepted); !strings.HasPrefix(now, "none") {
				t.Errorf("the later change is accepted by %s", now)
			}
			form.Set("of", later)
			if page := b.post(path, form); !strings.Contains(page.text, "1 changed") {
				t.Errorf("the second step: %d\n%s", page.code, page.text)
			}
			if now := drainertest.Value[string](t, b.db, accepted); now != fmt.Sprintf("operator:alice, in doubt: %t", inDoubt) {
				t.Errorf("it is accepted by %s, want %t", now, inDoubt)
			}
			if page := b.post(path, nil); !strings.Contains(page.text, "it is accepted already") {
				t.Errorf("once more: %d\n%s", page.code, page.text)
			}
			last := change()
			drainertest.Exec(t, b.db, `UPDATE outbox.history SET lost = true WHERE id = $1::int`, last)
			if page := b.post(path, nil); !strings.Contains(page.text, "a daemon misses commits") || strings.Contains(page.text, "1 would change") != inDoubt {
				t.Errorf("after a loss was found: %d\n%s", page.code, page.text)
			}
			form.Set("of", last)
			if page := b.post(path, form); strings.Contains(page.text, "1 changed") != inDoubt {
				t.Errorf("a loss that was found is denied: %d\n%s", page.code, page.text)
			}
		})
	}
}

func TestStepsThatWereUndoneByHandAreNotUndoneAgain(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	drainertest.Exec(t, b.db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
		SELECT 2, max(attempt) + 1, 'a', 'rejected', 'compensation_failed' FROM outbox.attempt WHERE intent_id = 2`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.saga (agent_run_id, state, ended_at) VALUES ('trip 1/a', 'compensation_failed', now())`)
	const path = "/sagas/retry"
	form := url.Values{"of": {"trip 1/a"}}
	if shown := b.post(path, form); !strings.Contains(shown.text, `name="undone"`) {
		t.Errorf("the second step does not ask which steps were undone\n%s", shown.text)
	}
	form.Set("reason", "refunded by hand")
	for _, undone := range []string{"two", "2;3", "1", "99"} {
		form.Set("undone", undone)
		if got := b.post(path, form); got.code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d\n%s", undone, got.code, got.text)
		}
	}
	form.Set("undone", "2,")
	if done := b.post(path, form); !strings.Contains(done.text, "the rollback goes on") {
		t.Errorf("%d\n%s", done.code, done.text)
	}
	if now := drainertest.Value[string](t, b.db, `SELECT status FROM outbox.status WHERE intent_id = 2`); now != "compensated" {
		t.Errorf("the step is %s", now)
	}
}

func TestTheHistoryNamesWhoWasLoggedIn(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	b.post("/intents/retry", url.Values{"of": {"2"}, "reason": {"mended"}, "operator": {"mallory"}})
	if got := drainertest.Value[string](t, b.db, "SELECT operator || ': ' || reason FROM outbox.attempt WHERE intent_id = 2 AND attempt = 2"); got != "operator:alice: mended" {
		t.Errorf("the history says %q", got)
	}
}

func TestNobodyElseChangesAnything(t *testing.T) {
	t.Parallel()
	retry := url.Values{"of": {"2"}, "reason": {"because"}}
	for name, attack := range map[string]func(*browser) answer{
		"a viewer": func(b *browser) answer {
			b.login("bob-has-a-long-token-of-his-own-too")
			return b.post("/intents/retry", retry)
		},
		"another site": func(b *browser) answer {
			b.login("alice-has-a-long-token-of-her-own")
			return b.post("/intents/retry", retry, "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example")
		},
		"a stranger": func(b *browser) answer { return b.post("/intents/retry", retry) },
		"a link": func(b *browser) answer {
			b.login("alice-has-a-long-token-of-her-own")
			return b.get("/intents/retry?" + retry.Encode())
		},
		"who logged out": func(b *browser) answer {
			b.login("alice-has-a-long-token-of-her-own")
			b.post("/logout", nil)
			return b.post("/intents/retry", retry)
		},
		"who guesses": func(b *browser) answer {
			got := answer{}
			for range 30 {
				got = b.post("/login", url.Values{"token": {"guess"}})
			}
			if got.code != http.StatusTooManyRequests {
				b.t.Errorf("the last guess: %d, want 429", got.code)
			}
			return b.post("/intents/retry", retry)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBrowser(t, asTokens(t))
			if got := attack(b); got.code < 400 {
				t.Errorf("answered %d\n%s", got.code, got.text)
			}
			if status := drainertest.Value[string](t, b.db, "SELECT status FROM outbox.status WHERE intent_id = 2"); status != "failed" {
				t.Errorf("the intent is %s now", status)
			}
		})
	}
}

func TestAViewerMayChangeAndRevealNothing(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	for _, path := range []string{
		"/intents/retry", "/intents/retry-may-duplicate", "/intents/forward", "/intents/cancel", "/intents/retry-new-key", "/intents/retry-new-key-may-duplicate",
		"/intents/resolve-completed", "/intents/resolve-failed", "/intents/2/reveal", "/incidents/acknowledge", "/history/accept", "/history/accept-lossless",
		"/providers/pause", "/providers/resume", "/runs/roll-back", "/runs/cancel", "/sagas/retry", "/sagas/retry-new-key", "/sagas/resolve",
	} {
		for _, form := range []url.Values{{"of": {"2"}}, {"of": {"2"}, "reason": {"because"}}} {
			if got := b.post(path, form); got.code != http.StatusForbidden || !strings.Contains(got.text, "the role operator") {
				t.Errorf("%s %v: %d\n%s", path, form, got.code, got.text)
			}
		}
	}
}

func TestALoginLeadsToNoOtherSite(t *testing.T) {
	t.Parallel()
	for _, to := range []string{
		"https://evil.example", "//evil.example", `/\evil.example`, "", "/\t/evil.example", "/\n/evil.example", `/x/../\evil.example`,
	} {
		b := newBrowser(t, asTokens(t))
		b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		got := b.post("/login", url.Values{"token": {"alice-has-a-long-token-of-her-own"}, "to": {to}})
		if location := got.header.Get("Location"); got.code != http.StatusSeeOther || location != "/" {
			t.Errorf("%q leads to %q (%d)", to, location, got.code)
		}
	}
}

func TestAFormOfASessionThatEndedLeadsToAPage(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	for method, want := range map[string]string{http.MethodGet: "/intents/2?a=1", http.MethodPost: "/"} {
		got := b.send(method, "/intents/2?a=1", nil, "Sec-Fetch-Site", "same-origin")
		if got.code != http.StatusUnauthorized || !strings.Contains(got.text, `name="to" value="`+want+`"`) {
			t.Errorf("%s: %d, want %s:\n%s", method, got.code, want, got.text)
		}
	}
}

// The browser keeps a Strict cookie from what another site begins, and sends it where a page of the console goes on.
func TestALinkInAPageOfTheOnCallKeepsTheSession(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	set := b.post("/login", url.Values{"token": {"alice-has-a-long-token-of-her-own"}}).header.Get("Set-Cookie")
	if !strings.Contains(set, "SameSite=Strict") || !strings.Contains(set, "HttpOnly") {
		t.Errorf("the cookie is %s", strings.ReplaceAll(set, "=", " = "))
	}
	b.client.Jar = nil
	got := b.send(http.MethodGet, "/intents?tool=a%22b&n=1", nil, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate")
	if got.code != http.StatusOK || !strings.Contains(got.text, `content="0;url=/intents?tool=a%22b&amp;n=1"`) || strings.Contains(got.text, "Token") {
		t.Errorf("%d\n%s", got.code, got.text)
	}
	for _, path := range []string{"//evil.example/", `/\evil.example/`, "/%09/evil.example"} {
		got := b.send(http.MethodGet, path, nil, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate")
		if strings.Contains(got.text, "url=//") || strings.Contains(got.text, `url=/\`) || strings.HasPrefix(got.header.Get("Location"), "//") {
			t.Errorf("%s leads to another site: %d %s\n%s", path, got.code, got.header.Get("Location"), got.text)
		}
	}
}

func TestWrongTokensKeepNoPersonOut(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	for range 30 {
		b.post("/login", url.Values{"token": {"guess"}})
	}
	b.login("alice-has-a-long-token-of-her-own")
}

func TestWhatCannotBeDoneSaysWhy(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	b.post("/runs/roll-back", url.Values{"of": {"trip 1/a"}, "reason": {"because"}})
	for _, test := range [][3]string{
		{"/runs/roll-back", "trip 1/a", "the saga is begun"}, {"/sagas/retry", "trip 1/a", "compensation failed can be retried"}, {"/providers/pause", "simm", "there is no provider"}, {"/providers/resume", "simm", "there is no provider"},
	} {
		if got := b.post(test[0], url.Values{"of": {test[1]}, "reason": {"again"}}); got.code != http.StatusUnprocessableEntity || !strings.Contains(strings.ToLower(got.text), test[2]) {
			t.Errorf("%v: %d\n%s", test, got.code, got.text)
		}
	}
}

func TestWhatADatabaseRefusesIsToldWithoutItsWords(t *testing.T) {
	t.Parallel()
	for path, of := range map[string]string{"/runs/roll-back": "trip 1/a", "/providers/pause": "sim"} {
		b := newBrowser(t, asTokens(t))
		b.login("alice-has-a-long-token-of-her-own")
		for _, table := range []string{"saga", "provider"} {
			drainertest.Exec(t, b.db, "ALTER TABLE outbox."+table+" RENAME TO away_"+table)
		}
		for _, form := range []url.Values{{"of": {of}}, {"of": {of}, "reason": {"because"}}} {
			if got := b.post(path, form); got.code != http.StatusInternalServerError || strings.Contains(got.text, "42P01") || strings.Contains(got.text, "Not done") {
				t.Errorf("%s %v: %d\n%s", path, form, got.code, got.text)
			}
		}
	}
}

func TestWithoutAuthenticationLocalhostReads(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, nil)
	if got := b.get("/runs"); got.code != http.StatusOK || !strings.Contains(got.text, "viewer") {
		t.Errorf("reading: %d", got.code)
	}
	if got := b.post("/intents/retry", url.Values{"of": {"2"}, "reason": {"because"}}); got.code != http.StatusForbidden {
		t.Errorf("changing: %d, want 403", got.code)
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://rebound.example/runs", nil)
	recorder := httptest.NewRecorder()
	b.at.Config.Handler.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusMisdirectedRequest {
		t.Errorf("under another name: %d, want 421", recorder.Code)
	}
}

func TestAProxyIsBelievedAtItsAddressAlone(t *testing.T) {
	t.Parallel()
	loopback, elsewhere := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")
	for _, test := range []struct {
		trusted      netip.Prefix
		user, groups string
		want         int // for a change
	}{
		{loopback, "carol", "dev, on-call", http.StatusOK},
		{loopback, "carol", "dev,on-callers", http.StatusForbidden},
		{loopback, "", "on-call", http.StatusUnauthorized},
		{elsewhere, "carol", "on-call", http.StatusUnauthorized},
		{loopback, "carol", "sales", http.StatusUnauthorized},
		{loopback, "carol", "on-call", http.StatusOK},
	} {
		access := console.Proxy{Trusted: []netip.Prefix{test.trusted}, UserHeader: "X-Forwarded-User", GroupHeader: "X-Forwarded-Groups", Operators: "on-call", Viewers: "dev"}
		b := newBrowser(t, access)
		got := b.post("/intents/retry", url.Values{"of": {"2"}, "reason": {"because"}}, "X-Forwarded-User", test.user, "X-Forwarded-Groups", test.groups)
		if got.code != test.want {
			t.Errorf("%+v: answered %d", test, got.code)
		}
	}
}

func TestOfTwoHeadersOneMayBeTheReadersOwn(t *testing.T) {
	t.Parallel()
	access := console.Proxy{Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, UserHeader: "X-User", GroupHeader: "X-Groups", Operators: "on-call"}
	for _, test := range []struct {
		users, groups []string
		want          console.Person
	}{
		{[]string{"carol"}, []string{"dev, on-call"}, console.Person{Name: "carol", Role: console.Operator}},
		{[]string{"carol"}, []string{"on-call", "dev"}, console.Person{Name: "carol", Role: console.Viewer}},
		{[]string{"mallory", "carol"}, []string{"on-call"}, console.Person{}},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil) // it comes from 192.0.2.1
		request.Header["X-User"], request.Header["X-Groups"] = test.users, test.groups
		if got, _ := access.Who(request); got != test.want {
			t.Errorf("%q, %q: %+v, want %+v", test.users, test.groups, got, test.want)
		}
	}
}

func TestARefusedLoginIsLoggedWithoutItsToken(t *testing.T) {
	t.Parallel()
	var log strings.Builder // the handler locks it
	access, err := console.Tokens([]byte(people), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	login := func(token string) int {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/login", strings.NewReader(url.Values{"token": {token}}.Encode()))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer := httptest.NewRecorder()
		access.Guard(http.NotFoundHandler()).ServeHTTP(answer, request)
		return answer.Code
	}
	if code := login("alice-has-a-long-token-of-her-own"); code != http.StatusSeeOther || log.Len() > 0 {
		t.Errorf("a login answered %d and logged %q", code, log.String())
	}
	for range 100 {
		login("alice-has-mistyped-her-token")
	}
	lines := strings.Count(log.String(), "a login was refused")
	if lines < 10 || lines > 30 {
		t.Errorf("100 attempts wrote %d lines", lines)
	}
	if !strings.Contains(log.String(), "mode=token address=192.0.2.1 error=") || strings.Contains(log.String(), "alice") {
		t.Errorf("logged %s", log.String())
	}
}

func TestAFileOfTokensIsReadStrictly(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "# nobody", "alice operator short", "alice root a-token-that-is-long-enough", "alice a-token-that-is-long-enough",
		"alice operator a-token-that-is-long-enough\nbob viewer a-token-that-is-long-enough",
	} {
		if _, err := console.Tokens([]byte(text), slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%q was taken", text)
		} else if strings.Contains(err.Error(), "long-enough") {
			t.Errorf("the error holds the token: %v", err)
		}
	}
}

func TestLongAndEmptyPagesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("alice-has-a-long-token-of-her-own")
	drainertest.Exec(t, b.db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'long', 'step-' || n, 'sim/act', 'scope', '{}' FROM generate_series(1, 1200) n`)
	if got := b.get("/runs/long"); strings.Count(got.text, "<tr>") > 510 || !strings.Contains(got.text, "longer than the page") || !strings.Contains(got.text, `href="/intents?run=long"`) {
		t.Errorf("the long run has %d rows (%d)", strings.Count(got.text, "<tr>"), got.code)
	}
	if got := b.get("/intents"); strings.Count(got.text, `name="of"`) != 50 {
		t.Errorf("the list has %d rows", strings.Count(got.text, `name="of"`))
	}
	first := b.get("/runs")
	next := regexp.MustCompile(`href="(/runs\?below=\d+)"`).FindStringSubmatch(first.text)
	if next == nil || !strings.Contains(b.get(next[1]).text, "trip 1/a") {
		t.Error("the next page of runs does not come to the oldest run")
	}
	older := regexp.MustCompile(`href="(/intents\?below=\d+)"`).FindStringSubmatch(b.get("/intents").text)
	if older == nil || !strings.Contains(b.get(older[1]).text, `href="/intents/1154"`) {
		t.Error("the next page of intents does not begin after the first one")
	}
	many := url.Values{}
	for id := range 10_001 {
		many.Add("of", fmt.Sprint(id+1))
	}
	if got := b.post("/intents/cancel", many); got.code != http.StatusBadRequest {
		t.Errorf("10,001 at once: %d, want 400", got.code)
	}
}

func TestTheScriptStaysShort(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("static/console.js")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(script), "\n"); lines > 400 {
		t.Errorf("console.js has %d lines; 400 are allowed", lines)
	}
}

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
		Settings: func() []console.Setting {
			return []console.Setting{{Name: "worker.lease", Value: "<15s>", AfterRestart: "<20s>"}}
		},
		Tools: func() []console.Tool {
			return []console.Tool{{Name: "sim/act", Class: "non_idempotent", Missing: []string{"lookup"}}}
		},
		Doctor: func(context.Context) []doctor.Finding {
			asked++
			return []doctor.Finding{
				{Check: "schema", Verdict: doctor.Problem, Seen: "it is behind", Cure: "drainer migrate up"},
				{Check: "connections", Verdict: doctor.OK, Seen: "enough connections"},
			}
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
		"/doctor": {"it is behind", "drainer migrate up"}, "/config": {"worker.lease", "&lt;15s&gt;", "after a restart: &lt;20s&gt;", "sim/act", "lacks lookup", "Workers differ", "sim aaa, spare ccc", `<td class="id">bbb</td>`}, "/workers": {"sim, spare"},
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
	if got := b.get("/"); !strings.Contains(got.text, "it is behind") || strings.Contains(got.text, "enough connections") {
		t.Errorf("the first page does not show the doctor's problems alone:\n%s", got.text)
	}
	if asked != 1 {
		t.Errorf("the doctor was asked %d times", asked)
	}
}

// An agent writes the headers: what is no trace id is no part of an address.
func TestAnIntentLinksToTheTraceOfItsAgent(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	pool, err := pgpool.Open(t.Context(), pgpool.At(b.db.Config().ConnString()), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	pages, err := console.New(console.Options{Pool: pool, Access: asTokens(t), TraceURL: "https://traces.example/t/{trace_id}?from=drainer"})
	if err != nil {
		t.Fatal(err)
	}
	b.at = httptest.NewServer(pages)
	t.Cleanup(b.at.Close)
	b.login("bob-has-a-long-token-of-his-own-too")
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	for headers, want := range map[string]string{
		`{"traceparent": "00-` + trace + `-00f067aa0ba902b7-01", "Traceparent": "00-11111111111111111111111111111111-00f067aa0ba902b7-01"}`: trace,
		`{"TraceParent": "00-` + trace + `-00f067aa0ba902b7-01"}`:                                                                           trace,
		`{"traceparent": "00-` + trace + `/../x-00f067aa0ba902b7-01"}`:                                                                      "",
		`{"traceparent": "\"><img src=x>-javascript:alert(1)-"}`:                                                                            "",
		`{"traceparent": {"a": 1}}`: "", `["traceparent"]`: "", `"traceparent"`: "", `{}`: "", `null`: "",
	} {
		drainertest.Exec(t, b.db, `UPDATE outbox.intent SET headers = $1::jsonb WHERE id = 1`, headers)
		got := b.get("/intents/1")
		if link := `href="https://traces.example/t/` + want + `?from=drainer"`; got.code != http.StatusOK || strings.Contains(got.text, link) != (want != "") || strings.Contains(got.text, "traces.example") != (want != "") {
			t.Errorf("with %s the page (%d) is:\n%s", headers, got.code, got.text)
		}
	}
	if got := b.get("/sagas/trip%201%2Fa"); !strings.Contains(got.text, "<h1>Run ") {
		t.Errorf("a rollback's address does not lead to its run (%d):\n%s", got.code, got.text)
	}
}

func TestAnIntentSaysWhatARetryWouldDo(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	for path, want := range map[string]string{
		"/intents/1": "<dd>is refused: it is completed",
		"/intents/2": "<dd>would queue it again, due now, under the same key</dd>",
		"/intents/3": "<dd>is refused: ",
	} {
		if got := b.get(path); got.code != http.StatusOK || !strings.Contains(html.UnescapeString(got.text), want) {
			t.Errorf("%s does not say %q (%d):\n%s", path, want, got.code, got.text)
		}
	}
	drainertest.Exec(t, b.db, `UPDATE outbox.attempt SET status = 'unknown', outcome = 'ambiguous' WHERE intent_id = 2`)
	if got := b.get("/intents/2"); !strings.Contains(got.text, "and no configuration was given with --config, so it is not known whether repeating it is safe") {
		t.Errorf("the page of an intent in doubt is\n%s", got.text)
	}
}

func TestAnAcknowledgementThatStopsSaysHowManyItChanged(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	ids := drainertest.Column[string](t, b.db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) SELECT 'outcome_unknown', 1000 + n, 'run' FROM generate_series(1, 250) n RETURNING id::text`)
	drainertest.Exec(t, b.db, `CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$`)
	drainertest.Exec(t, b.db, `CREATE TRIGGER stop BEFORE UPDATE ON outbox.incident FOR EACH ROW WHEN (OLD.intent_id > 1240) EXECUTE FUNCTION public.stop()`)
	b.login("alice-has-a-long-token-of-her-own")
	got := b.post("/incidents/acknowledge", url.Values{"of": ids, "reason": {"outage"}})
	if got.code != http.StatusInternalServerError || !strings.Contains(got.text, "200 of 250") || strings.Contains(got.text, "disk") {
		t.Errorf("%d: %s", got.code, got.text)
	}
}

// Pages link to these lists.
func TestIncidentsAreFoundByTheirNumberAndProvider(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	drainertest.Exec(t, b.db, `SELECT outbox.enqueue('linked', 'a', 'post/send', 'b', '{}'), outbox.enqueue('linked', 'b', 'bank/send', 'b', '{}')`)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail, resolved_at, resolved_by)
		SELECT 'saga_stalled', id, agent_run_id, 'seen at ' || tool_name, CASE WHEN provider = 'bank' THEN now() END, CASE WHEN provider = 'bank' THEN 'drainer' END
		FROM outbox.intent WHERE agent_run_id = 'linked'`)
	of := func(tool string) int64 {
		return drainertest.Value[int64](t, b.db, `SELECT id FROM outbox.incident WHERE detail = $1`, "seen at "+tool)
	}
	b.login("bob-has-a-long-token-of-his-own-too")
	for address, want := range map[string][2]bool{ // post/send, bank/send
		fmt.Sprintf("/incidents?id=%d", of("post/send")): {true, false},
		fmt.Sprintf("/incidents?id=%d", of("bank/send")): {false, true}, // though it is resolved
		"/incidents?id=999999":                           {false, false},
		"/incidents?kind=saga_stalled&provider=post":     {true, false},
		"/incidents?kind=saga_stalled&provider=mail":     {false, false},
		"/incidents?provider=bank&all=1":                 {false, true},
	} {
		page := b.get(address)
		if got := [2]bool{strings.Contains(page.text, "seen at post/send"), strings.Contains(page.text, "seen at bank/send")}; page.code != http.StatusOK || got != want {
			t.Errorf("%s (%d) shows %v, want %v", address, page.code, got, want)
		}
	}
	if page := b.get("/incidents?id=seven"); page.code == http.StatusOK {
		t.Errorf("no number: %d", page.code)
	}
}

func TestIncidentsAndRollbacksAreReadPageByPage(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	const rows = 120
	drainertest.Exec(t, b.db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at)
		SELECT 'compensation_failed', 1000 + n, 'run', now() - n * interval '1 min' FROM generate_series(1, $1::int) n`, rows)
	drainertest.Exec(t, b.db, `INSERT INTO outbox.saga (agent_run_id, state, begun_at)
		SELECT 'run ' || n, 'begun', now() - n * interval '1 min' FROM generate_series(1, $1::int) n`, rows)
	b.login("bob-has-a-long-token-of-his-own-too")
	for address, row := range map[string]*regexp.Regexp{
		"/incidents?kind=compensation_failed&all=1": regexp.MustCompile(`<td class="n">(1\d\d\d)</td>\s*<td><small>the intent was pruned</small>`),
		"/sagas?state=begun":                        regexp.MustCompile(`href="/runs/run%20(\d+)"`),
	} {
		seen, pages := map[string]bool{}, 0
		next := regexp.MustCompile(`<a rel="next" href="([^"]+)"`)
		for page := address; page != ""; pages++ {
			got := b.get(page)
			for _, found := range row.FindAllStringSubmatch(got.text, -1) {
				if seen[found[1]] {
					t.Errorf("%s is on two pages of %s", found[1], address)
				}
				seen[found[1]] = true
			}
			page = ""
			if older := next.FindStringSubmatch(got.text); older != nil {
				page = html.UnescapeString(older[1])
			}
		}
		if len(seen) != rows || pages != 3 {
			t.Errorf("%s lists %d in %d pages, want %d in 3", address, len(seen), pages, rows)
		}
	}
	if got := b.get("/incidents?after=x"); got.code != http.StatusBadRequest {
		t.Errorf("a page behind no number: %d", got.code)
	}
}

func TestEveryPageOfTheMenuHasAKey(t *testing.T) {
	t.Parallel()
	menu, err := os.ReadFile("templates/base.html")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("static/console.js")
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`<a href="(/[a-z]*)"`).FindAllStringSubmatch(string(menu), -1)
	if len(links) < 11 {
		t.Fatalf("found %d links", len(links))
	}
	for _, link := range links {
		key := regexp.MustCompile(`([a-z]): "` + link[1] + `"`).FindStringSubmatch(string(script))
		if key == nil || !strings.Contains(string(script), `["g `+key[1]+`",`) {
			t.Errorf("%s has no key, or the help leaves it out", link[1])
		}
	}
}

// One that serves other providers differs rightly. A log level is no provider's.
func TestWorkersThatDifferInASettingOfNoProviderAreTold(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	drainertest.Exec(t, b.db, `INSERT INTO outbox.worker (worker_id, providers, fingerprints, configuration)
		VALUES (gen_random_uuid(), '{sim,mail}', '{aaa,bbb}', 'whole-1'), (gen_random_uuid(), '{mail,sim}', '{bbb,aaa}', 'whole-1'), (gen_random_uuid(), '{mail}', '{bbb}', 'whole-2')`)
	if got := b.get("/config"); strings.Contains(got.text, "Workers differ") || strings.Count(got.text, "whole-1") != 2 || !strings.Contains(got.text, "whole-2") {
		t.Errorf("those that agree are not shown so:\n%s", got.text)
	}
	drainertest.Exec(t, b.db, `UPDATE outbox.worker SET configuration = 'whole-3' WHERE worker_id = (SELECT worker_id FROM outbox.worker WHERE providers = '{sim,mail}')`)
	for _, path := range []string{"/config", "/workers"} {
		if got := b.get(path); !strings.Contains(got.text, "Workers differ") || !strings.Contains(got.text, "another setting") || !strings.Contains(got.text, "whole-3") {
			t.Errorf("%s does not tell them apart:\n%s", path, got.text)
		}
	}
}

func TestWorkersThatDifferAreShownWithTheirFingerprints(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, asTokens(t))
	b.login("bob-has-a-long-token-of-his-own-too")
	type version struct {
		Fingerprint string
		Workers     []string
	}
	type difference struct {
		Provider string
		Versions []version
	}
	differences := func(path string) (found []difference) {
		t.Helper()
		got := b.get(path, "Accept", "application/json")
		answer := struct{ Differences []difference }{}
		if err := json.Unmarshal([]byte(got.text), &answer); err != nil || answer.Differences == nil {
			t.Fatalf("%s has no list of differences: %v\n%s", path, err, got.text)
		}
		return answer.Differences
	}
	const first, second, third = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222", "33333333-3333-4333-8333-333333333333"
	drainertest.Exec(t, b.db, `INSERT INTO outbox.worker (worker_id, providers, fingerprints, started_at) VALUES
		($1, ARRAY['sim', $3], '{aaa,ccc}', now() - interval '2 hours'), ($2, ARRAY['sim', $3], '{aaa,ccc}', now() - interval '1 hour')`, first, second, hostile)
	if got := b.get("/workers"); len(differences("/workers")) > 0 || strings.Contains(got.text, "Workers differ") || strings.Contains(got.text, "aaa") {
		t.Errorf("two that are the same are said to differ (%d):\n%s", got.code, got.text)
	}
	drainertest.Exec(t, b.db, `INSERT INTO outbox.worker (worker_id, providers, fingerprints) VALUES ($1, ARRAY['sim', $2], '{aaa,ddd}')`, third, hostile)
	want := []difference{{hostile, []version{{"ccc", []string{first, second}}, {"ddd", []string{third}}}}}
	for _, path := range []string{"/workers", "/config"} {
		if got := differences(path); !reflect.DeepEqual(got, want) {
			t.Errorf("%s as JSON: %v, want %v", path, got, want)
		}
		got := b.get(path)
		for _, row := range []string{"<td class=\"id\">ccc</td><td class=\"id\">" + first + ", " + second, "<td class=\"id\">ddd</td><td class=\"id\">" + third} {
			if !strings.Contains(html.UnescapeString(got.text), row) {
				t.Errorf("%s (%d) lacks %q:\n%s", path, got.code, row, got.text)
			}
		}
		if strings.Contains(got.text, "<img") || strings.Contains(got.text, "<script>alert") || strings.Count(html.UnescapeString(got.text), hostile) < 2 {
			t.Errorf("%s does not write the provider's name as text:\n%s", path, got.text)
		}
		if policy := got.header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(got.text, " style=") {
			t.Errorf("%s has the policy %q, or a style that it refuses", path, policy)
		}
	}
}
