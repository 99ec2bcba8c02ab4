package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// stuck returns an outbox with a run of three steps: the first completed, the second could not be undone, the third
// failed.
func stuck(t *testing.T) (url string, db *pgxpool.Pool) {
	t.Helper()
	t.Setenv("USER", "on-call")
	url = drainertest.Database(t)
	db = drainertest.Connect(t, url)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'doomed', 'step-' || n, 'sim/act', 'scope', '{}' FROM generate_series(1, 3) n`)
	drainertest.Exec(t, db, `DELETE FROM outbox.queue`)
	drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES
		(1, 1, 'w', 'completed', 'completed'), (2, 1, 'w', 'completed', 'completed'), (3, 1, 'w', 'rejected', 'failed'),
		(2, 2, 'saga', 'not_undone', 'compensation_failed')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.saga (agent_run_id, cause, state, ended_at) VALUES ('doomed', 3, 'compensation_failed', now())`)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('compensation_failed', 2, 'doomed')`)
	return url, db
}

func TestAPageLeadsToTheEndOfASaga(t *testing.T) {
	url, db := stuck(t)
	says := func(code int, want string, args ...string) {
		t.Helper()
		got := run(t, append(args, "--database-url", url)...)
		if got.code != code || !strings.Contains(got.stdout+got.stderr, want) {
			t.Errorf("%v exits with %d, want %d and %q:\n%s%s", args, got.code, code, want, got.stdout, got.stderr)
		}
	}
	says(exitOK, "sagas failed: 1", "status")
	says(exitOK, `"incidents_open": 1`, "status", "-o", "json")
	says(exitOK, "doomed", "incidents", "list")
	says(exitOK, "doomed", "sagas", "show", "--intent", "2")
	says(exitUsage, "or by --intent ID", "sagas", "show")
	says(exitUsage, "or by --intent ID", "sagas", "show", "doomed", "--intent", "2")
	says(exitFailed, "no such intent: 4711", "sagas", "show", "--intent", "4711")
	says(exitFailed, "drainer sagas retry --intent 2", "intents", "retry", "2", "--reason", "again")
	says(exitFailed, "intent 1: only a step", "sagas", "retry", "--intent", "2", "--undone", "2,1", "--reason", "by hand")
	says(exitOK, "begun", "sagas", "retry", "--intent", "2", "--undone", "2", "--reason", "by hand")
	drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (3, 2, 'w', 'ambiguous', 'unknown')`)
	says(exitOK, "waits for intent 3 (unknown): drainer intents resolve 3", "sagas", "show", "doomed")
	says(exitOK, "left as they are: intents 1\n", "sagas", "resolve", "doomed", "--reason", "settled")
}

func TestAStepResolvedAsFailedNamesTheWayBack(t *testing.T) {
	url, db := stuck(t)
	resolve := func() result {
		drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
			SELECT 3, max(attempt) + 1, 'w', 'ambiguous', 'unknown' FROM outbox.attempt WHERE intent_id = 3`)
		return run(t, "intents", "resolve", "3", "--as", "failed", "--reason", "no such charge", "--database-url", url)
	}
	if got := resolve(); got.code != exitOK || got.stderr != "" {
		t.Errorf("in a run that is compensated: %+v", got)
	}
	drainertest.Exec(t, db, `DELETE FROM outbox.saga`)
	want := fmt.Sprintln("its run is not compensated by itself: drainer compensate --intent 3")
	if got := resolve(); got.code != exitOK || got.stderr != want {
		t.Errorf("%+v, want %q", got, want)
	}
}

func TestAResolvedSagaListsWhatStandsForPrograms(t *testing.T) {
	url, _ := stuck(t)
	got := run(t, "sagas", "resolve", "doomed", "--reason", "settled", "-o", "json", "--database-url", url)
	if got.code != exitOK || !strings.Contains(strings.Join(strings.Fields(got.stdout), ""), `"left_standing":[1]`) {
		t.Errorf("%+v", got)
	}
}

func TestARetriedSagaSaysWhichUndosKeepTheirKeys(t *testing.T) {
	url, db := stuck(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 2, 'saga', 'not_undone', 'compensation_failed')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		SELECT 'doomed', 'compensate:step-' || n, 'sim/undo', 'scope', '{}', n FROM generate_series(1, 2) n`)
	drainertest.Exec(t, db, `DELETE FROM outbox.queue`)
	retry := func(flags ...string) result {
		drainertest.Exec(t, db, `DELETE FROM outbox.queue`)
		drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status)
			SELECT i.id, 1 + coalesce((SELECT max(attempt) FROM outbox.attempt a WHERE a.intent_id = i.id), 0), 'w', now(), outcome, status
			FROM (VALUES (1, 'not_undone', 'compensation_failed'), (2, 'not_undone', 'compensation_failed'), (4, 'rejected', 'failed'), (5, 'ambiguous', 'unknown')) AS x (id, outcome, status)
			JOIN outbox.intent i USING (id)`)
		drainertest.Exec(t, db, `UPDATE outbox.saga SET state = 'compensation_failed', ended_at = now()`)
		return run(t, append([]string{"sagas", "retry", "doomed", "--reason", "again", "--database-url", url}, flags...)...)
	}
	const want = "\nundos with a new key: 1\nwith their old key, because they may have been applied: intents 5\n"
	if got := retry("--new-key"); got.code != exitOK || !strings.HasSuffix(got.stdout, want) {
		t.Errorf("%+v, want %q", got, want)
	}
	if got := retry("--new-key", "-o", "json"); !strings.Contains(strings.Join(strings.Fields(got.stdout), ""), `"new_keys":[4],"kept_keys":[5]`) {
		t.Errorf("JSON: %+v", got)
	}
	if got := retry("--new-key", "--undone", "2"); !strings.HasSuffix(got.stdout, "\nundos with a new key: 1\n") {
		t.Errorf("the other was undone by hand: %+v", got)
	}
	if got := retry(); strings.Contains(got.stdout, "key") {
		t.Errorf("without new keys: %+v", got)
	}
}

// toldRun returns a run with a step that was retried and applied, its undo, and a step that failed.
func toldRun() (story *operator.RunStory, now time.Time) {
	begin := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) *time.Time {
		t := begin.Add(time.Duration(seconds) * time.Second)
		return &t
	}
	undo := operator.Intent{IntentID: 3, ToolName: "payments/refund", CreatedAt: *at(14), FinishedAt: at(20)}
	return &operator.RunStory{
		Steps: []operator.SagaStep{
			{Intent: operator.Intent{IntentID: 1, ToolName: "payments/charge\x1b[2J", CreatedAt: begin, FinishedAt: at(20)}, Undo: &undo},
			{Intent: operator.Intent{IntentID: 2, ToolName: "shipping/" + strings.Repeat("courier", 8), CreatedAt: *at(4), FinishedAt: at(12)}},
		},
		Spans: []operator.Span{
			{IntentID: 1, Attempt: 1, StartedAt: at(1), FinishedAt: *at(3), NextAttemptAt: at(5)},
			{IntentID: 1, Attempt: 2, StartedAt: at(5), FinishedAt: *at(6), Status: "completed"},
			{IntentID: 1, Attempt: 3, FinishedAt: *at(20), Status: "compensated"},
			{IntentID: 2, Attempt: 1, StartedAt: at(8), FinishedAt: *at(12), Status: "failed"},
			{IntentID: 3, Attempt: 1, StartedAt: at(14), FinishedAt: *at(20), Status: "completed"},
		},
	}, begin.Add(time.Hour)
}

func TestATimelineIsDrawnIn80ColumnsAndWithoutColours(t *testing.T) {
	t.Parallel()
	story, now := toldRun()
	const want = `                            0                                                20s
1 payments/charge\x1b[2J    ··▒▒▒▒▒▒·····███···································|
2 shipping/couriercourier…            ··········xxxxxxxxxxxx
────────────────────────────────────────────────────────────────────────────────
3 payments/refund                                               ████████████████
█ applied  ▒ tried again  ? lookup  x failed  ! in doubt  | decided  · waiting
`
	if drawn := drawTimeline(screen{columns: 80, now: now}, story); drawn != want {
		t.Errorf("drawn:\n%s\nwant:\n%s", drawn, want)
	}
	for line := range strings.SplitSeq(want, "\n") {
		if displayWidth(line) > 80 {
			t.Errorf("%d columns: %q", displayWidth(line), line)
		}
	}
	if painted := drawTimeline(screen{columns: 80, now: now, colours: true}, story); !strings.Contains(painted, "\x1b[31mxxxxxxxxxxxx\x1b[0m") {
		t.Errorf("a failed attempt is not red:\n%q", painted)
	}
}

func TestARunsTimelineIsShownIn80Columns(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates, created_at)
		SELECT 'trip', step, tool, 'scope', '{}', undoes, '2026-11-25 12:00Z'::timestamptz + at * interval '1 s'
		FROM (VALUES ('pay', 'payments/charge', NULL, 0), ('ship', 'shipping/' || repeat('courier', 8), NULL, 4), ('compensate:pay', 'payments/refund', 1, 14)) AS s (step, tool, undoes, at) ORDER BY at`)
	drainertest.Exec(t, db, `DELETE FROM outbox.queue`)
	drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, next_attempt_at)
		SELECT intent, attempt, 'w', '2026-11-25 12:00Z'::timestamptz + began * interval '1 s', '2026-11-25 12:00Z'::timestamptz + ended * interval '1 s', outcome, status, '2026-11-25 12:00Z'::timestamptz + again * interval '1 s'
		FROM (VALUES (1, 1, 1, 3, 'throttled', 'pending', 5), (1, 2, 5, 6, 'completed', 'completed', NULL), (1, 3, NULL, 20, 'undone', 'compensated', NULL),
			(2, 1, 8, 12, 'rejected', 'failed', NULL), (3, 1, 14, 20, 'completed', 'completed', NULL)) AS a (intent, attempt, began, ended, outcome, status, again)`)
	story, now := toldRun()
	story.Steps[0].ToolName = "payments/charge"
	got := run(t, "runs", "show", "trip", "--timeline", "--database-url", url)
	if want := drawTimeline(screen{columns: 80, now: now}, story); got != (result{exitOK, want, ""}) {
		t.Errorf("%d, %s\n%s\nwant:\n%s", got.code, got.stderr, got.stdout, want)
	}
}

// The end of a list shows the command for the next page, until there is none.
func TestTheEndOfAListLeadsToTheNextPage(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run ' || n, 's', 'sim/act', 'b', '{}' FROM generate_series(1, 3) n`)
	drainertest.Exec(t, db, `INSERT INTO outbox.saga (agent_run_id, begun_at) SELECT agent_run_id, now() - id * interval '1 hour' FROM outbox.intent`)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) SELECT 'outcome_unknown', id, agent_run_id FROM outbox.intent`)
	for _, test := range []struct {
		args []string
		more string
	}{
		{[]string{"intents", "list", "--tool", "sim/act", "--since", "2h", "--limit", "2"}, "  drainer intents list --limit 2 --since 2h --tool sim/act --cursor 2\n"},
		{[]string{"incidents", "list", "--all", "--limit", "2"}, "  drainer incidents list --all --limit 2 --cursor 2\n"},
		{[]string{"sagas", "list", "--limit", "2"}, "  drainer sagas list --limit 2 --cursor 'run 2'\n"},
	} {
		got := run(t, append(test.args, "--database-url", url)...)
		if got.code != exitOK || !strings.Contains(got.stdout, "\nMore:\n"+test.more) {
			t.Errorf("%v: %+v, want %q", test.args, got, test.more)
		}
		_, cursor, _ := strings.Cut(strings.TrimSpace(test.more), " --cursor ")
		last := run(t, append(test.args, "--cursor", strings.Trim(cursor, "'"), "--database-url", url)...)
		if last.code != exitOK || strings.Contains(last.stdout, "More:") || !strings.Contains(last.stdout, "run ") {
			t.Errorf("%v, the last page: %+v", test.args, last)
		}
	}
	got := run(t, "intents", "list", "--limit", "2", "-o", "json", "--database-url", url)
	if !strings.HasSuffix(got.stdout, "]\n") || !strings.Contains(got.stderr, "--cursor 2") {
		t.Errorf("JSON: %+v", got)
	}
}

func TestATimeIsAgoOrAPointInTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2h":                   time.Now().Add(-2 * time.Hour),
		"7d":                   time.Now().Add(-7 * 24 * time.Hour),
		"2026-01-31":           time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local),
		"2026-01-31 15:04":     time.Date(2026, 1, 31, 15, 4, 0, 0, time.Local),
		"2026-01-31T15:04:05Z": time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
	} {
		var got time.Time
		if err := (&instant{at: &got}).Set(text); err != nil || got.Sub(want).Abs() > time.Minute {
			t.Errorf("%s is %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-2h", "yesterday", "2026-13-01"} {
		if err := (&instant{at: new(time.Time)}).Set(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
