package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/drainer/postgres/sql"
	"github.com/agentoutbox/drainer/drainertest"
)

// After an outage a look may take seconds. The leader inserts one every three seconds all the same.
func TestSlowLooksDoNotPileUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks pace
		began := 0
		look := func(takes time.Duration) func() error {
			return func() error {
				began++
				time.Sleep(takes)
				return nil
			}
		}
		expect := func(want int, when string) {
			t.Helper()
			if began != want {
				t.Errorf("%s %d looks have begun, want %d", when, began, want)
			}
		}
		go func() { _ = looks.do(look(8 * time.Second)) }()
		for range 6 { // until 18 s
			time.Sleep(3 * time.Second)
			if err := looks.do(look(0)); !errors.Is(err, errPaced) {
				t.Errorf("a look that is left out counts as one: %v", err)
			}
		}
		expect(1, "while the look runs and in the pause behind it,")
		time.Sleep(6 * time.Second)
		_ = looks.do(look(0))
		expect(2, "then")
		_ = looks.do(look(0))
		expect(3, "after a quick look")
		_ = looks.do(look(25 * time.Second))
		_ = looks.do(look(0))
		expect(5, "after a look that took so long that a pause would be too long,")
	})
}

// tables is the store of an outbox whose rows the tests write themselves.
type tables struct {
	store
	t *testing.T
}

func newTables(t *testing.T) tables {
	t.Helper()
	pool := drainertest.Connect(t, drainertest.Database(t))
	return tables{store{pool}, t}
}

func (o tables) exec(sql string, args ...any) {
	o.t.Helper()
	drainertest.Exec(o.t, o.pool, sql, args...)
}

func (o tables) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o tables) enqueue(step, tool, payload string) (id int64, err error) {
	err = o.pool.QueryRow(o.t.Context(), `SELECT intent_id FROM outbox.enqueue('run', $1, $2, 'scope', $3)`, step, tool, payload).Scan(&id)
	return id, err
}

func (o tables) mustEnqueue(step, tool string) int64 {
	o.t.Helper()
	id, err := o.enqueue(step, tool, "{}")
	o.must(err)
	return id
}

// incidents returns each incident as "intent generation state", the oldest first.
func (o tables) incidents(kind incident.Kind) []string {
	o.t.Helper()
	return drainertest.Column[string](o.t, o.pool, `SELECT intent_id || ' ' || generation || CASE WHEN resolved_at IS NULL THEN ' open' ELSE ' resolved' END
		FROM outbox.incident WHERE kind = $1 ORDER BY id`, kind)
}

func (o tables) assertIncidents(kind incident.Kind, want ...string) {
	o.t.Helper()
	if got := o.incidents(kind); !slices.Equal(got, want) {
		o.t.Errorf("incidents are %q, want %q", got, want)
	}
}

var pager = Channel{Name: "pager", Repeat: time.Hour, Match: incident.Match{Kinds: incident.Kinds()}}

// shut shuts a gate because the provider refused this side when it got the intent; 0 is an intent that is not known.
func (o tables) shut(gate string, kind incident.Kind, intent int64) {
	o.t.Helper()
	table := "provider"
	if strings.Contains(gate, "/") {
		table = "tool"
	}
	o.exec(`INSERT INTO outbox.`+table+` (name, state, reason, open_until, shut_at, refused_at, refused_intent) VALUES ($1, 'open', $2, now(), now(), now(), nullif($3::bigint, 0))
		ON CONFLICT (name) DO UPDATE SET state = excluded.state, reason = excluded.reason, refused_intent = excluded.refused_intent`, gate, kind, intent)
}

// While a fallback keeps up, no row waits for the provider that refuses this side. A fallback has no rows of its own.
func TestARefusedProviderPagesThoughNoRowWaitsForIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gate    string
		kind    incident.Kind
		refused int64
		want    string
	}{
		"a fallback serves all":        {"sim", incident.CredentialsRefused, 2, "2 1 open"},
		"an operation of the fallback": {"spare/act", incident.Forbidden, 2, "2 1 open"},
		"a lookup was forbidden":       {"spare/find", incident.Forbidden, 2, "2 1 open"},
		"nothing could be rendered":    {"spare/act", incident.Misconfigured, 2, "2 1 open"},
		"its intent was pruned":        {"spare", incident.CredentialsRefused, 99, "0 1 open"},
		"its intent is not known":      {"spare/act", incident.Forbidden, 0, "0 1 open"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newTables(t)
			o.mustEnqueue("served", "sim/act")
			o.mustEnqueue("refused", "sim/act")
			o.exec(`DELETE FROM outbox.queue`)
			o.shut(test.gate, test.kind, test.refused)
			for range 2 {
				o.must(o.notice(t.Context(), []string{"sim", "spare"}))
				o.assertIncidents(test.kind, test.want)
			}
			o.exec(`UPDATE outbox.provider SET state = 'closed', reason = NULL`)
			o.exec(`UPDATE outbox.tool SET state = 'closed', reason = NULL`)
			o.must(o.notice(t.Context(), []string{"sim", "spare"}))
			o.assertIncidents(test.kind, strings.Replace(test.want, "open", "resolved", 1))
		})
	}
}

// No index finds an attempt by its outcome, and a scan of a large table would take longer than a look may.
func TestRefusedGatesAreFoundWithoutReadingAttempts(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.shut("sim", incident.CredentialsRefused, o.mustEnqueue("refused", "sim/act"))
	o.exec(`ALTER TABLE outbox.attempt RENAME TO hidden`)
	o.must(o.execute(t.Context(), "look", sql.PagesRefused))
	o.assertIncidents(incident.CredentialsRefused, "1 1 open")
}

// A fallback may refuse this side as well. An intent has only one incident of a kind.
func TestAnIncidentNamesEachGateThatRefusedItsIntent(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	intent := o.mustEnqueue("refused", "sim/act")
	closeGate := func(gate string) {
		o.exec(`UPDATE outbox.provider SET state = 'closed', reason = NULL, refused_intent = NULL WHERE name = $1`, gate)
	}
	for _, step := range []struct {
		name   string
		do     func()
		want   string
		detail string
	}{
		{"its own provider refuses it", func() { o.shut("sim", incident.CredentialsRefused, intent) }, "1 1 open", "sim"},
		{"its fallback does, too", func() { o.shut("backup", incident.CredentialsRefused, intent) }, "1 1 open", "backup, sim"},
		{"its own accepts again", func() { closeGate("sim") }, "1 1 open", "backup"},
		{"a human knows", func() { o.exec(`UPDATE outbox.incident SET acknowledged_at = now(), acknowledged_by = 'ada'`) }, "1 1 open", "backup"},
		{"its own refuses again", func() { o.shut("sim", incident.CredentialsRefused, intent) }, "1 2 open", "backup, sim"},
		{"both change", func() { closeGate("sim"); closeGate("backup"); o.shut("third", incident.CredentialsRefused, intent) }, "1 2 open", "third"},
		{"all accept", func() { closeGate("third") }, "1 2 resolved", "third"},
		{"one refuses later", func() { o.shut("backup", incident.CredentialsRefused, intent) }, "1 3 open", "backup"},
	} {
		step.do()
		for range 2 {
			o.must(o.notice(t.Context(), []string{"sim", "backup", "third"}))
			o.assertIncidents(incident.CredentialsRefused, step.want)
			if detail := drainertest.Value[string](t, o.pool, `SELECT detail FROM outbox.incident`); detail != step.detail {
				t.Errorf("%s: it is of %q, want %q", step.name, detail, step.detail)
			}
		}
	}
}

func TestAnAcknowledgedRefusalStaysSoWhateverItsGateIsCalled(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.shut("sim/send, and log", incident.Forbidden, o.mustEnqueue("refused", "sim/act"))
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now(), acknowledged_by = 'ada'`)
	o.must(o.notice(t.Context(), []string{"sim"}))
	if by := drainertest.Value[string](t, o.pool, `SELECT coalesce(acknowledged_by, '') FROM outbox.incident`); by != "ada" {
		t.Errorf("it is open again, acknowledged by %q", by)
	}
}

func TestALookThatFailsKeepsNoOtherFromBeingMade(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.shut("sim", incident.CredentialsRefused, o.mustEnqueue("refused", "sim/act"))
	o.exec(`ALTER SEQUENCE outbox.collisions RENAME TO hidden`)
	if err := o.notice(t.Context(), []string{"sim"}); err == nil || !strings.Contains(err.Error(), "look for key collisions") {
		t.Errorf("it returned %v", err)
	}
	o.assertIncidents(incident.CredentialsRefused, "1 1 open")
}

func TestAChannelIsToldWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	const acknowledged, resolved = "acknowledged_at = now()", "resolved_at = now()"
	for name, test := range map[string]struct {
		incident string // the columns that were set
		page     string // told and told_at; empty: it was never begun
		want     State  // empty: nothing
	}{
		"open, never told":                        {"", "", Open},
		"open, perhaps told":                      {"", "NULL, NULL", Open},
		"open, nobody knows which came last":      {"", "NULL, now()", Open},
		"open, told lately":                       {"", "'open', now()", ""},
		"open, told long ago":                     {"", "'open', now() - interval '61 minutes'", Open},
		"acknowledged, never told":                {acknowledged, "", ""},
		"acknowledged, perhaps told":              {acknowledged, "NULL, NULL", Acknowledged},
		"acknowledged, told that it is open":      {acknowledged, "'open', now()", Acknowledged},
		"acknowledged, told so long ago":          {acknowledged, "'acknowledged', 'yesterday'", ""},
		"resolved, never told":                    {resolved, "", ""},
		"resolved, perhaps told":                  {resolved, "NULL, NULL", Resolved},
		"resolved, told that it is open":          {resolved, "'open', now()", Resolved},
		"resolved, told that it was acknowledged": {resolved, "'acknowledged', now()", Resolved},
		"resolved, told so long ago":              {resolved, "'resolved', 'yesterday'", ""},
		"resolved after it was acknowledged":      {acknowledged + ", " + resolved, "'acknowledged', now()", Resolved},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newTables(t)
			o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', $1, 'run')`, o.mustEnqueue("s", "sim/act"))
			if test.incident != "" {
				o.exec(`UPDATE outbox.incident SET ` + test.incident)
			}
			if test.page != "" {
				o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told, told_at) VALUES (1, 1, 'pager', ` + test.page + `)`)
				o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told, told_at) VALUES (1, 1, 'another', ` + test.page + `)`)
			}
			due, err := o.due(t.Context(), pager, 10)
			o.must(err)
			var one Page
			if len(due) > 0 {
				one = due[0]
			}
			if len(due) > 1 || one.State != test.want {
				t.Errorf("due are %+v; want %q", due, test.want)
			}
			if len(due) > 0 && (one.ToolName != "sim/act" || one.IntentID != 1 || one.Kind != incident.OutcomeUnknown || one.Count != 1 || len(one.IdempotencyKey) != 40) {
				t.Errorf("the page is %+v", one)
			}
		})
	}
}

// one returns the only page that is due, if any is.
func (o tables) one() (page Page, due bool) {
	o.t.Helper()
	pages, err := o.due(o.t.Context(), pager, 10)
	o.must(err)
	if len(pages) > 1 {
		o.t.Fatalf("due are %+v, want one at most", pages)
	}
	if len(pages) == 0 {
		return Page{}, false
	}
	return pages[0], true
}

// mustBegin begins to send a page. It returns the number of the try, or 0 if the page may not be sent.
func (o tables) mustBegin(page Page) (try int) {
	o.t.Helper()
	try, err := o.begin(o.t.Context(), pager.Name, page)
	o.must(err)
	return try
}

// The row and the database's clock tell whether another process sends a page, and when a try failed. River's jobs do not
// count.
func TestAPageIsSentByOneProcessAtATimeAndTriedAgainByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 1, 'run')`)
	o.exec(`INSERT INTO outbox.river_job (kind, state, args, attempt, max_attempts, attempted_at) VALUES
		('page_send', 'running', '{"channel": "pager", "incident_id": 1, "generation": 1}', 1, 1, now())`)
	page, _ := o.one()
	assert := func(when string, try int) {
		t.Helper()
		again, found := o.one()
		if found {
			page = again
		}
		if got := o.mustBegin(page); got != try || found != (try > 0) {
			t.Errorf("%s: due: %t, and it is try %d; want %d", when, found, got, try)
		}
	}
	assert("new", 1)
	assert("while it is sent", 0)
	o.exec(`UPDATE outbox.page SET left_until = now()`)
	assert("after its sender died", 2)
	o.must(o.missed(t.Context(), pager.Name, page, time.Hour))
	assert("soon after a failure", 0)
	o.exec(`UPDATE outbox.page SET tried_at = tried_at + interval '30 minutes'`)
	assert("after the database's clock was set back", 3)
	o.must(o.missed(t.Context(), pager.Name, page, 0))
	assert("after the wait", 4)
	o.must(o.recordSent(t.Context(), pager.Name, page))
	if try := o.mustBegin(page); try > 0 {
		t.Error("it is sent by a process that looked before it was told")
	}
	o.exec(`UPDATE outbox.page SET told_at = now() + interval '1 hour'`)
	assert("as a repetition after the clock was set back", 1)
}

func TestTwoSendersThatMeetLeaveThePageToBeSentAgain(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 1, 'run')`)
	first, _ := o.one()
	o.mustBegin(first)
	o.exec(`UPDATE outbox.incident SET resolved_at = now()`)
	o.exec(`UPDATE outbox.page SET left_until = NULL`)
	second, _ := o.one()

	// The resolution is recorded last. Which of the two arrived last is not known.
	o.must(o.recordSent(t.Context(), pager.Name, first))
	o.must(o.recordSent(t.Context(), pager.Name, second))
	again, due := o.one()
	if !due || again.State != Resolved {
		t.Fatalf("due: %t, %+v; want the resolution again", due, again)
	}
	o.must(o.recordSent(t.Context(), pager.Name, again))
	if page, due := o.one(); due {
		t.Errorf("due is %+v; want nothing left to say", page)
	}
}

func TestOfAKindOfPageComesFirstWhatWasTriedLeastLately(t *testing.T) {
	t.Parallel()
	const resolve = `; UPDATE outbox.incident SET resolved_at = now()`
	for name, test := range map[string]struct {
		page string // tried_at, told and told_at of incident n; empty: none was begun
		then string
		want []int64
	}{
		"new":         {"", "", []int64{1, 2, 3, 4}},
		"missed":      {"now() - n * interval '1 minute', NULL, NULL", "", []int64{4, 3, 2, 1}},
		"doubtful":    {"now() - n * interval '1 minute', NULL, now()", "", []int64{4, 3, 2, 1}},
		"repetitions": {"now() - n * interval '1 minute', 'open', now() - interval '2 hours'", "", []int64{4, 3, 2, 1}},
		"ends":        {"now() - n * interval '1 minute', 'open', now()", resolve, []int64{4, 3, 2, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newTables(t)
			o.openIncidents(4)
			if test.page != "" {
				o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, tried_at, told, told_at)
					SELECT n, 1, 'pager', ` + test.page + ` FROM generate_series(1, 4) n` + test.then)
			}
			if order := o.order(4); !slices.Equal(order, test.want) {
				t.Errorf("in the order %v, want %v", order, test.want)
			}
		})
	}
}

// Four kinds of page wait. Far more of each kind are due than a look takes, and none of them is ever sent.
func TestNoKindOfPageKeepsAnotherOut(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	o := newTables(t)
	o.openIncidents(40)
	o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, tried_at, told, told_at)
		SELECT n, 1, 'pager', now() - interval '2 hours', CASE WHEN n > 20 THEN 'open' END, now() - interval '2 hours' FROM generate_series(11, 40) n`)
	o.exec(`UPDATE outbox.incident SET resolved_at = now() WHERE id > 30`)
	const looks = 900
	for _, limit := range []int{1, 9} {
		counts := map[string]int{}
		for range looks / limit {
			for _, id := range o.order(limit) {
				counts[[]string{"new", "missed", "repetition", "end"}[(id-1)/10]]++
			}
		}
		// Each kind gets a ninth of the pages at least, or half of that where chance decides alone.
		if counts["repetition"] < looks/20 || counts["missed"] < looks/10 || counts["end"] < looks/10 || counts["new"] < looks*3/9 {
			t.Errorf("%d at a time: %v", limit, counts)
		}
	}
}

// openIncidents opens so many groups of one incident each.
func (o tables) openIncidents(count int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at)
		SELECT 'outcome_unknown', intent_id, 'run', now() - interval '3 hours' + n * interval '1 minute'
		FROM generate_series(1, $1::int) n, outbox.enqueue('run', n::text, 'sim' || n || '/act', 'scope', '{}')`, count)
}

// open opens incidents of one kind at one provider.
func (o tables) open(kind incident.Kind, tool string, count int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
		SELECT $1, intent_id, 'run' FROM generate_series(1, $3::int) n, outbox.enqueue('run', n || gen_random_uuid()::text, $2, 'scope', '{}')`, kind, tool, count)
}

// tell sends all that is due, and returns "state count of kind provider" of each page in order.
func (o tables) tell(channel Channel) (told []string) {
	o.t.Helper()
	due, err := o.due(o.t.Context(), channel, 100)
	o.must(err)
	for _, page := range due {
		if _, err := o.begin(o.t.Context(), channel.Name, page); err != nil {
			o.t.Fatal(err)
		}
		o.must(o.recordSent(o.t.Context(), channel.Name, page))
		told = append(told, fmt.Sprintf("%s %d of %s %s", page.State, page.Count, page.Kind, page.provider()))
	}
	slices.Sort(told)
	return told
}

func (o tables) assertTold(when string, want ...string) {
	o.t.Helper()
	if got := o.tell(pager); !slices.Equal(got, want) {
		o.t.Errorf("%s: told is %q, want %q", when, got, want)
	}
}

func TestAThousandIncidentsOfOneKindAndProviderAreOnePage(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.open(incident.OutcomeUnknown, "sim/act", 1000)
	o.open(incident.OutcomeUnknown, "other/act", 2)
	o.open(incident.CompensationFailed, "sim/act", 1)
	o.assertTold("at first", "open 1 of compensation_failed sim", "open 1000 of outcome_unknown sim", "open 2 of outcome_unknown other")
	o.assertTold("then")
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now() WHERE id < 1000`)
	o.assertTold("while one is open")
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now() WHERE id = 1000`)
	o.assertTold("once none is", "acknowledged 1000 of outcome_unknown sim")
	o.exec(`UPDATE outbox.incident SET resolved_at = now() WHERE kind = 'outcome_unknown' AND id > 2`)
	o.assertTold("while two are not resolved", "resolved 2 of outcome_unknown other")
	o.exec(`UPDATE outbox.incident SET resolved_at = now() WHERE id <= 2`)
	o.assertTold("once all are", "resolved 1000 of outcome_unknown sim")
	if rows := drainertest.Value[int](t, o.pool, `SELECT count(*)::int FROM outbox.page`); rows != 3 {
		t.Errorf("%d rows keep what was told, want one of each group", rows)
	}
}

func TestAGroupThatGrowsIsToldAsItDoublesAndElseOnceInFiveMinutes(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	pages := 0
	for range 40 {
		o.open(incident.OutcomeUnknown, "sim/act", 1)
		pages += len(o.tell(pager))
	}
	if pages != 6 { // of 1, 2, 4, 8, 16 and 32 incidents
		t.Errorf("40 incidents, one after another, are %d pages, want 6", pages)
	}
	o.assertTold("soon")
	o.exec(`UPDATE outbox.page SET told_at = now() - interval '6 minutes'`)
	o.assertTold("after five minutes", "open 40 of outcome_unknown sim")
	o.exec(`UPDATE outbox.page SET told_at = now() - interval '6 minutes'`)
	o.assertTold("without another one")
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now() WHERE id <= 10`)
	o.open(incident.OutcomeUnknown, "sim/act", 1)
	o.assertTold("with another one, of fewer", "open 31 of outcome_unknown sim")
}

func TestGrowthThatAChannelMissedIsToldAgain(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.open(incident.OutcomeUnknown, "sim/act", 1)
	o.tell(pager)
	o.open(incident.OutcomeUnknown, "sim/act", 5)
	page, _ := o.one()
	o.mustBegin(page)
	o.must(o.missed(t.Context(), pager.Name, page, 0))
	o.assertTold("after a failure", "open 6 of outcome_unknown sim")
}

// A pager that was acknowledged does not wake its human again for the same key.
func TestIncidentsAfterAnAcknowledgementAreAnotherOpening(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.open(incident.OutcomeUnknown, "sim/act", 2)
	first, _ := o.one()
	o.tell(pager)
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now()`)
	o.assertTold("acknowledged", "acknowledged 2 of outcome_unknown sim")
	o.open(incident.OutcomeUnknown, "sim/act", 3)
	second, _ := o.one()
	if second.DedupKey() == first.DedupKey() || second.Count != 3 {
		t.Errorf("%+v follows %+v, want another opening of three", second, first)
	}
	o.assertTold("opened again", "open 3 of outcome_unknown sim")
	o.exec(`UPDATE outbox.incident SET resolved_at = now() WHERE id <= 2`)
	o.assertTold("the first opening ends", "resolved 2 of outcome_unknown sim")
	o.exec(`UPDATE outbox.incident SET resolved_at = now()`)
	o.assertTold("and the second", "resolved 3 of outcome_unknown sim")
}

// Where a transaction commits late, two processes see different first incidents of one group.
func TestAGroupThatWasOpenedTwiceEndsOnce(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.open(incident.OutcomeUnknown, "sim/act", 2)
	for _, id := range []int64{2, 1} {
		o.exec(`INSERT INTO outbox.page (incident_id, generation, channel, told, told_at, sends, count) VALUES ($1, 1, 'pager', 'open', now(), 1, 2)`, id)
	}
	o.assertTold("the second opening has nothing of its own", "resolved 2 of outcome_unknown sim")
	o.assertTold("and the other goes on")
	o.exec(`UPDATE outbox.incident SET resolved_at = now()`)
	o.assertTold("until the end", "resolved 2 of outcome_unknown sim")
}

func TestAChannelGetsWhatItsMatchChooses(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.open(incident.OutcomeUnknown, "sim/act", 1)
	o.open(incident.OutcomeUnknown, "sim/ask", 1)
	o.open(incident.KeyCollision, "sim/act", 1)
	o.open(incident.RefusedIntent, "other/act", 1)
	for name, test := range map[string]struct {
		match incident.Match
		want  []string
	}{
		"no match":  {incident.Match{}, []string{"open 1 of refused_intent other", "open 2 of outcome_unknown sim"}},
		"kinds":     {incident.Match{Kinds: []incident.Kind{incident.KeyCollision}}, []string{"open 1 of key_collision sim"}},
		"providers": {incident.Match{Providers: []string{"other"}}, []string{"open 1 of refused_intent other"}},
		"tools":     {incident.Match{Tools: []string{"sim/ask"}}, []string{"open 1 of outcome_unknown sim"}},
		"all":       {incident.Match{Kinds: []incident.Kind{incident.OutcomeUnknown}, Providers: []string{"other"}}, nil},
	} {
		channel := Channel{Name: name, Repeat: time.Hour, Match: test.match}
		if got := o.tell(channel); !slices.Equal(got, test.want) {
			t.Errorf("%s: told is %q, want %q", name, got, test.want)
		}
		if got := o.tell(channel); got != nil {
			t.Errorf("%s: told is %q again", name, got)
		}
	}
	o.exec(`UPDATE outbox.incident SET resolved_at = now()`)
	other := Channel{Name: "no match", Repeat: time.Hour, Match: incident.Match{Providers: []string{"elsewhere"}}}
	if got := o.tell(other); got != nil {
		t.Errorf("a channel that another configuration narrowed is told %q", got)
	}
}

// A channel's page must not acknowledge incidents that only other channels get.
func TestAPageOfANarrowChannelNamesNoCommandThatAcknowledgesMore(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	for _, tool := range []string{"sim/act", "sim/ask"} {
		o.open(incident.OutcomeUnknown, tool, 2)
		o.open(incident.UnconfiguredProvider, tool, 2)
	}
	const named = "drainer incidents ack INCIDENT... --reason TEXT"
	ofProvider := "drainer incidents ack --kind outcome_unknown --provider sim --reason TEXT"
	ofAll := "drainer incidents ack --kind unconfigured_provider --reason TEXT"
	for name, test := range map[string]struct {
		match incident.Match
		want  []string // of each page the last command
	}{
		"none":      {incident.Match{}, []string{ofProvider, ofAll}},
		"providers": {incident.Match{Providers: []string{"sim"}}, []string{ofProvider, named}},
		"tools":     {incident.Match{Tools: []string{"sim/ask"}}, []string{named, named}},
	} {
		due, err := o.due(t.Context(), Channel{Name: name, Repeat: time.Hour, Match: test.match}, 10)
		o.must(err)
		var got []string
		for _, page := range due {
			todo := page.Todo()
			got = append(got, todo[len(todo)-1])
		}
		slices.Sort(got)
		slices.Sort(test.want)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: the pages end with %q, want %q", name, got, test.want)
		}
	}
}

// Agents may make up names of providers, and each name would be a page.
func TestProvidersThatNobodyConfiguredAreOnePage(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	for n := range 30 {
		o.open(incident.UnconfiguredProvider, fmt.Sprintf("made-up-%d/act", n), 1)
	}
	o.assertTold("all", "open 30 of unconfigured_provider made-up-0")
}

// order returns the incidents in the order in which the channel is told of them.
func (o tables) order(limit int) (incidents []int64) {
	o.t.Helper()
	due, err := o.due(o.t.Context(), pager, limit)
	o.must(err)
	for _, page := range due {
		incidents = append(incidents, page.IncidentID)
	}
	return incidents
}

func TestACollisionOpensOneIncident(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	intent := o.mustEnqueue("s", "sim/act")
	notice := func() { o.must(o.notice(context.Background(), []string{"sim"})) }
	collide := func() {
		if _, err := o.enqueue("s", "sim/act", `{"other": true}`); err == nil {
			t.Fatal("another payload was accepted")
		}
	}
	notice()
	o.assertIncidents(incident.KeyCollision)
	collide()
	collide()
	notice()
	notice()
	o.assertIncidents(incident.KeyCollision, fmt.Sprintf("%d 1 open", intent))

	o.exec(`UPDATE outbox.incident SET acknowledged_at = now(), resolved_at = now()`)
	notice()
	o.assertIncidents(incident.KeyCollision, fmt.Sprintf("%d 1 resolved", intent))
	collide()
	notice()
	o.assertIncidents(incident.KeyCollision, fmt.Sprintf("%d 2 open", intent))
}

func TestLooksThatRaceOpenACollisionOnce(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.mustEnqueue("s", "sim/act")
	if _, err := o.enqueue("s", "sim/act", `{"other": true}`); err == nil {
		t.Fatal("another payload was accepted")
	}
	errs := make(chan error)
	for range 8 {
		go func() { errs <- o.notice(context.Background(), []string{"sim"}) }()
	}
	for range 8 {
		o.must(<-errs)
	}
	o.assertIncidents(incident.KeyCollision, "1 1 open")
}

func TestAnOperationThatNoWorkerKnowsIsAnIncidentAfterAGrace(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.exec(`INSERT INTO outbox.provider (name) VALUES ('sim'), ('other') ON CONFLICT DO NOTHING`)
	first, second := o.mustEnqueue("1", "sim/typo"), o.mustEnqueue("2", "sim/typo")
	o.exec(`UPDATE outbox.queue SET provider = 'sim/typo'`) // as daemons of sim park it
	notice := func() { o.must(o.notice(context.Background(), []string{"sim"})) }
	age := func(minutes int) {
		o.exec(`UPDATE outbox.queue SET next_attempt_at = next_attempt_at - make_interval(mins => $1)`, minutes)
	}
	age(14)
	notice()
	o.assertIncidents(incident.UnknownOperation)
	age(2)
	o.exec(`INSERT INTO outbox.worker (worker_id, providers, tools) VALUES (gen_random_uuid(), '{sim}', '{sim/typo}')`)
	notice()
	o.assertIncidents(incident.UnknownOperation) // a living worker knows it and takes its rows
	o.exec(`DELETE FROM outbox.worker`)
	notice()
	notice()
	o.assertIncidents(incident.UnknownOperation, fmt.Sprintf("%d 1 open", first))
	o.assertIncidents(incident.UnconfiguredProvider) // the provider is configured

	o.exec(`DELETE FROM outbox.queue WHERE intent_id = $1`, first)
	notice()
	o.assertIncidents(incident.UnknownOperation, fmt.Sprintf("%d 1 open", first)) // the next one waits for the same reason
	o.exec(`DELETE FROM outbox.queue WHERE intent_id = $1`, second)
	notice()
	o.assertIncidents(incident.UnknownOperation, fmt.Sprintf("%d 1 resolved", first))
}

func TestAGateThatIsShutBecauseThisSideWasRefusedIsOneIncident(t *testing.T) {
	t.Parallel()
	for kind, gate := range map[incident.Kind]struct{ table, name string }{
		incident.CredentialsRefused: {"provider", "sim"}, incident.Forbidden: {"tool", "sim/act"}, incident.Misconfigured: {"tool", "sim/act"},
	} {
		o := newTables(t)
		o.exec(`INSERT INTO outbox.provider (name) VALUES ('sim') ON CONFLICT DO NOTHING`)
		o.exec(`INSERT INTO outbox.tool (name) VALUES ('sim/act') ON CONFLICT DO NOTHING`)
		first := o.mustEnqueue("1", "sim/act")
		o.mustEnqueue("2", "sim/act")
		o.exec(`UPDATE outbox.queue SET provider = $1`, gate.name)
		notice := func() { o.must(o.notice(t.Context(), []string{"sim"})) }
		become := func(state string, reason any) {
			o.exec(`UPDATE outbox.`+gate.table+` SET state = $2, reason = $3 WHERE name = $1`, gate.name, state, reason)
			notice()
			notice()
		}
		become("open", "failure_rate")
		o.assertIncidents(kind)
		become("open", string(kind))
		o.assertIncidents(kind, fmt.Sprintf("%d 1 open", first))
		become("half_open", string(kind))
		o.exec(`DELETE FROM outbox.queue WHERE intent_id = $1`, first) // its row was claimed and tries the gate
		notice()
		o.assertIncidents(kind, fmt.Sprintf("%d 1 open", first))
		become("closed", nil)
		o.assertIncidents(kind, fmt.Sprintf("%d 1 resolved", first))
	}
}

func TestARefusalOfAForgottenIntentPagesTheChannelsOfItsProvider(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.exec(`INSERT INTO outbox.tool (name, state, reason) VALUES ('sim/act', 'open', 'forbidden')`)
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.assertIncidents(incident.Forbidden, "0 1 open")
	for provider, want := range map[string]string{"sim": "[sim/act]", "other": "[]"} {
		of := pager
		of.Match.Providers = []string{provider}
		due, err := o.due(t.Context(), of, 10)
		o.must(err)
		tools := []string{}
		for _, page := range due {
			tools = append(tools, page.ToolName)
		}
		if fmt.Sprint(tools) != want {
			t.Errorf("the channel of %s is told of %v, want %s", provider, tools, want)
		}
	}
}

// Gates of forgotten intents share an incident. Each channel is told when its own gate shuts, and when it no longer is
// shut.
func TestAChannelIsToldOfItsOwnGateBesideOthers(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	stripe, mail := pager, pager
	stripe.Name, stripe.Match.Providers = "stripe", []string{"stripe"}
	mail.Name, mail.Match.Tools = "mail", []string{"mail/send"}
	assert := func(when string, ofStripe, ofMail []string) {
		t.Helper()
		o.must(o.notice(t.Context(), nil))
		for _, of := range []struct {
			channel Channel
			want    []string
		}{{stripe, ofStripe}, {mail, ofMail}} {
			if got := o.tell(of.channel); !slices.Equal(got, of.want) {
				t.Errorf("%s: %s is told %q, want %q", when, of.channel.Name, got, of.want)
			}
			if got := o.tell(of.channel); got != nil {
				t.Errorf("%s: %s is told %q again", when, of.channel.Name, got)
			}
		}
	}
	closeGate := func(gate string) {
		o.exec(`UPDATE outbox.tool SET state = 'closed', reason = NULL WHERE name = $1`, gate)
	}
	o.shut("stripe/refund", incident.Forbidden, 0)
	assert("stripe forbids", []string{"open 1 of forbidden stripe"}, nil)
	o.shut("mail/send", incident.Forbidden, 0)
	assert("so does mail", nil, []string{"open 1 of forbidden mail"})
	closeGate("stripe/refund")
	assert("stripe allows", []string{"resolved 1 of forbidden "}, nil)
	o.shut("stripe/refund", incident.Forbidden, 0)
	assert("stripe forbids again", []string{"open 1 of forbidden stripe"}, nil)
	closeGate("mail/send")
	closeGate("stripe/refund")
	assert("all allow", []string{"resolved 1 of forbidden stripe"}, []string{"resolved 1 of forbidden mail"})
}

// Only the detail of a refused gate's incident is a name. The details of other incidents are not.
func TestWhyAnIncidentWasOpenedIsTakenForNoProvider(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail) VALUES
		('saga_stalled', 0, 'run', 'passes_died'), ('compensation_failed', 99, 'run', 'steps_forgotten'), ('history_changed', 0, '', 'another timeline')`)
	due, err := o.due(t.Context(), pager, 10)
	o.must(err)
	for _, page := range due {
		if page.ToolName != "" {
			t.Errorf("%s is of %q", page.Kind, page.ToolName)
		}
	}
	if len(due) != 3 {
		t.Errorf("due are %+v, want three", due)
	}
}

func TestMadeUpOperationsPageFewTimesAndHideNoProvider(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.exec(`INSERT INTO outbox.provider (name) VALUES ('sim') ON CONFLICT DO NOTHING`)
	for n := range 30 {
		o.mustEnqueue(fmt.Sprint(n), fmt.Sprintf("sim/made-up-%d", n))
	}
	o.exec(`UPDATE outbox.queue q SET provider = i.tool_name FROM outbox.intent i WHERE i.id = q.intent_id`)
	typo, last := o.mustEnqueue("a", "sim-eu/act"), o.mustEnqueue("b", "sim0/act")
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() - interval '1 day'`)
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.must(o.notice(t.Context(), []string{"sim"}))
	if open := drainertest.Value[int](t, o.pool, `SELECT count(*) FROM outbox.incident WHERE kind = 'unknown_operation'`); open != 20 {
		t.Errorf("%d incidents are open, want 20", open)
	}
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 open", typo), fmt.Sprintf("%d 1 open", last))
}

func TestRowsThatWaitForAnUnconfiguredProviderAreOneIncident(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.mustEnqueue("1", "sim/act")
	first, second := o.mustEnqueue("2", "typo/act"), o.mustEnqueue("3", "typo/act")
	notice := func(configured ...string) { o.must(o.notice(context.Background(), configured)) }
	age := func(minutes int) {
		o.exec(`UPDATE outbox.queue SET next_attempt_at = next_attempt_at - make_interval(mins => $1)`, minutes)
	}
	age(4)
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider)
	age(2)
	notice("sim")
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 open", first))

	// The oldest row goes, and the next one waits for the same reason.
	o.exec(`DELETE FROM outbox.queue WHERE intent_id = $1`, first)
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 open", first))
	notice("sim", "typo")
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 resolved", first))
	notice("sim")
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 resolved", first), fmt.Sprintf("%d 1 open", second))

	o.exec(`DELETE FROM outbox.queue`)
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 resolved", first), fmt.Sprintf("%d 1 resolved", second))
}

func TestAStuckProviderThatWasAcknowledgedIsNotOpenedAgain(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	intent := o.mustEnqueue("1", "typo/act")
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() - interval '6 minutes'`)
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.exec(`UPDATE outbox.incident SET acknowledged_at = now()`)
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 open", intent))
	if due, err := o.due(t.Context(), pager, 10); err != nil || len(due) != 0 {
		t.Errorf("due are %v, %v; want no page", due, err)
	}

	o.must(o.notice(t.Context(), []string{"typo"}))
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 2 open", intent))
}

func TestAProviderThatAnotherWorkerServesIsConfigured(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	intent := o.mustEnqueue("1", "mail/send")
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() - interval '6 minutes'`)
	o.exec(`INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{mail, fax}')`)
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.assertIncidents(incident.UnconfiguredProvider)

	o.exec(`DELETE FROM outbox.worker`)
	o.must(o.notice(t.Context(), []string{"sim"}))
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 open", intent))
}

func TestWhatADeadWorkerLeftAtAProviderThatIsGoneIsAnIncident(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	settled, intent := o.mustEnqueue("1", "gone/act"), o.mustEnqueue("2", "gone/act")
	o.exec(`DELETE FROM outbox.queue`)
	o.exec(`INSERT INTO outbox.claim (worker_id, provider, server, claimed_at, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
		VALUES (gen_random_uuid(), 'gone', 'gone', now() - interval '4 minutes', ARRAY[$1, $2]::bigint[], '{1,1}', '{1,1}', '{now,now}', '{f,f}', '{f,f}', '{NULL,NULL}')`, settled, intent)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'completed', 'completed')`, settled)
	notice := func(configured ...string) { o.must(o.notice(t.Context(), configured)) }
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider)
	o.exec(`UPDATE outbox.claim SET claimed_at = now() - interval '6 minutes'`)
	notice("gone")
	o.exec(`INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{gone}')`)
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider) // a living worker takes it over

	// The worker that claimed the row lives and settles it, although a reload took the provider from the worker.
	o.exec(`UPDATE outbox.worker SET providers = '{}', worker_id = (SELECT worker_id FROM outbox.claim)`)
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider)

	o.exec(`DELETE FROM outbox.worker`)
	notice("sim")
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 open", intent))
	o.exec(`DELETE FROM outbox.claim`)
	notice("sim")
	o.assertIncidents(incident.UnconfiguredProvider, fmt.Sprintf("%d 1 resolved", intent))
}

func TestTheBackoffOfAPageEndsAtAMinute(t *testing.T) {
	t.Parallel()
	longest := time.Duration(0)
	for failures := range 200 {
		delay := Backoff(failures + 1)
		if delay < 0 || delay > time.Minute {
			t.Errorf("after %d failures it waits %v", failures+1, delay)
		}
		longest = max(longest, delay)
	}
	if longest < 30*time.Second {
		t.Errorf("it never waits longer than %v", longest)
	}
}

func TestTheDrainersRoleIsEnough(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	o.mustEnqueue("s", "typo/act")
	if _, err := o.enqueue("s", "typo/act", `{"other": true}`); err == nil {
		t.Fatal("another payload was accepted")
	}
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() - interval '6 minutes'`)

	config := o.pool.Config()
	config.ConnConfig.RuntimeParams["role"] = "outbox_drainer"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	o.must(err)
	t.Cleanup(pool.Close)
	drainer := store{pool}
	for range 2 { // opens, then finds open
		o.must(drainer.notice(t.Context(), []string{"sim"}))
	}
	due, err := drainer.due(t.Context(), pager, 10)
	o.must(err)
	for _, page := range due {
		_, err := drainer.begin(t.Context(), pager.Name, page)
		o.must(err)
		o.must(drainer.recordSent(t.Context(), pager.Name, page))
	}
	if len(due) != 2 {
		t.Errorf("%d pages were due, want two", len(due))
	}
}

// The agent that enqueues chooses a tool's name. The name must not add a line, a text direction or a mention to a page,
// and programs must still be able to read the page.
func FuzzAToolsNameWritesNoPage(f *testing.F) {
	for _, seed := range []string{
		"stripe/create_charge", "", "/", "x/<!channel>\n```all is well```", "a\r\nb\u0085c\u2028d\u2029e\vf\fg", "\u202eegrahc\u202c/\u2066x", "&lt;!here&gt;", "`x`",
		"pay/https://evil.example/login", "pay/evil.example", "@here/#ops", "pay/*paid* _all_ ~well~", "ann@evil.example", "שלום/x",
		"\x1b[2J", "p/\x00", "p/\xff", "p/\ufeff\u200b", strings.Repeat("é/", 85), "```", "p/*bold*",
	} {
		f.Add(seed, "operator:on-call")
		f.Add("p/o", seed)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, name, by string) {
		for _, state := range []State{Open, Acknowledged, Resolved} {
			page := Page{IncidentID: 7, Generation: 1, State: state, Kind: incident.OutcomeUnknown, IntentID: 42, ToolName: name, OpenedAt: at, By: "ann"}
			if state != Open && by != "" {
				page.By = by
			}
			plain := page
			plain.By = "ann"
			if name != "" { // a page without one says so
				plain.ToolName = "p/o"
			}
			told, want := slackText(page), slackText(plain)
			for _, mark := range []string{"\n", "`", "<", ">", "*"} {
				if strings.Count(told, mark) != strings.Count(want, mark) {
					t.Errorf("%q becomes %q", name, told)
				}
			}
			alert := newAlert(page, at)
			// With these characters, clients show a text outside of code as a link, a mention or bold.
			for _, text := range []string{page.Summary(), alert.Labels["provider"], alert.Labels["operation"], page.details().Operation, page.details().Provider} {
				if strings.ContainsAny(strings.TrimPrefix(text, "outcome_unknown: "), ".:@#*~<>&`\\\"'") {
					t.Errorf("%q becomes %q", name, text)
				}
			}
			for _, line := range append(strings.Split(told, "\n"), page.Summary(), page.details().By, alert.Labels["provider"], alert.Labels["operation"], page.details().Operation) {
				if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
					t.Errorf("%q becomes %q", name, line)
				}
			}
			var read details
			if text, err := json.Marshal(page.details()); err != nil || json.Unmarshal(text, &read) != nil || read.IntentID != 42 || read.State != state {
				t.Errorf("%q of %q is told as %s, %v", name, by, text, err)
			}
		}
	})
}

func TestARequestThatDoesNotReachTheDatabaseSaysWhatItWas(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	over, end := context.WithCancel(t.Context())
	end()
	for want, ask := range map[string]func() error{
		"look for page jobs: ":      func() error { _, err := o.waits(over, pager); return err },
		"look for due pages: ":      func() error { _, err := o.due(over, pager, 1); return err },
		"look for key collisions: ": func() error { return o.notice(over, nil) },
		"begin a page: ":            func() error { _, err := o.begin(over, "pager", Page{}); return err },
		"put a page off: ":          func() error { return o.missed(over, "pager", Page{}, 0) },
		"record a page: ":           func() error { return o.recordSent(over, "pager", Page{}) },
	} {
		if err := ask(); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q and the cause", err, want)
		}
	}
}

func TestAChannelThatDoesNotAnswerInTimeIsOutOfReach(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client has gone
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := NewSlack(silent.URL+"/canary").Send(ctx, Page{})
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "canary") {
		t.Errorf("it says %v, want that the time was up, without the address", err)
	}
}

// JSON has no form for a time of more than four digits a year.
func TestAPageThatCannotBeWrittenIsNotSent(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }))
	t.Cleanup(server.Close)
	webhook, err := NewWebhook(server.URL, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	page := Page{State: Open, OpenedAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}
	for name, sender := range map[string]Sender{"pagerduty": NewPagerDuty(server.URL, "R0"), "webhook": webhook} {
		if err := sender.Send(t.Context(), page); err == nil || !strings.HasPrefix(err.Error(), "write the page: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type sent struct{ t *testing.T }

func (s sent) Send(context.Context, Page) error {
	s.t.Error("it was sent")
	return nil
}

// If it were sent, no process could find out later that the channel may have got it.
func TestAPageThatCannotBeNotedIsNotSent(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	over, end := context.WithCancel(t.Context())
	end()
	channel := Channel{Name: "pager", Sender: sent{t}}
	p := New(o.pool, Defaults([]Channel{channel}, nil), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if _, err := p.deliver(over, channel, Page{}); !errors.Is(err, context.Canceled) {
		t.Errorf("begun without a database: %v", err)
	}
	if err := (&sendWorker{pager: p}).Work(over, &river.Job[sendArgs]{Args: sendArgs{Channel: "pager"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("looked up without a database: %v", err)
	}
}

func TestAPageReachesNoMetadataServiceAndNoAmbientProxy(t *testing.T) {
	t.Parallel()
	if err := post(t.Context(), "http://169.254.169.254/page", http.Header{}, nil); !errors.Is(err, dispatch.ErrEgressRefused) {
		t.Errorf("%v, want a refusal by the egress rules", err)
	}
	if client.Transport.(*http.Transport).Proxy != nil {
		t.Error("a variable of the environment names a proxy that sees every page")
	}
}
