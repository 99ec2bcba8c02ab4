// Package clients_test runs the tests of the packages for agents' authors, each with its own language's tools,
// against a real Postgres and a daemon. vectors.json has the results on which all languages must agree. The tests
// here compare it with the server.
package clients_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/docblock"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// strict makes a missing language, compiler or driver a failure. The tests in Python read it, too.
var strict = os.Getenv("CLIENTS_STRICT") != ""

// live returns some for `make clients-live`, which runs only the tests with the libraries themselves.
func live(all, some string) string {
	if os.Getenv("CLIENTS_LIVE") != "" {
		return some
	}
	return all
}

type vectors struct {
	Keys []struct {
		Run, Step, Tool, Scope, Key string
		Namespace, Tenant           string
		Generation                  int
	}
	Errors  []struct{ SQLState, Name string }
	Invalid []struct {
		Name   string
		Intent map[string]any
	}
	Payloads []struct {
		Name string
		Sent []string
	}
	SamePayload  [][2]string `json:"same_payload"`
	OtherPayload [][2]string `json:"other_payload"`
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// The server's own tests check the keys in dispatch/testdata. vectors.json must have all of them.
func TestTheVectorsHaveEveryKeyOfTheServersTests(t *testing.T) {
	t.Parallel()
	var v vectors
	read(t, "vectors.json", &v)
	var server []struct {
		AgentRunID     string `json:"agent_run_id"`
		StepID         string `json:"step_id"`
		ToolName       string `json:"tool_name"`
		BusinessScope  string `json:"business_scope"`
		IdempotencyKey string `json:"idempotency_key"`
	}
	read(t, "../dispatch/testdata/idempotency_keys.json", &server)
	var known []string
	for _, key := range v.Keys {
		known = append(known, fmt.Sprint(key.Run, key.Step, key.Tool, key.Scope, key.Key))
	}
	for _, key := range server {
		if !slices.Contains(known, fmt.Sprint(key.AgentRunID, key.StepID, key.ToolName, key.BusinessScope, key.IdempotencyKey)) {
			t.Errorf("vectors.json lacks the key %s", key.IdempotencyKey)
		}
	}
}

func TestTheServerAgreesWithTheVectors(t *testing.T) {
	t.Parallel()
	var v vectors
	read(t, "vectors.json", &v)
	db := drainertest.Connect(t, drainertest.Database(t))
	for _, key := range v.Keys {
		if got := drainertest.Value[string](t, db, `SELECT outbox.idempotency_key($1, $2, $3, $4, $5, $6, $7)`,
			key.Run, key.Step, key.Tool, key.Scope, key.Namespace, key.Tenant, key.Generation); got != key.Key {
			t.Errorf("%+v: the server has the key %s", key, got)
		}
	}
	for _, c := range v.Invalid {
		var stored bool
		err := db.QueryRow(t.Context(), `SELECT created FROM outbox.enqueue($1, $2, $3, $4, $5::text::jsonb)`,
			c.Intent["run"], c.Intent["step"], c.Intent["tool"], c.Intent["scope"], payload(t, c.Intent["payload"])).Scan(&stored)
		if err == nil {
			t.Errorf("%s: the server takes it", c.Name)
		}
	}
	equal := func(one, other string) bool {
		return drainertest.Value[bool](t, db, `SELECT $1::text::jsonb = $2::text::jsonb`, one, other)
	}
	for _, p := range v.Payloads {
		for _, sent := range p.Sent {
			if !equal(sent, p.Sent[0]) {
				t.Errorf("%s: %s and %s are two payloads to the server", p.Name, sent, p.Sent[0])
			}
		}
	}
	for _, pair := range v.SamePayload {
		if !equal(pair[0], pair[1]) {
			t.Errorf("%s and %s are two payloads to the server", pair[0], pair[1])
		}
	}
	for _, pair := range v.OtherPayload {
		if equal(pair[0], pair[1]) {
			t.Errorf("%s and %s are one payload to the server", pair[0], pair[1])
		}
	}
}

func payload(t *testing.T, value any) any {
	t.Helper()
	if value == nil {
		return nil
	}
	if object, ok := value.(map[string]any); ok && object["$repeat"] != nil {
		repeat := object["$repeat"].([]any)
		value = strings.Repeat(repeat[0].(string), int(repeat[1].(float64)))
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// config has a provider that acts, one that refuses for good, and one whose answer is lost. No daemon serves
// parked, so an intent for it waits.
const config = `version: 1
server: {listen: "127.0.0.1:0"}
providers:
  ok:
    adapter: http
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /act, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
  refuse:
    adapter: http
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /refuse}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        on_failure: dead_letter
        compensation: none
  cut:
    adapter: http
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /cut}
        idempotency: {class: non_idempotent}
        compensation: none
`

// prepare creates a table for the agents' state. A trigger raises the error codes for which these tests have no
// other cause.
const prepare = `
CREATE TABLE public.agent_state (run text NOT NULL);
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'outbox: as told' USING ERRCODE = split_part(NEW.tool_name, '/', 2), HINT = 'come back';
END $$;
CREATE TRIGGER a_refusal BEFORE INSERT ON outbox.intent FOR EACH ROW
  WHEN (starts_with(NEW.tool_name, 'refused/')) EXECUTE FUNCTION public.refuse();`

// place is a database with a daemon, and the URLs that a language's tests get.
type place struct {
	admin, agent string
	tenant       string // another agent's, of a tenant that may have one intent due
	pooler       string // the agent's URL through a pooler with one session; empty if there is no pgbouncer
	db           *pgxpool.Pool
	drainer      *program.Program
}

func newPlace(t *testing.T) place {
	t.Helper()
	p := place{admin: drainertest.Database(t)}
	p.db = drainertest.Connect(t, p.admin)
	p.agent = drainertest.Login(t, p.admin, "outbox_agent")
	drainertest.Exec(t, p.db, prepare)
	drainertest.Exec(t, p.db, `GRANT INSERT, SELECT ON public.agent_state TO outbox_agent`)
	role := "acme_" + drainertest.Value[string](t, p.db, `SELECT current_database()`)
	drainertest.Exec(t, p.db, `CREATE ROLE `+role+` NOLOGIN`)
	t.Cleanup(func() { drainertest.Exec(t, drainertest.Connect(t, p.admin), `DROP ROLE `+role) })
	drainertest.Exec(t, p.db, `INSERT INTO outbox.tenant (name, role, max_due) VALUES ('acme', $1, 1)`, role)
	p.tenant = drainertest.Login(t, p.admin, "outbox_agent", role)
	if _, err := drainertest.FindPgBouncer(); err == nil {
		p.pooler = drainertest.PgBouncer(t, p.agent, "transaction", 1)
	}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/act":
			fmt.Fprintf(w, `{"id": "ref-%s", "amount": 1200}`, r.Header.Get("Idempotency-Key"))
		case "/refuse":
			http.Error(w, `{"title": "no such card"}`, http.StatusBadRequest)
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(provider.Close)
	p.drainer = program.New(t, p.admin)
	p.drainer.Start(program.WriteConfig(t, fmt.Sprintf(config, provider.URL)))
	return p
}

// run runs a language's own test command, which lists every test and why some were skipped.
func (p place) run(t *testing.T, folder, program string, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = folder
	command.Env = append(os.Environ(), "DRAINER_TEST_AGENT="+p.agent, "DRAINER_TEST_ADMIN="+p.admin, "DRAINER_TEST_POOLER="+p.pooler,
		"DRAINER_TEST_TENANT="+p.tenant, "PYTHONDONTWRITEBYTECODE=1")
	output, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
	} else {
		t.Logf("%s", output)
	}
}

func skip(t testing.TB, reason string) {
	t.Helper()
	if strict {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// python returns Debian's Python, because the drivers are Debian's packages. PYTHON names another one.
func python(t testing.TB) string {
	t.Helper()
	for _, candidate := range []string{os.Getenv("PYTHON"), "/usr/bin/python3"} {
		if candidate != "" && exec.Command(candidate, "-c", "import psycopg2").Run() == nil {
			return candidate
		}
	}
	skip(t, "no Python with psycopg2 here; install Debian's python3-psycopg2")
	return ""
}

func TestThePythonPackage(t *testing.T) {
	t.Parallel()
	interpreter := python(t)
	newPlace(t).run(t, "python", interpreter, "-m", "unittest", "discover", "-s", "tests", "-v", "-p", live("test_*.py", "live_*.py"))
}

// The test runs the README's program, with a tool that is configured here.
func TestThePythonReadmesProgramActsOnce(t *testing.T) {
	t.Parallel()
	interpreter := python(t)
	if exec.Command(interpreter, "-c", "import psycopg").Run() != nil {
		skip(t, "no psycopg here; install Debian's python3-psycopg")
	}
	p := newPlace(t)
	p.tickets(t)
	program := strings.Replace(docblock.First(t, "clients/python/README.md", "python"), "stripe/create_charge", "ok/act", 1)
	command := exec.CommandContext(t.Context(), interpreter, "-c", program)
	command.Env = append(os.Environ(), "DATABASE_URL="+p.agent, "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1")
	checkTicketProgram(t, command)
}

func (p place) tickets(t *testing.T) {
	t.Helper()
	drainertest.Exec(t, p.db, `CREATE TABLE public.ticket (id int PRIMARY KEY, state text)`)
	drainertest.Exec(t, p.db, `INSERT INTO public.ticket VALUES (17, 'new')`)
	drainertest.Exec(t, p.db, `GRANT SELECT, UPDATE ON public.ticket TO outbox_agent`)
}

// checkTicketProgram runs a README's program, which prints the results of three calls.
func checkTicketProgram(t *testing.T, command *exec.Cmd) {
	t.Helper()
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "It is done. Reference: ref-idem_v1_") || lines[1] != lines[0] ||
		!strings.HasPrefix(lines[2], "This step was already asked for with other values.") {
		t.Errorf("the program prints\n%s", output)
	}
}

// A wait survives a restart of Postgres: its connection is lost, and made again.
func TestAPythonWaitOutlivesARestartOfPostgres(t *testing.T) {
	t.Parallel()
	interpreter := python(t)
	outlivesARestart(t, func(url string) *exec.Cmd {
		command := exec.CommandContext(t.Context(), interpreter, "-c", `
import sys
from drainer import Outbox, results
waiting = results.begin(sys.argv[1], 1, None)
for state in sys.stdin:
    print(Outbox().wait(sys.argv[1], 1, timeout=0.5 if state == "pending\n" else 60).status, flush=True)
`, url)
		command.Env = append(os.Environ(), "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1")
		return command
	})
}

// The pool has an idle client, and no listener for errors of its own, as in the README's program.
func TestATypeScriptWaitOutlivesARestartOfPostgres(t *testing.T) {
	t.Parallel()
	node, folder, _ := typescriptProject(t)
	needNodePostgres(t, node)
	if err := os.WriteFile(filepath.Join(folder, "wait.mjs"), []byte(`
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { fromPg, Results } from "@agent-drainer/client";
const pool = new (createRequire(import.meta.url)("pg").Pool)({ connectionString: process.argv[2] });
const results = new Results(fromPg(pool));
const waiting = results.wait("1", { timeout: 60_000 });
for await (const state of createInterface({ input: process.stdin }))
  console.log((await (state === "pending" ? results.wait("1", { timeout: 500 }) : waiting)).status);
await pool.end();
`), 0o600); err != nil {
		t.Fatal(err)
	}
	outlivesARestart(t, func(url string) *exec.Cmd {
		command := exec.CommandContext(t.Context(), node, "wait.mjs", url)
		command.Dir = folder
		command.Env = append(os.Environ(), nodePath())
		return command
	})
}

// outlivesARestart tells a program the state that it should find. The program prints the state that it finds.
func outlivesARestart(t *testing.T, program func(url string) *exec.Cmd) {
	t.Helper()
	server, err := throwaway.Start(t.Context(), throwaway.WithoutDurability())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if _, err := migrations.Up(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	command := program(server.URL)
	command.Stderr = os.Stderr
	ask, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	execute(t, server.URL, `SELECT outbox.enqueue('r', 's', 'parked/act', 'b', '{}')`)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(answers)
	told := func(state string) string {
		fmt.Fprintln(ask, state)
		if !scanner.Scan() {
			t.Fatal("the program ended")
		}
		return scanner.Text()
	}
	for range 2 { // the first look may come before the listening thread has begun
		if got := told("pending"); got != "pending" {
			t.Fatalf("before the restart it is %s", got)
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, server.URL, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES (1, 1, 'saga', 'test', 'completed')`)
	if got := told("completed"); got != "completed" {
		t.Errorf("after the restart it is %s", got)
	}
	ask.Close()
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}

func execute(t *testing.T, url, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// typescriptProject returns a project that has installed the packed package, without a network.
func typescriptProject(t testing.TB) (node, folder, compiler string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		skip(t, "no node here; install Debian's nodejs")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		skip(t, "no npm here; install Debian's npm")
	}
	compiler, err = exec.LookPath("tsc")
	for _, modules := range append(filepath.SplitList(os.Getenv("NODE_PATH")), "/usr/share/nodejs") {
		if installed := filepath.Join(modules, "typescript", "bin", "tsc"); err != nil {
			_, err = os.Stat(installed)
			compiler = installed
		}
	}
	if err != nil {
		skip(t, "no TypeScript compiler here; install Debian's node-typescript")
	}
	source, folder := t.TempDir(), t.TempDir()
	if err := os.CopyFS(source, os.DirFS("typescript")); err != nil {
		t.Fatal(err)
	}
	in := func(folder, program string, args ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), program, args...)
		command.Dir = folder
		command.Env = append(os.Environ(), "npm_config_offline=true", "npm_config_cache="+filepath.Join(source, ".cache"), "npm_config_audit=false")
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
		}
	}
	in(source, node, "build.mjs", compiler)
	in(source, "npm", "pack")
	if err := os.WriteFile(filepath.Join(folder, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	in(folder, "npm", "install", "--offline", filepath.Join(source, "agent-drainer-client-0.1.0.tgz"))
	return node, folder, compiler
}

func nodePath() string {
	return "NODE_PATH=" + strings.Join(append(filepath.SplitList(os.Getenv("NODE_PATH")), "/usr/share/nodejs"), string(filepath.ListSeparator))
}

func TestTheTypeScriptPackage(t *testing.T) {
	t.Parallel()
	node, folder, _ := typescriptProject(t)
	if err := os.CopyFS(folder, os.DirFS("typescript/test")); err != nil {
		t.Fatal(err)
	}
	vectors, err := filepath.Abs("vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	newPlace(t).run(t, folder, "env", nodePath(), "DRAINER_VECTORS="+vectors, node, "--test", live("--test-name-pattern=.", "--test-name-pattern=^live"), "client.test.mjs", "agents.test.mjs")
}

func needNodePostgres(t testing.TB, node string) {
	t.Helper()
	find := exec.CommandContext(t.Context(), node, "-e", "require('pg')")
	find.Env = append(os.Environ(), nodePath())
	if find.Run() != nil {
		skip(t, "no node-postgres here; install Debian's node-pg, or say NODE_PATH")
	}
}

func TestTheTypeScriptPackagesTypesAreFound(t *testing.T) {
	t.Parallel()
	node, folder, compiler := typescriptProject(t)
	if err := os.WriteFile(filepath.Join(folder, "consumer.ts"), []byte(`
import { Results } from "@agent-drainer/client";
import { overPg } from "@agent-drainer/client/agents";
export const results: Results = overPg({}, "run").results;
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for resolution, module := range map[string]string{"node": "ES2020", "node16": "node16"} {
		command := exec.CommandContext(t.Context(), node, compiler, "--noEmit", "--strict", "--target", "ES2020", "--module", module, "--moduleResolution", resolution, "consumer.ts")
		command.Dir = folder
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", resolution, err, output)
		}
	}
}

// The test runs the README's program, with a tool that is configured here. An ES module finds no package by
// NODE_PATH, so node-postgres is loaded with require.
func TestTheTypeScriptReadmesProgramActsOnce(t *testing.T) {
	t.Parallel()
	node, folder, _ := typescriptProject(t)
	needNodePostgres(t, node)
	p := newPlace(t)
	p.tickets(t)
	program := strings.NewReplacer("stripe/create_charge", "ok/act", `import pg from "pg";`,
		`import { createRequire } from "node:module"; const pg = createRequire(import.meta.url)("pg");`,
		"connectionString:", "max: 1, connectionString:", // a program that holds its client while it waits would wait for itself
	).Replace(docblock.First(t, "clients/typescript/README.md", "ts"))
	if err := os.WriteFile(filepath.Join(folder, "agent.mjs"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), node, "agent.mjs")
	command.Dir = folder
	command.Env = append(os.Environ(), nodePath(), "DATABASE_URL="+p.agent)
	checkTicketProgram(t, command)
}
