package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/demo"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/builtin"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/migrations"
)

const validConfig = `version: 1
database: {url: "postgres://localhost/from_config", schema: outbox}
worker: {heartbeat: 3s, lease: 15s, shutdown_timeout: 25s}
server: {listen: ":9464"}
providers:
  stripe:
    adapter: http
    concurrency: 32
    timeout: 30s
    http:
      base_url: https://api.stripe.com
      headers: {Authorization: "Bearer ${file:TOKEN}"}
      idempotency_key: {header: Idempotency-Key, format: opaque}
    tools:
      create_charge:
        http: {method: POST, path: /v1/charges, body: form}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 8, base: 500ms, cap: 10m}
        compensate_with: {tool: stripe/refund, payload: "{charge: .response.id}"}
      refund:
        http: {method: POST, path: /v1/refunds, body: form}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        compensation: none
`

type result struct {
	code           int
	stdout, stderr string
}

func run(t *testing.T, args ...string) result {
	t.Helper()
	return runRoot(t, newRoot(builtins(t)), args...)
}

func runRoot(t *testing.T, root *cobra.Command, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	code := execute(t.Context(), root, args)
	return result{code, stdout.String(), stderr.String()}
}

func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeValid(t testing.TB) string {
	t.Helper()
	return write(t, "drainer.yaml", strings.ReplaceAll(validConfig, "TOKEN", write(t, "token", "s3cret-token\n")))
}

func TestWrongCommandLinesExitWith2(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"frob"}, `unknown command "frob" for "drainer" (see drainer --help)`},
		{[]string{"config", "frob"}, `unknown command "frob" for "drainer config" (see drainer config --help)`},
		{[]string{"version", "extra"}, `unknown command "extra" for "drainer version" (see drainer version --help)`},
		{[]string{"help", "statsu"}, `unknown command "statsu" for "drainer"; did you mean status? (see drainer help --help)`},
		{[]string{"help", "intents", "shwo"}, `unknown command "shwo" for "drainer intents"; did you mean show? (see drainer help --help)`},
		{[]string{"completion", "bahs"}, `unknown command "bahs" for "drainer completion"; did you mean bash? (see drainer completion --help)`},
		{[]string{"--frob"}, "unknown flag: --frob (see drainer --help)"},
		{[]string{"version", "-o"}, "flag needs an argument: 'o' in -o (see drainer version --help)"},
		{[]string{"version", "-o", "xml"}, `invalid argument "xml" for "-o, --output" flag: want table or json (see drainer version --help)`},
		{[]string{"config", "validate"}, "say which configuration to use: --config FILE, or DRAINER_CONFIG, or a drainer.yaml in this folder (see drainer config validate --help)"},
	} {
		got := run(t, test.args...)
		if want := (result{exitUsage, "", "drainer: " + test.want + "\n"}); got != want {
			t.Errorf("%v: got %+v, want %+v", test.args, got, want)
		}
	}
}

func TestABadDatabaseURLExitsWith2AndIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://app:hunter%zz@db:5432/app",
		"postgres://app:hunter2@db:port/app",
		"hunter2",
		"postgres://app:hunter2@db/app?sslmode=hunter2",
		"postgres://app:hunter2@db/app?sslrootcert=/gone/hunter2",
	} {
		for _, args := range [][]string{{"status"}, {"migrate", "up"}, {"demo"}, {"run", "--config", writeValid(t)}} {
			got := run(t, append(args, "--database-url", url)...)
			if got.code != exitUsage || got.stdout != "" || !strings.HasPrefix(got.stderr, "drainer: the database URL cannot be read; ") {
				t.Errorf("%v with %s: got %+v", args, url, got)
			}
			if strings.Contains(got.stderr, "hunter") {
				t.Errorf("%v repeats the URL %s: %s", args, url, got.stderr)
			}
		}
	}
}

func TestTheDemoEndsWithThreeLinesAboutItsAgents(t *testing.T) {
	t.Parallel()
	var printed strings.Builder
	if err := (&options{}).printAudit(&printed, demo.Report{Passed: true, Rollbacks: 11, DuplicatesAbsorbed: 12, RecoveredClaims: 13, Intents: 14}); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(strings.TrimSuffix(printed.String(), "\n"), "\n\n")
	lines := strings.Split(parts[len(parts)-1], "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], " 11 ") || !strings.Contains(lines[1], " 12 ") || !strings.Contains(lines[2], " 13 claimed: each of 14 intents") {
		t.Errorf("it ends with\n%s", parts[len(parts)-1])
	}
}

func TestHelpTeaches(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--help"}, {"config"}, {"config", "validate", "--help"}, {"version", "-h"}} {
		got := run(t, args...)
		if got.code != exitOK || !strings.Contains(got.stdout, "Usage:") || got.stderr != "" {
			t.Errorf("%v: got %+v", args, got)
		}
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		if !command.HasSubCommands() && command.Example == "" {
			t.Errorf("%s has no example", command.CommandPath())
		}
		for _, child := range command.Commands() {
			visit(child)
		}
	}
	visit(newRoot(builtins(t)))
}

func TestExitCodesFollowTheError(t *testing.T) {
	t.Parallel()
	for code, err := range map[int]error{
		exitOK:                  nil,
		exitFailed:              errors.New("anything else"),
		exitDatabaseUnreachable: fmt.Errorf("starting: %w", errDatabaseUnreachable),
		exitSchemaBehind:        fmt.Errorf("starting: %w", migrations.ErrBehind),
	} {
		root := newRoot(builtins(t))
		root.AddCommand(&cobra.Command{Use: "try", RunE: func(*cobra.Command, []string) error { return err }})
		if got := runRoot(t, root, "try"); got.code != code {
			t.Errorf("%v: exit code %d, want %d", err, got.code, code)
		}
	}
}

func TestAnErrorIsOneLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		failure error
		want    string
	}{
		"of one line":                {errors.New("host: port"), "host: port"},
		"of several":                 {errors.Join(errors.New("this"), errors.New("and that")), "this; and that"},
		"of a driver that indents":   {errors.New("no connection:\n\tfirst\n\tsecond"), "no connection: first; second"},
		"of one server, tried twice": {errors.New("no connection:\n\trefused\n\trefused"), "no connection: refused"},
		"with a terminal's signs":    {errors.New("a\x1b[2Jb"), `a\x1b[2Jb`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := newRoot(builtins(t))
			root.AddCommand(&cobra.Command{Use: "try", RunE: func(*cobra.Command, []string) error { return test.failure }})
			if got, want := runRoot(t, root, "try"), (result{exitFailed, "", "drainer: " + test.want + "\n"}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestVersionIsAFlagToo(t *testing.T) {
	t.Parallel()
	want := result{exitOK, "drainer version " + currentVersion().Version + "\n", ""}
	if got := run(t, "--version"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A source tree without a Git history, such as a source archive, is built without a stamp.
func TestTheVersionOfABuildThatGoDoesNotStamp(t *testing.T) {
	if testing.Short() {
		t.Skip("it links two programs")
	}
	t.Parallel()
	const at = "github.com/agentoutbox/drainer/cmd/drainer/cli."
	for name, test := range map[string]struct {
		flags string
		want  buildVersion
		flag  string
	}{
		"and the linker does not either": {"-s -w", buildVersion{Version: "(devel)", Go: runtime.Version()}, "drainer version (devel)\n"},
		"and the linker does": {
			"-s -w -X " + at + "version=v1.2.3 -X " + at + "revision=abc -X " + at + "date=2026-11-28T00:00:00Z",
			buildVersion{Version: "v1.2.3", Revision: "abc", Date: "2026-11-28T00:00:00Z", Go: runtime.Version()},
			"drainer version v1.2.3\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drainer := filepath.Join(t.TempDir(), "drainer")
			if said, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags", test.flags, "-o", drainer, "..").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			var got buildVersion
			said, err := exec.Command(drainer, "version", "-o", "json").Output()
			if err := errors.Join(err, json.Unmarshal(said, &got)); err != nil || got != test.want {
				t.Errorf("it says %s (%v), want %+v", said, err, test.want)
			}
			if said, err := exec.Command(drainer, "--version").Output(); err != nil || string(said) != test.flag {
				t.Errorf("it says %q (%v), want %q", said, err, test.flag)
			}
		})
	}
}

func TestVersionIsPrintedAsTableOrJSON(t *testing.T) {
	t.Parallel()
	if got := run(t, "version"); got.code != exitOK || !strings.HasPrefix(got.stdout, "VERSION") {
		t.Errorf("got %+v", got)
	}
	var version buildVersion
	got := run(t, "version", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &version); err != nil || version.Version == "" || version.Go == "" {
		t.Errorf("got %+v (%v)", got, err)
	}
}

func builtins(t testing.TB) dispatch.Registry {
	t.Helper()
	registry, err := dispatch.NewRegistry(builtin.Kinds()...)
	if err != nil {
		t.Fatal(err)
	}
	return registry
}

func newOutbox(t *testing.T) (url string, db *pgxpool.Pool) {
	t.Helper()
	url = drainertest.Database(t)
	return url, drainertest.Connect(t, url)
}

// The error for a login that lacks a role names the role, and says how to get it.
func TestARefusalNamesTheRoleThatIsMissing(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	agent := drainertest.Login(t, url, "outbox_agent")
	stranger := drainertest.Login(t, url)
	file := writeValid(t)
	for _, test := range []struct {
		args []string
		role string
	}{
		{[]string{"status"}, operatorRole},
		{[]string{"intents", "list"}, operatorRole},
		{[]string{"intents", "show", "1"}, operatorRole},
		{[]string{"intents", "cancel", "1", "--reason", "x", "--operator", "o"}, operatorRole},
		{[]string{"runs", "cancel", "r", "--reason", "x", "--operator", "o"}, operatorRole},
		{[]string{"compensate", "r", "--reason", "x", "--operator", "o"}, operatorRole},
		{[]string{"sagas", "list"}, operatorRole},
		{[]string{"tenants", "list"}, operatorRole},
		{[]string{"incidents", "ack", "1", "--reason", "x", "--operator", "o"}, operatorRole},
		{[]string{"providers", "pause", "stripe", "--reason", "x", "--operator", "o"}, operatorRole},
		{[]string{"run", "--once", "--config", file}, drainerRole},
		{[]string{"migrate", "retention", "--config", file}, "the login that owns the schema outbox"},
	} {
		for _, login := range []string{agent, stranger} {
			got := run(t, append(test.args, "--database-url", login)...)
			if got.code != exitFailed || !strings.Contains(got.stderr, test.role) || !strings.Contains(got.stderr, "may not do this") || strings.Contains(got.stderr, "SQLSTATE") {
				t.Errorf("%v: %+v, want %s", test.args, got, test.role)
			}
		}
	}
	if got := run(t, "migrate", "up", "--database-url", drainertest.Login(t, drainertest.EmptyDatabase(t))); got.code != exitFailed || !strings.Contains(got.stderr, "may create it") {
		t.Errorf("migrate up: %+v", got)
	}
	if got := run(t, "runs", "cancel", "nope", "--reason", "x", "--operator", "o", "--database-url", url); got.stderr != "drainer: no agent run has this id; `drainer intents list` shows those there are\n" {
		t.Errorf("an unknown run: %+v", got)
	}
}

// A second daemon on a host says which setting to change, before it says or does anything else.
func TestAPortThatIsTakenIsNamedWithItsSetting(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	file := write(t, "drainer.yaml", strings.ReplaceAll(strings.ReplaceAll(validConfig, `":9464"`, `"`+taken.Addr().String()+`"`), "TOKEN", write(t, "token", "s3cret-token\n")))
	url, db := newOutbox(t)
	got := run(t, "run", "--config", file, "--database-url", url)
	if got.code != exitFailed || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 ||
		!strings.Contains(got.stderr, "listens on "+taken.Addr().String()+"; set server.listen in the configuration") {
		t.Errorf("got %+v", got)
	}
	if n := drainertest.Value[int](t, db, `SELECT count(*)::int FROM outbox.worker`); n != 0 {
		t.Errorf("%d workers joined", n)
	}
}

// Agents choose the names of tools, and a table shows them on a terminal.
func TestWhatAgentsNameCommandsNoTerminal(t *testing.T) {
	t.Parallel()
	const hostile = "pay\x1b[2J\x1b]52;c;cm0=\a\r\nstripe\t0\u009b\u202e"
	var printed bytes.Buffer
	overview := operator.Overview{Providers: []operator.ProviderOverview{{Provider: hostile}}}
	if err := writeOverview(&printed, overview); err != nil {
		t.Fatal(err)
	}
	if text := strings.ReplaceAll(printed.String(), "\n", ""); strings.ContainsFunc(text, isUnprintable) {
		t.Errorf("it prints %q", text)
	}
	if !strings.Contains(printed.String(), `pay\x1b[2J`) || strings.Count(printed.String(), "\n") > 2 {
		t.Errorf("it does not name the provider in one line: %q", printed.String())
	}
}

func TestAnIntentOfAToolThatNoDaemonServesIsNotEnqueued(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	for _, tool := range []string{"bank/pay", "mail/send"} {
		drainertest.Exec(t, db, `INSERT INTO outbox.tool (name) VALUES ($1)`, tool)
	}
	for tool, want := range map[string]string{
		"bank/pya":    `no daemon serves the tool "bank/pya"; did you mean "bank/pay"?; if it is new in the configuration`,
		"bank/refund": `no daemon serves the tool "bank/refund"; known here: bank/pay; if it is new in the configuration`,
		"banc/pay":    `no daemon serves the tool "banc/pay"; none serves its provider; did you mean "bank"?; if`,
		"nope/charge": `no daemon serves the tool "nope/charge"; none serves its provider; known here: bank, mail; if it is new in the configuration`,
	} {
		got := run(t, "enqueue", "--run", "r", "--step", "s", "--tool", tool, "--scope", "b", "--payload", "{}", "--database-url", url)
		if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: got %+v, want %s", tool, got, want)
		}
	}
	if n := drainertest.Value[int](t, db, `SELECT count(*)::int FROM outbox.intent`); n != 0 {
		t.Errorf("%d intents", n)
	}
	drainertest.Exec(t, db, `INSERT INTO outbox.tool (name) SELECT 'bank/a' || n FROM generate_series(1, 1100) n`)
	if got := run(t, "enqueue", "--run", "r", "--step", "s", "--tool", "bank/pay", "--scope", "b", "--payload", "{}", "--database-url", url); got.code != exitOK {
		t.Errorf("a tool behind a thousand others: %+v", got)
	}
}

func TestStatusShowsWhatWaitsAndWhatIsPaused(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `SELECT outbox.enqueue('r', 's', 'bank/pay', 'b', '{}')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.provider (name, paused) VALUES ('shop', true)`)
	got := run(t, "status", "--database-url", url)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.code != exitOK || len(lines) != 3 {
		t.Fatalf("exit %d, %q, %s", got.code, got.stdout, got.stderr)
	}
	for i, want := range []string{"PROVIDER PENDING DUE IN PROGRESS", "bank 1 1 0", "shop 0 0 0 0s 0s true closed"} {
		if line := strings.Join(strings.Fields(lines[i]), " "); !strings.HasPrefix(line, want) {
			t.Errorf("line %d is %q, want %q", i, line, want)
		}
	}
}

// suggestions returns the answer to a shell that completes the last word of a command line.
func suggestions(t *testing.T, args ...string) []string {
	t.Helper()
	got := run(t, append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.code != exitOK || !strings.HasPrefix(lines[len(lines)-1], ":") {
		t.Fatalf("%v: %+v", args, got)
	}
	return lines[:len(lines)-1]
}

func TestAShellSuggestsWhatIsThere(t *testing.T) {
	t.Parallel()
	file := writeValid(t)
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `SELECT outbox.enqueue('run-' || n, 's', 'bank/pay', 'b', '{}') FROM generate_series(1, 2) n`)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 1, 'run-1')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.saga (agent_run_id) VALUES ('run-2')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.provider (name) VALUES ('bank')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.tool (name) VALUES ('bank/pay')`)
	configured, connected := []string{"--config", file}, []string{"--database-url", url}
	for _, test := range []struct {
		from, line []string
		want       []string
	}{
		{configured, []string{"providers", "pause", ""}, []string{"stripe"}},
		{connected, []string{"providers", "pause", ""}, []string{"bank"}},
		{configured, []string{"intents", "list", "--tool", "stripe/c"}, []string{"stripe/create_charge\tkey_idempotent"}},
		{connected, []string{"intents", "list", "--tool", ""}, []string{"bank/pay"}},
		{nil, []string{"intents", "list", "--status", "comp"}, []string{"completed", "compensated", "compensation_failed"}},
		{nil, []string{"intents", "cancel", "--status", ""}, []string{"pending"}},
		{connected, []string{"intents", "show", ""}, []string{"2\tpending, bank/pay", "1\tpending, bank/pay"}},
		{connected, []string{"incidents", "ack", ""}, []string{"1\topen, outcome_unknown"}},
		{connected, []string{"incidents", "ack", "1", ""}, nil},
		{connected, []string{"runs", "cancel", "run-"}, []string{"run-1", "run-2"}},
		{connected, []string{"runs", "cancel", ""}, []string{"run-2", "run-1"}},
		{connected, []string{"sagas", "show", ""}, []string{"run-2\tbegun"}},
	} {
		drainertest.Eventually(t, fmt.Sprintf("%v suggests %q", test.line, test.want), func() bool { // a slow machine may need more than its second
			return slices.Equal(suggestions(t, slices.Concat(test.from, test.line)...), test.want)
		})
	}
}

// A shell waits for the suggestions, and shows all output. So a read that fails must suggest nothing.
func TestWhatCannotBeReadSuggestsNothing(t *testing.T) {
	t.Parallel()
	for _, from := range [][]string{
		{"--database-url", "postgres://127.0.0.1:1/none"}, {"--database-url", "nonsense"}, {"--config", "/nope.yaml"},
	} {
		for _, line := range [][]string{{"intents", "show", ""}, {"providers", "pause", ""}, {"intents", "list", "--tool", ""}} {
			if got := suggestions(t, slices.Concat(from, line)...); len(got) != 0 {
				t.Errorf("%v: %q", from, got)
			}
		}
	}
}

func TestHelpSaysHowToGetSuggestions(t *testing.T) {
	t.Parallel()
	got := run(t, "--help")
	for _, want := range []string{"completion ", "See what is wrong:"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q:\n%s", want, got.stdout)
		}
	}
	for line := range strings.Lines(got.stdout) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
}

func TestAHealthcheckAsksTheDaemonOfThisMachine(t *testing.T) {
	t.Parallel()
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("the database is away\n"))
		}
	}))
	defer daemon.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(daemon.URL, "http://"), ":")
	for name, test := range map[string]struct {
		listen string
		flags  []string
		code   int
		says   string
	}{
		"alive":                     {"127.0.0.1:" + port, nil, exitOK, ""},
		"listening everywhere":      {":" + port, nil, exitOK, ""},
		"listening on every IPv6":   {"[::]:" + port, nil, exitOK, ""},
		"not ready":                 {"127.0.0.1:" + port, []string{"--ready"}, exitFailed, "/readyz: HTTP 503: the database is away"},
		"no daemon at that address": {strings.TrimPrefix(gone.URL, "http://"), nil, exitFailed, "no daemon answers"},
	} {
		file := write(t, "drainer.yaml", strings.Replace(strings.ReplaceAll(validConfig, "TOKEN", "/nowhere"), ":9464", test.listen, 1))
		got := run(t, append([]string{"healthcheck", "--config", file}, test.flags...)...)
		if got.code != test.code || !strings.Contains(got.stderr, test.says) {
			t.Errorf("%s: %d, %s", name, got.code, got.stderr)
		}
	}
}

// The daemon rejects a file with a mistake, and continues with the old one.
// A health check that failed for the mistake would end a container that then cannot start.
func TestAMistakeInTheFileFailsNoHealthcheck(t *testing.T) {
	daemon := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer daemon.Close()
	address := strings.TrimPrefix(daemon.URL, "http://")
	t.Setenv("LISTEN_OF_TEST", address)
	valid := strings.ReplaceAll(strings.ReplaceAll(validConfig, "TOKEN", "/nowhere"), ":9464", address)
	for name, content := range map[string]string{
		"an unknown field":                 valid + "workr: {}\n",
		"an unknown field of the server":   strings.Replace(valid, "server: {", "server: {lisen: 1, ", 1),
		"no providers":                     "server: {listen: \"" + address + "\"}\n",
		"a class that is not":              strings.Replace(valid, "class: key_idempotent", "class: kye_idempotent", 1),
		"a reference to nothing":           strings.Replace(valid, "30s", "\"${file:/nowhere}\"", 1),
		"an alias without an anchor":       valid + "pages: *none\n",
		"a reference, and an unknown one":  strings.Replace(valid, address, "${env:LISTEN_OF_TEST}", 1) + "workr: {}\n",
		"an anchor, and an unknown field":  "anchors: &a {listen: \"" + address + "\"}\nserver: {<<: *a}\n",
		"a byte order mark and no version": "\ufeffserver: {listen: \"" + address + "\"}\n",
	} {
		if got := run(t, "healthcheck", "--config", write(t, "drainer.yaml", content)); got.code != exitOK {
			t.Errorf("%s: %d, %s", name, got.code, got.stderr)
		}
	}

	// If the file gives no address, the daemon's other sources of the address count.
	unreadable := map[string]string{
		"no file":                 filepath.Join(t.TempDir(), "gone.yaml"),
		"no YAML":                 write(t, "drainer.yaml", "server: {listen: ["),
		"two documents":           write(t, "drainer.yaml", "version: 1\n---\nversion: 1\n"),
		"UTF-16":                  write(t, "drainer.yaml", "\xff\xfev"),
		"a list":                  write(t, "drainer.yaml", "- 1\n"),
		"no address":              write(t, "drainer.yaml", "server: {listen: 9464}\n"),
		"an address without port": write(t, "drainer.yaml", "server: {listen: here}\n"),
		"a reference to nothing":  write(t, "drainer.yaml", "server: {listen: \"${file:/nowhere}\"}\n"),
	}
	t.Setenv("DRAINER_LISTEN", address)
	for name, file := range unreadable {
		if got := run(t, "healthcheck", "--config", file); got.code != exitOK {
			t.Errorf("%s: %d, %s", name, got.code, got.stderr)
		}
	}

	// If those are wrong as well, the command says why, and how to set the address.
	gone := httptest.NewServer(nil)
	gone.Close()
	t.Setenv("DRAINER_LISTEN", strings.TrimPrefix(gone.URL, "http://"))
	for name, file := range unreadable {
		if got := run(t, "healthcheck", "--config", file); got.code != exitFailed || !strings.Contains(got.stderr, "no daemon answers") || !strings.Contains(got.stderr, "--listen") || !strings.Contains(got.stderr, file) {
			t.Errorf("%s, at another address: %d, %s", name, got.code, got.stderr)
		}
		if got := run(t, "healthcheck", "--listen", address, "--config", file); got.code != exitOK {
			t.Errorf("%s, with --listen: %d, %s", name, got.code, got.stderr)
		}
	}
	if got := run(t, "healthcheck", "--listen", "here"); got.code != exitUsage || !strings.Contains(got.stderr, "--listen") {
		t.Errorf("an address without a port: %d, %s", got.code, got.stderr)
	}
}

// An operator with a legitimate retention of thirty days writes it into the file, and the owner publishes it.
func TestTheOwnerPublishesTheRetentionOfAFile(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	db := drainertest.Connect(t, url)
	kept := func(tool string) int {
		t.Helper()
		return drainertest.Value[int](t, db, `SELECT outbox.retention_floor($1)::int / 86400`, tool)
	}
	publish := func(retention, ownRetention string) result {
		t.Helper()
		file := write(t, "drainer.yaml", "version: 1\nretention: "+retention+`
providers:
  log: {adapter: log, tools: {log: {idempotency: {class: non_idempotent}, compensation: none`+ownRetention+`}, other: {idempotency: {class: non_idempotent}, compensation: none}}}
`)
		got := run(t, "migrate", "retention", "--config", file, "--database-url", url)
		if got.code != exitOK {
			t.Fatal(got.stderr)
		}
		return got
	}
	if kept("log/log") != 90 {
		t.Error("without a word of the owner it is not 90 days")
	}
	publish("30d", ", retention: 7d")
	if kept("log/log") != 7 || kept("log") != 7 || kept("log/other") != 30 || kept("another/tool") != 30 {
		t.Error("the floors are not those of the file")
	}
	if got := publish("36h", ""); !strings.Contains(got.stdout, "retention_floor/log/log") || !strings.Contains(got.stdout, "removed") {
		t.Errorf("it says %s, want what was removed", got.stdout)
	}
	if left := drainertest.Value[string](t, db, `SELECT string_agg(name || ' ' || value, ',') FROM outbox.setting`); left != "retention_floor 129600 seconds" {
		t.Errorf("the settings are %s", left)
	}
	if got := publish("36h", ""); got.stdout != "nothing to do\n" {
		t.Errorf("it says %s", got.stdout)
	}
}

func TestTheOwnerGivesReferencesAnIndex(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	for _, step := range []struct{ command, want string }{
		{"references on", "references"}, {"references on", "nothing to do\n"}, {"status", "references"}, {"references off", "references"}, {"references off", "nothing to do\n"},
	} {
		got := run(t, append(append([]string{"migrate"}, strings.Fields(step.command)...), "--database-url", url)...)
		if got.code != exitOK || !strings.Contains(got.stdout, step.want) {
			t.Errorf("%s: %+v", step.command, got)
		}
	}
	if got := run(t, "migrate", "references", "please", "--database-url", url); got.code != exitUsage {
		t.Errorf("neither on nor off: %+v", got)
	}
}

func TestARefusedCommandNamesTheRoleThatIsMissing(t *testing.T) {
	url, _ := stuck(t)
	login := drainertest.Login(t, url, "outbox_drainer")
	for _, args := range [][]string{
		{"incidents", "ack", "1", "--reason", "mine"}, {"sagas", "resolve", "doomed", "--reason", "mine"},
	} {
		got := run(t, append(args, "--database-url", login)...)
		if got.code != exitFailed || !strings.Contains(got.stderr+got.stdout, "GRANT outbox_operator TO") {
			t.Errorf("%v exits with %d and says %s%s", args, got.code, got.stdout, got.stderr)
		}
	}
	if got := run(t, "intents", "list", "--database-url", login); got.code != exitOK {
		t.Errorf("the daemon's login may not read: %s", got.stderr)
	}
}
