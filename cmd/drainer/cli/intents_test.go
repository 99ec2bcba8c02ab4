package cli

import (
	"encoding/json"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

// For any command line of an operator, nothing changes without a signature, or in bulk without --yes. Each change is
// signed in the history. The output repeats no payload, and has no control characters for a terminal.
func FuzzAnOperatorsCommandLine(f *testing.F) {
	for _, seed := range []struct{ verb, id, flags, reason string }{
		{"cancel", "1", "", "because"},
		{"cancel", "1", "", ""},
		{"cancel", "", "--run=r\x00--yes=true", "because"},
		{"cancel", "", "--run=r", ""},
		{"cancel", "", "--older-than=0s\x00--yes", "two\nlines"},
		{"cancel", "", "--older-than=-1ns\x00--limit=9223372036854775808", "because"},
		{"cancel", "", "--older-than=106751d\x00--status=pending,\x00--limit=0", "because"},
		{"cancel", "9223372036854775808", "--status=pending", "because"},
		{"resolve", "2", "--as=completed\x00--provider-ref=ch_1\xff", "because"},
		{"resolve", "2", "--as=completed\x00--provider-ref=\u2028", "because"},
		{"resolve", "2", "--as=failed\x00--provider-ref=ch_1", "because"},
		{"resolve", "", "--as=completed\x00--run=r\x00--step=2\x00--tool=sim/act\x00--scope=s", "because"},
		{"resolve", "", "--as=sideways\x00--provider=sim\x00--yes", "because"},
		{"resolve", "-1", "--as=failed\x00--run=r\x00--operator=\x1b[2J", "because"},
		{"retry", "2", "--status=failed", "be\u202ecause"},
		{"enqueue", "", "--run=r\x00--step=9\x00--tool=sim/act\x00--scope=s\x00--payload={\"secret-of-it\": 9007199254740993}", ""},
		{"enqueue", "", "--run=r\x00--step=1\x00--tool=sim/act\x00--scope=s\x00--payload={\"secret-of-it\": 1}", ""},
		{"enqueue", "", "--run=r\x00--step=9\x00--tool=sim/act\x00--scope=s\x00--payload=\"secret-of-it\\u0000\"", ""},
		{"enqueue", "", "--run=\xff\x00--step=\x00--tool=/\x00--scope=" + strings.Repeat("s", 300) + "\x00--payload={secret-of-it", ""},
	} {
		f.Add(seed.verb, seed.id, seed.flags, seed.reason)
	}
	f.Setenv("USER", "")
	url := drainertest.Database(f)
	db := drainertest.Connect(f, url)
	if _, err := db.Exec(f.Context(), `SELECT setval(pg_get_serial_sequence('outbox.intent', 'id'), 100)`); err != nil { // see restock
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, verb, id, flags, reason string) {
		args := []string{"intents", verb}
		if verb == "enqueue" {
			args = args[1:]
		} else if !slices.Contains([]string{"cancel", "resolve", "retry"}, verb) {
			return
		}
		for _, flag := range strings.Split(flags, "\x00") {
			name, value, _ := strings.Cut(flag, "=")
			if !slices.Contains(flagsOf, name) || strings.HasPrefix(value, "@") {
				continue // another server, or a file of this machine
			}
			args = append(args, flag)
		}
		if reason != "" {
			args = append(args, "--reason="+reason, "--operator=on-call")
		}
		args = append(args, "--database-url="+url)
		if id != "" {
			args = append(args, "--", id)
		}
		before := restock(t, db)
		got := run(t, args...)
		checkWords(t, args, got)
		checkHistory(t, db, before, args, reason)
	})
}

var flagsOf = []string{
	"--run", "--step", "--tool", "--scope", "--status", "--provider", "--older-than", "--limit", "--yes", "--as", "--provider-ref", "--payload", "--operator", "-o", "--output",
}

// restock resets the outbox to three intents: one waits, one failed and one has an unknown outcome. It returns the
// number of their attempts.
func restock(t *testing.T, db *pgxpool.Pool) (attempts int) {
	t.Helper()
	_, err := db.Exec(t.Context(), `DELETE FROM outbox.intent; DELETE FROM outbox.queue; DELETE FROM outbox.attempt; DELETE FROM outbox.duplicate;
		INSERT INTO outbox.intent (id, agent_run_id, step_id, tool_name, business_scope, payload) OVERRIDING SYSTEM VALUE
		SELECT n, 'r', n::text, 'sim/act', 's', '{}' FROM generate_series(1, 3) n;
		DELETE FROM outbox.queue WHERE intent_id > 1;
		INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status)
		VALUES (2, 1, 'w', now(), 'rejected', 'failed'), (3, 1, 'w', now(), 'ambiguous', 'unknown')`)
	if err != nil {
		t.Fatal(err)
	}
	return 2
}

func checkWords(t *testing.T, args []string, got result) {
	t.Helper()
	if !slices.Contains([]int{exitOK, exitFailed, exitUsage}, got.code) || (got.code != exitOK && got.stderr == "") {
		t.Errorf("%q exits with %d: %s%s", args, got.code, got.stdout, got.stderr)
	}
	if strings.Contains(got.stderr+got.stdout, "secret-of-it") {
		t.Errorf("%q repeats the payload: %s%s", args, got.stdout, got.stderr)
	}
	if said := strings.ReplaceAll(got.stderr, "\n", ""); strings.ContainsFunc(said, isUnprintable) {
		t.Errorf("%q says %q", args, said)
	}
	var receipt operator.Receipt
	if args[0] == "enqueue" && got.code == exitOK && json.Unmarshal([]byte(got.stdout), &receipt) == nil {
		tuple := dispatch.Tuple{AgentRunID: valueOf(args, "--run"), StepID: valueOf(args, "--step"), ToolName: valueOf(args, "--tool"), BusinessScope: valueOf(args, "--scope")}
		if receipt.IdempotencyKey != tuple.IdempotencyKey() {
			t.Errorf("%q has the key %s, want %s", args, receipt.IdempotencyKey, tuple.IdempotencyKey())
		}
	}
}

func checkHistory(t *testing.T, db *pgxpool.Pool, before int, args []string, reason string) {
	t.Helper()
	drainertest.AssertInvariant(t, db)
	var changed, unsigned int
	err := db.QueryRow(t.Context(), `SELECT count(*) - $1, count(*) FILTER (WHERE worker IS NULL AND (reason IS DISTINCT FROM $2 OR operator !~ '^operator:.'))
		FROM outbox.attempt`, before, strings.ToValidUTF8(strings.ReplaceAll(reason, "\x00", ""), "")).Scan(&changed, &unsigned)
	switch {
	case err != nil:
		t.Fatal(err)
	case unsigned > 0:
		t.Errorf("%q changes %d intents without a signature", args, unsigned)
	case changed > 0 && strings.TrimSpace(reason) == "":
		t.Errorf("%q changes %d intents without a reason", args, changed)
	case changed > 0 && !slices.ContainsFunc(args, namesOneOrSaysYes):
		t.Errorf("%q changes %d intents unasked", args, changed)
	}
}

func namesOneOrSaysYes(arg string) bool {
	return arg == "--" || slices.ContainsFunc([]string{"--step=", "--tool=", "--scope=", "--yes"}, func(flag string) bool { return strings.HasPrefix(arg, flag) })
}

// valueOf returns the last value that a flag was given.
func valueOf(args []string, flag string) (value string) {
	for _, arg := range args {
		if given, is := strings.CutPrefix(arg, flag+"="); is {
			value = given
		}
	}
	return value
}

// inDoubt returns an outbox whose only intent, of stripe/create_charge, is unknown, with its incident.
func inDoubt(t *testing.T) (url string) {
	t.Helper()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		VALUES ('run-1', 'step-1', 'stripe/create_charge', 'scope', '{}')`)
	drainertest.Exec(t, db, `DELETE FROM outbox.queue`)
	drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, http_status, error, problem)
		VALUES (1, 1, 'w', now() - interval '1250 milliseconds', now(), 'ambiguous', 'unknown', 502, 'http_502', '{"title": "Bad gateway", "detail": "no upstream\u001b[31m"}')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 1, 'run-1')`)
	return url
}

func TestShowEndsWithTheCommandsThatFitTheRow(t *testing.T) {
	t.Parallel()
	url, file := inDoubt(t), writeValid(t)
	retry := `  drainer intents retry 1 --reason "same key" --config ` + file
	for _, args := range [][]string{{"intents", "show", "1"}, {"incidents", "show", "1"}, {"incidents", "list"}} {
		got := run(t, append(args, "--config", file, "--database-url", url)...)
		if got.code != exitOK || !strings.Contains(got.stdout, retry+"\n") {
			t.Errorf("%v: %d, %s%s", args, got.code, got.stdout, got.stderr)
		}
	}
	if got := run(t, "incidents", "show", "8", "--database-url", url); got.code != exitFailed || !strings.Contains(got.stderr, "no incident has this number") {
		t.Errorf("another incident: %+v", got)
	}
}

func TestAnIncidentSaysWhyItHasNoTool(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 7, 'run-1'), ('history_changed', 0, ''), ('saga_stalled', 0, 'run-1')`)
	for incident, want := range map[string]string{"1": "the intent was pruned", "2": "the whole outbox", "3": "the intent was pruned"} {
		if got := run(t, "incidents", "show", incident, "--database-url", url); !strings.Contains(got.stdout, want+"\n") {
			t.Errorf("incident %s: %+v", incident, got)
		}
	}
	got := run(t, "incidents", "show", "2", "--database-url", url)
	if strings.Contains(got.stdout, "\nintent ") || strings.Contains(got.stdout, "\nrun ") {
		t.Errorf("it names an intent or a run: %s", got.stdout)
	}
}

func TestAPageOfManyIncidentsIsAcknowledgedAsOne(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	const many = 250 // more than one batch
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
		SELECT 'outcome_unknown', e.intent_id, 'run' FROM generate_series(1, $1::int) n, outbox.enqueue('run', n::text, CASE n WHEN $1 THEN 'mail' ELSE 'stripe' END || '/act', 's', '{}') e
		UNION ALL VALUES ('refused_intent', 1, 'run')`, many)
	left := func() int {
		return drainertest.Value[int](t, db, `SELECT count(*)::int FROM outbox.incident WHERE acknowledged_at IS NULL`)
	}
	chosen := []string{"incidents", "ack", "--kind", "outcome_unknown", "--provider", "stripe", "--database-url", url}
	look := run(t, append(chosen, "--reason", "outage")...)
	_, ready, _ := strings.Cut(look.stdout, "249 would be acknowledged, 0 resolved. Nothing has changed yet. To do it:\n  drainer ")
	if look.code != exitOK || ready == "" || left() != many+1 {
		t.Fatalf("looking: %d are left, %+v", left(), look)
	}
	// One incident opens after the look, and one is older than the oldest that was shown.
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at)
		SELECT 'outcome_unknown', e.intent_id, 'run', now() + n * interval '1 hour' FROM unnest(ARRAY[-1, 1]) n, outbox.enqueue('run', 'late' || n, 'stripe/act', 's', '{}') e`)
	for _, test := range []struct {
		args []string
		code int
		says string
		left int
	}{
		{append(chosen, "-o", "json"), exitOK, `"dry_run": true`, many + 3},
		{append(chosen, "--yes", "--reason", "outage"), exitUsage, "--yes needs --until", many + 3},
		{append(chosen, "--yes", "--until", "0s", "--operator", "on-call"), exitUsage, "--reason is empty", many + 3},
		{append(chosen, "7"), exitUsage, "and not both", many + 3},
		{[]string{"incidents", "ack", "7", "--until", "1h", "--reason", "x"}, exitUsage, "and not both", many + 3},
		{[]string{"incidents", "ack", "--kind", "outcome_unknown", "--provider", ""}, exitUsage, "--provider is empty", many + 3},
		{[]string{"incidents", "ack", "--kind", "", "--provider", "stripe"}, exitUsage, "--kind is empty", many + 3},
		{append(strings.Fields(ready), "--database-url", url), exitOK, "249 acknowledged, 0 resolved, 0 refused.\n", 4},
		{append(strings.Fields(ready), "--database-url", url), exitOK, "No such incident is open.\n", 4},
		{[]string{"incidents", "ack", "--kind", "refused_intent", "--database-url", url}, exitOK, "0 would be acknowledged, 1 resolved.", 4},
		{[]string{"incidents", "ack", "--kind", "refused_intent", "--until", "0s", "--yes", "--reason", "known", "--database-url", url}, exitOK, "stripe/act", 3},
	} {
		got := run(t, test.args...)
		if got.code != test.code || !strings.Contains(got.stdout+got.stderr, test.says) || left() != test.left {
			t.Errorf("%v: %d are left, %+v", test.args, left(), got)
		}
	}
	if got := run(t, "incidents", "ack", "--kind", "outage", "--database-url", url); got.code != exitUsage || !strings.Contains(got.stderr, "there is no such kind") {
		t.Errorf("another kind: %+v", got)
	}
}

// A listing looks at a bounded number of incidents. Acknowledged ones whose cause is not gone are among them.
func TestAnOldIncidentBehindManyOthersIsAcknowledged(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at, acknowledged_at)
		SELECT 'outcome_unknown', CASE n WHEN $1 THEN e.intent_id ELSE -n END, 'run', now() - n * interval '1 second', CASE WHEN n < $1 THEN now() END
		FROM generate_series(1, $1::int) n, outbox.enqueue('run', 'step', 'stripe/act', 's', '{}') e`, operator.MostLooked/2)
	drainertest.Exec(t, db, `ANALYZE outbox.incident`)
	list := run(t, "incidents", "list", "--kind", "outcome_unknown", "--provider", "stripe", "--database-url", url)
	if !strings.Contains(list.stdout, "only the newest 25000 rows were looked at. For older ones:") {
		t.Errorf("the list does not say that it goes on: %+v", list)
	}
	look := run(t, "incidents", "ack", "--kind", "outcome_unknown", "--provider", "stripe", "--database-url", url)
	if !strings.Contains(look.stdout, "1 would be acknowledged") || strings.Contains(look.stdout, "There are more") {
		t.Errorf("looking: %+v", look)
	}
}

// A variable that is not set leaves the value empty. Without a refusal, the change would be for every provider.
func TestABulkChangeRefusesAFilterWithoutAValue(t *testing.T) {
	t.Parallel()
	for _, change := range [][]string{{"retry"}, {"cancel"}, {"resolve", "--as", "failed"}} {
		for _, flag := range []string{"--provider", "--run", "--tool"} {
			got := run(t, slices.Concat([]string{"intents"}, change, []string{"--older-than", "1h", flag, "", "--yes", "--reason", "x"})...)
			if got.code != exitUsage || !strings.Contains(got.stderr, flag+" is empty") {
				t.Errorf("%v %s: %+v", change, flag, got)
			}
		}
	}
}

func TestAnAcknowledgementThatStopsSaysHowManyItChanged(t *testing.T) {
	t.Parallel()
	for name, chosen := range map[string]func(ids []string) []string{
		"named":  func(ids []string) []string { return ids },
		"chosen": func([]string) []string { return []string{"--kind", "outcome_unknown", "--until", "0s", "--yes"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, db := newOutbox(t)
			ids := drainertest.Column[string](t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) SELECT 'outcome_unknown', n, 'run' FROM generate_series(1, 250) n RETURNING id::text`)
			drainertest.Exec(t, db, `CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$`)
			drainertest.Exec(t, db, `CREATE TRIGGER stop BEFORE UPDATE ON outbox.incident FOR EACH ROW WHEN (OLD.intent_id > 240) EXECUTE FUNCTION public.stop()`)
			got := run(t, append([]string{"incidents", "ack", "--operator", "on-call", "--reason", "outage", "--database-url", url}, chosen(ids)...)...)
			if got.code == exitOK || !strings.Contains(got.stderr, "200 of 250") || !strings.Contains(got.stderr, "the disk is full") || strings.Count(got.stdout, "acknowledged") != 200 {
				t.Errorf("it says %s and lists %d (%d)", got.stderr, strings.Count(got.stdout, "acknowledged"), got.code)
			}
			if done := drainertest.Value[int](t, db, `SELECT count(*)::int FROM outbox.incident WHERE acknowledged_at IS NOT NULL`); done != 200 {
				t.Errorf("%d are acknowledged, want one batch of 200", done)
			}
		})
	}
}

// Each command that is shown can be typed, and the first one is not refused.
func TestTheCommandsThatFitCanBeTyped(t *testing.T) {
	t.Setenv("USER", "on-call")
	url, file := inDoubt(t), writeValid(t)
	shown := run(t, "incidents", "show", "1", "--config", file, "--database-url", url)
	typed := 0
	for line := range strings.Lines(shown.stdout) {
		command, is := strings.CutPrefix(line, "  drainer ")
		if !is {
			continue
		}
		typed++
		line = strings.TrimSpace("drainer " + command)
		if err := parses(builtins(t), line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if typed < 5 {
		t.Fatalf("only %d commands:\n%s", typed, shown.stdout)
	}
	got := run(t, "intents", "retry", "1", "--reason", "same key", "--config", file, "--database-url", url)
	if got.code != exitOK {
		t.Errorf("the first one: %+v", got)
	}
}

func TestAnAttemptShowsItsDurationItsStatusAndItsProblem(t *testing.T) {
	t.Parallel()
	got := run(t, "intents", "show", "1", "--database-url", inDoubt(t))
	for _, want := range []string{"attempt 1: ambiguous → unknown, HTTP 502, took 1.25s\n", "  error: http_502\n", "  means: the provider failed at work: in doubt\n", "  do: nothing, unless it lasts\n", "  problem: Bad gateway\n", "  detail: no upstream\\x1b[31m\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q:\n%s", want, got.stdout)
		}
	}
}

func TestAnIntentShowsWhichGateItWaitsForAndUntilWhen(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('r', 's', 'stripe/charge', 'x', '{}')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.tool (name, state, reason, open_until) VALUES ('stripe/charge', 'open', 'failure_rate', '2031-01-02 03:04:05+00')`)
	got := run(t, "intents", "show", "1", "--database-url", url)
	for _, want := range []string{"stripe/charge: its circuit breaker is open: failure_rate\n", "2031-01-02 "} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q:\n%s", want, got.stdout)
		}
	}
	drainertest.Exec(t, db, `UPDATE outbox.tool SET state = 'half_open'`)
	if got := run(t, "intents", "show", "1", "--database-url", url); strings.Contains(got.stdout, "2031") || !strings.Contains(got.stdout, "one row is trying it now") {
		t.Errorf("while it is tried:\n%s", got.stdout)
	}
}

func TestATypoIsAnsweredWithTheNameThatItMeant(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`unknown command "shwo" for "drainer intents"; did you mean show?`: {"intents", "shwo"},
		`unknown command "statsu" for "drainer"; did you mean status?`:     {"statsu"},
		`unknown flag: --provder; did you mean --provider?`:                {"intents", "list", "--provder", "x"},
	} {
		if got := run(t, args...); got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%v: %+v, want %q", args, got, want)
		}
	}
}

func TestTheConfigurationIsFoundWhereNoneIsNamed(t *testing.T) {
	valid := writeValid(t)
	t.Chdir(t.TempDir())
	says := func(code int, want string, args ...string) {
		t.Helper()
		if got := run(t, append([]string{"config", "validate"}, args...)...); got.code != code || !strings.Contains(got.stdout+got.stderr, want) {
			t.Errorf("%v: %+v, want %d and %q", args, got, code, want)
		}
	}
	says(exitUsage, "drainer.yaml in this folder")
	content, err := os.ReadFile(valid)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("drainer.yaml", content, 0o600); err != nil {
		t.Fatal(err)
	}
	says(exitOK, "stripe/create_charge")
	t.Setenv("DRAINER_CONFIG", filepath.Join(t.TempDir(), "elsewhere.yaml"))
	says(exitConfigInvalid, "elsewhere.yaml")
	says(exitOK, "stripe/create_charge", "--config", valid)
}

func TestAnOperatorWithoutUSERIsWhoTheSystemSays(t *testing.T) {
	current, err := user.Current()
	if err != nil {
		t.Skip("the system has no name for this user: ", err)
	}
	t.Setenv("USER", "")
	url := inDoubt(t)
	if got := run(t, "intents", "resolve", "1", "--as", "completed", "--reason", "found", "--database-url", url); got.code != exitOK {
		t.Fatalf("%+v", got)
	}
	if got := run(t, "intents", "show", "1", "--database-url", url); !strings.Contains(got.stdout, "operator:"+current.Username) {
		t.Errorf("it is not signed by %s:\n%s", current.Username, got.stdout)
	}
}
