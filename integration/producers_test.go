package integration_test

import (
	"context"
	"errors"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/docblock"
)

const producersPage = "docs/producers.md"

// producing is a Python program beside the page's outbox.py.
const producing = `
import os, psycopg2, outbox

def connect():
    return psycopg2.connect(os.environ["DATABASE_URL"])

charge = outbox.as_tool(connect, "ticket-17", "charge", "sim/act", lambda arguments: arguments["invoice"])
print(charge({"invoice": "invoice_442", "amount": 1200})["status"])
print(charge({"amount": 1200, "invoice": "invoice_442"})["status"])
print("error" in charge({"invoice": "invoice_442", "amount": 9}))
connection = connect()
with connection, connection.cursor() as cursor:
    print(outbox.enqueue(cursor, "ticket-17", "charge", "elsewhere/act", "invoice_442", {})[1])
print(outbox.result(connection, 4711, patience=0.1))
for arguments in [("closed", "charge", "sim/act", "x", {}), ("", "charge", "sim/act", "x", {})]:
    try:
        with connection, connection.cursor() as cursor:
            outbox.enqueue(cursor, *arguments)
    except Exception as refused:
        print(type(refused).__name__)
`

func TestThePythonProducerActsOnceAndIsToldOfEachRefusal(t *testing.T) {
	t.Parallel()
	python := pythonWithPsycopg2(t)
	w := producerWorld(t)
	folder := t.TempDir()
	writeFile(t, folder, "outbox.py", docblock.First(t, producersPage, "python"))
	writeFile(t, folder, "agent.py", producing)

	output := w.runProducer(python, filepath.Join(folder, "agent.py"))
	want := "completed\ncompleted\nTrue\nTrue\nNone\nRunClosed\nValueError\n"
	if output != want {
		t.Errorf("the producer printed %q, want %q", output, want)
	}
	w.assertOneEffectEach()
}

// The page's block runs as it is, with a package pg that speaks to the real
// server; only the tool is one that is configured here.
func TestTheTypeScriptProducerIsAnsweredWithTheResult(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node here; install Debian's nodejs to run the TypeScript example")
	}
	w := producerWorld(t)
	if target, err := neturl.Parse(w.url); err != nil || target.User == nil {
		t.Skip("the stand-in for pg wants a database URL with a user")
	} else if _, asks := target.User.Password(); asks {
		t.Skip("the stand-in for pg knows no passwords")
	}
	folder := t.TempDir()
	if err := os.CopyFS(filepath.Join(folder, "node_modules", "pg"), os.DirFS("testdata/pg")); err != nil {
		t.Fatal(err)
	}
	program := docblock.First(t, producersPage, "ts")
	configured := strings.Replace(program, "stripe/create_charge", "sim/act", 1)
	writeFile(t, folder, "agent.mjs", configured)
	for _, created := range []string{"true pending idem_v1_", "false completed idem_v1_"} {
		output := w.runProducer(node, filepath.Join(folder, "agent.mjs"))
		if !strings.HasPrefix(output, created) || !strings.Contains(output, "status: 'completed'") {
			t.Errorf("the producer printed %q, want %q first and then the result", output, created)
		}
	}
	writeFile(t, folder, "agent.mjs", strings.Replace(configured, "1200", "9", 1))
	if output := w.failProducer(node, filepath.Join(folder, "agent.mjs")); !strings.Contains(output, "stands for another payload") {
		t.Errorf("with another payload it fails with %q", output)
	}
	w.assertOneEffectEach()
}

func TestTheGoProducerIsTheOneOfThePageAndToldOfEachRefusal(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("producers_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(source), docblock.First(t, producersPage, "go")) {
		t.Error(producersPage + " shows another Go producer than the one that is tested")
	}
	w := producerWorld(t)
	enqueued := func(run string, payload map[string]any) (created bool, err error) {
		err = pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
			_, created, err = enqueueStep(t.Context(), tx, run, "charge", "sim/act", "invoice_442", payload)
			return err
		})
		return created, err
	}
	for _, want := range []bool{true, false} {
		if created, err := enqueued("ticket-17", map[string]any{"amount": 1200}); created != want || err != nil {
			t.Errorf("created is %v and the error %v, want %v and none", created, err, want)
		}
	}
	if _, err := enqueued("ticket-17", map[string]any{"amount": 9}); !errors.Is(err, errKeyTaken) {
		t.Errorf("with another payload: %v", err)
	}
	if _, err := enqueued("closed", map[string]any{}); !errors.Is(err, errRunClosed) {
		t.Errorf("of a closed run: %v", err)
	}
}

var (
	errKeyTaken  = errors.New("this step stands for another payload already")
	errRunClosed = errors.New("the run goes back, or was cancelled")
)

// enqueueStep commits an intent with tx. created is false for one that was there already.
func enqueueStep(ctx context.Context, tx pgx.Tx, run, step, tool, scope string, payload any) (intentID int64, created bool, err error) {
	err = tx.QueryRow(ctx, `SELECT intent_id, created FROM outbox.enqueue($1, $2, $3, $4, $5)`,
		run, step, tool, scope, payload).Scan(&intentID, &created)
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		switch refused.Code {
		case "OB001":
			err = errors.Join(errKeyTaken, err)
		case "OB002":
			err = errors.Join(errRunClosed, err)
		}
	}
	return intentID, created, err
}

// producers enqueue into a world that a daemon drains, and in which one run is closed.
type producers struct{ *world }

func producerWorld(t *testing.T) producers {
	t.Helper()
	w := newWorld(t, dispatchtest.Healthy())
	w.exec(`INSERT INTO outbox.saga (agent_run_id, state, ended_at) VALUES ('closed', 'cancelled', now())`)
	start(t, w.setup(dispatch.KeyIdempotent, patientLease))
	return producers{w}
}

func (p producers) runProducer(program, file string) string {
	p.t.Helper()
	output, err := p.producer(program, file)
	if err != nil {
		p.t.Fatalf("the example failed: %v\n%s", err, output)
	}
	return output
}

func (p producers) failProducer(program, file string) string {
	p.t.Helper()
	output, err := p.producer(program, file)
	if err == nil {
		p.t.Fatalf("the example did not fail:\n%s", output)
	}
	return output
}

func (p producers) producer(program, file string) (string, error) {
	command := exec.CommandContext(p.t.Context(), program, file)
	command.Env = append(os.Environ(), "DATABASE_URL="+p.url)
	output, err := command.CombinedOutput()
	return string(output), err
}

func writeFile(t *testing.T, folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
