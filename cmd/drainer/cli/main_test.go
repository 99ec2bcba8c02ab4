package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/builtin"
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

// A login that lacks a role reads which one, and how to get it.
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

// A second daemon of a host says which setting to change, before it says or does anything.
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
