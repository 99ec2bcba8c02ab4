package cli

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// inDoubt is an outbox whose only intent, of stripe/create_charge, is unknown, with its incident.
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

// What stands there can be typed, and is not refused.
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
