package integration_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	copied "github.com/agentoutbox/drainer/examples/producers"
	"github.com/agentoutbox/drainer/integration/docblock"
	"github.com/agentoutbox/drainer/integration/harness"
)

// producing is a Python program that uses the example outbox.py.
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

// example returns a file that producers copy.
func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "examples", "producers", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestThePythonProducerActsOnceAndIsToldOfEachRefusal(t *testing.T) {
	t.Parallel()
	python := pythonWithPsycopg2(t)
	w := newProducers(t)
	folder := t.TempDir()
	writeFile(t, folder, "outbox.py", example(t, "outbox.py"))
	writeFile(t, folder, "agent.py", producing)

	output := w.runProducer(python, filepath.Join(folder, "agent.py"))
	want := "completed\ncompleted\nTrue\nTrue\nNone\nRunClosed\nValueError\n"
	if output != want {
		t.Errorf("the producer printed %q, want %q", output, want)
	}
	w.AssertOneEffectEach()
}

// The example runs unchanged, except for the name of its tool. A package pg of the test speaks to the real server.
func TestTheTypeScriptProducerIsAnsweredWithTheResult(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node here; install Debian's nodejs to run the TypeScript example")
	}
	w := newProducers(t)
	if target, err := neturl.Parse(w.URL); err != nil || target.User == nil {
		t.Skip("the stand-in for pg wants a database URL with a user")
	} else if _, asks := target.User.Password(); asks {
		t.Skip("the stand-in for pg knows no passwords")
	}
	folder := t.TempDir()
	if err := os.CopyFS(filepath.Join(folder, "node_modules", "pg"), os.DirFS("testdata/pg")); err != nil {
		t.Fatal(err)
	}
	program := example(t, "agent.mjs")
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
	w.AssertOneEffectEach()
}

func TestTheGoProducerNamesEachRefusal(t *testing.T) {
	t.Parallel()
	w := newProducers(t)
	enqueued := func(run string, payload map[string]any) (created bool, err error) {
		err = pgx.BeginFunc(t.Context(), w.DB, func(tx pgx.Tx) error {
			_, created, err = copied.EnqueueStep(t.Context(), tx, run, "charge", "sim/act", "invoice_442", payload)
			return err
		})
		return created, err
	}
	for _, want := range []bool{true, false} {
		if created, err := enqueued("ticket-17", map[string]any{"amount": 1200}); created != want || err != nil {
			t.Errorf("created is %v and the error %v, want %v and none", created, err, want)
		}
	}
	if _, err := enqueued("ticket-17", map[string]any{"amount": 9}); !errors.Is(err, copied.ErrKeyTaken) {
		t.Errorf("with another payload: %v", err)
	}
	if _, err := enqueued("closed", map[string]any{}); !errors.Is(err, copied.ErrRunClosed) {
		t.Errorf("of a closed run: %v", err)
	}
}

// producers enqueue into an outbox that a daemon drains, and in which one run is closed.
type producers struct{ *harness.Rig }

func newProducers(t *testing.T) producers {
	t.Helper()
	rig := harness.Plain(t, dispatchtest.Healthy())
	rig.Exec(`INSERT INTO outbox.saga (agent_run_id, state, ended_at) VALUES ('closed', 'cancelled', now())`)
	start(t, setupOf(rig, dispatch.KeyIdempotent, patientLease))
	return producers{rig}
}

func (p producers) runProducer(program, file string) string {
	p.T.Helper()
	output, err := p.producer(program, file)
	if err != nil {
		p.T.Fatalf("the example failed: %v\n%s", err, output)
	}
	return output
}

func (p producers) failProducer(program, file string) string {
	p.T.Helper()
	output, err := p.producer(program, file)
	if err == nil {
		p.T.Fatalf("the example did not fail:\n%s", output)
	}
	return output
}

func (p producers) producer(program, file string) (string, error) {
	command := exec.CommandContext(p.T.Context(), program, file)
	command.Env = append(os.Environ(), "DATABASE_URL="+p.URL)
	output, err := command.CombinedOutput()
	return string(output), err
}

func writeFile(t *testing.T, folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Producers copy the README's Python example, so this test runs it.
func TestTheReadmesPythonExampleEnqueuesOnce(t *testing.T) {
	t.Parallel()
	python := pythonWithPsycopg2(t)
	program := docblock.First(t, "README.md", "python")
	url := drainertest.Database(t)

	for _, want := range []string{"True pending idem_v1_", "False pending idem_v1_"} {
		command := exec.CommandContext(t.Context(), python, "-c", program)
		command.Env = append(os.Environ(), "DATABASE_URL="+url)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("the example failed: %v\n%s", err, output)
		}
		if !strings.HasPrefix(string(output), want) {
			t.Fatalf("the example printed %q, want %q first", output, want)
		}
	}
}

// pythonWithPsycopg2 finds the interpreter that Debian's python3-psycopg2
// belongs to, which another python3 on the PATH may hide.
func pythonWithPsycopg2(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import psycopg2").Run() == nil {
			return python
		}
	}
	t.Skip("no python3 with psycopg2 here; install Debian's python3-psycopg2 to run the README's example")
	return ""
}

// Each agent of the example crashes once before each of its lines, and is started again. The second agent asks for
// the first one's steps with other values.
func TestAnAgentThatCrashesAtAnyLineHasEachEffectOnce(t *testing.T) {
	t.Parallel()
	python := pythonWithPsycopg2(t)
	w := newProducers(t)
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("../examples/agent-python")); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	writeFile(t, folder, "agent.py", strings.ReplaceAll(read("agent.py"), "demo/charge", "sim/act"))
	w.Exec(read("schema.sql"))
	packages, err := filepath.Abs("../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), python, "crash.py")
	command.Dir = folder
	command.Env = append(os.Environ(), "DATABASE_URL="+w.URL, "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	var runs, clerks, closers int
	if _, err := fmt.Sscanf(string(output), "runs %d, crashes of the clerk %d, of the closer %d", &runs, &clerks, &closers); err != nil || clerks < 30 || closers < 30 {
		t.Fatalf("%v: %s", err, output)
	}
	w.AwaitRest()
	if got := w.Count(`SELECT count(*) FROM (SELECT FROM outbox.status WHERE status = 'completed' GROUP BY agent_run_id HAVING count(*) = 3) r`); got != runs {
		t.Errorf("%d of %d runs have their three steps completed", got, runs)
	}
	if all := drainertest.Value[int](t, w.DB, `SELECT count(*) FROM outbox.intent`); all != 3*runs {
		t.Errorf("%d intents of %d runs", all, runs)
	}
	w.AssertOneEffectEach()
	const told = "This step was already asked for with other values. The first request stands. Do not ask for it again."
	if got := w.Count(`SELECT count(*) FROM agent.progress WHERE $1 = ANY (heard)`, told); got < runs {
		t.Errorf("%d agents of %d runs heard that their step was asked for before", got, runs)
	}
}

const recorded = "It is recorded. It will be carried out, or its failure reported. Do not ask for it again."

// call calls one tool of an MCP server, and returns the text of the result.
func call(t *testing.T, through sdk.Transport, tool string) string {
	t.Helper()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "agent"}, nil).Connect(t.Context(), through, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: map[string]any{"n": 1}})
	if err != nil || len(result.Content) != 1 {
		t.Fatalf("%s: %+v, %v", tool, result, err)
	}
	return result.Content[0].(*sdk.TextContent).Text
}

func TestAnAgentEnqueuesOverMCPAndADaemonCarriesItOut(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Start()
	arguments := []string{"mcp", "--enqueue", harness.Keyed, "--config", rig.Config}

	server := rig.Program.Command(arguments...)
	server.Env = append(server.Env, "DRAINER_RUN=by-pipe", "DRAINER_STEP=act")
	if got := call(t, &sdk.CommandTransport{Command: server}, "enqueue_keyed_act"); got != recorded {
		t.Errorf("over standard input and output: %s", got)
	}

	const token = "a-token-that-only-clients-know"
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	endpoint := serveMCP(t, rig, append(arguments, "--listen", "127.0.0.1:0", "--token-file", tokenFile))
	for _, run := range []string{"by-http", "by-http-too"} {
		headers := &http.Client{Transport: withHeaders{"Drainer-Run": run, "Drainer-Step": "act", "Authorization": "Bearer " + token}}
		if got := call(t, &sdk.StreamableClientTransport{Endpoint: endpoint, HTTPClient: headers}, "enqueue_keyed_act"); got != recorded {
			t.Errorf("over HTTP: %s", got)
		}
	}
	foreign, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader(`{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	foreign.Header.Set("Authorization", "Bearer "+token)
	foreign.Header.Set("Origin", "https://evil.example")
	foreign.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(foreign)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another site is answered with HTTP %d", answer.StatusCode)
	}
	rig.AwaitCount("all are carried out", 3, `SELECT count(*) FROM outbox.status WHERE status = 'completed' AND agent_run_id LIKE 'by-%'`)
}

// serveMCP starts the server, and returns its address once the server has printed it.
func serveMCP(t *testing.T, rig *harness.Rig, arguments []string) (endpoint string) {
	t.Helper()
	server := rig.Program.Command(arguments...)
	said, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM) // it may have ended
		for lines.Scan() {                         // to the end, because Wait closes the pipe
			t.Log(lines.Text())
		}
		if err := server.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	for lines.Scan() {
		if _, address, is := strings.Cut(lines.Text(), "The MCP server is at "); is {
			return address
		}
		t.Log(lines.Text())
	}
	t.Fatal("the server ended before it said where it listens")
	return ""
}

type withHeaders map[string]string

func (w withHeaders) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	for name, value := range w {
		request.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(request)
}
