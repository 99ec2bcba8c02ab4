package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

// Whatever stands on an operator's command line: nothing changes unsigned, nor
// in bulk without --yes; what changes is signed in the history; and what is
// said is short, without a payload, and commands no terminal.
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

// restock makes the outbox as it was: an intent that waits, one that failed and
// one that no provider serves. It returns how much is on record.
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
