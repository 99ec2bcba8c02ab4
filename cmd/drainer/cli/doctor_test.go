package cli

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainertest"
)

const configOfOne = `version: 1
providers:
  bank:
    adapter: http
    http: {base_url: "http://ADDRESS", headers: {Authorization: "Bearer hunter2"}}
    tools: {pay: {http: {path: /}, idempotency: {class: read_only}}}
`

func configAt(t *testing.T, address string) (path string) {
	t.Helper()
	return write(t, "drainer.yaml", strings.ReplaceAll(configOfOne, "ADDRESS", address))
}

func TestTheExitCodeOfTheDoctorSaysHowBadItIs(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	current, behind := drainertest.Database(t), drainertest.EmptyDatabase(t)
	for name, test := range map[string]struct {
		config, database string
		code             int
		stdout, stderr   string
	}{
		"a provider is away":       {configAt(t, "127.0.0.1:1"), current, exitFailed, "TCP: nothing listens at 127.0.0.1:1", " problem"},
		"the schema is behind":     {configAt(t, listener.Addr().String()), behind, exitSchemaBehind, "→ drainer migrate up", "the schema is behind"},
		"the database is away":     {configAt(t, listener.Addr().String()), "postgres://u:hunter2@127.0.0.1:1/x", exitDatabaseUnreachable, "there is no connection", "the database cannot be reached"},
		"the configuration is bad": {write(t, "bad.yaml", "version: 2\n"), current, exitConfigInvalid, "", "version: 1"},
		"the URL is bad":           {configAt(t, "127.0.0.1:1"), "hunter2", exitUsage, "", "the database URL cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, "doctor", "--config", test.config, "--database-url", test.database)
			if got.code != test.code || !strings.Contains(got.stdout, test.stdout) || !strings.Contains(got.stderr, test.stderr) {
				t.Errorf("got %+v, want %+v", got, test)
			}
			if strings.Contains(got.stdout+got.stderr, "hunter2") {
				t.Error("it shows a secret")
			}
		})
	}
}

func TestWithoutAProblemTheDoctorExitsWith0(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		verdict doctor.Verdict
		code    int
	}{{doctor.OK, exitOK}, {doctor.Warning, exitOK}, {doctor.NotChecked, exitOK}, {doctor.Problem, exitFailed}} {
		if got := exitCode(judge([]doctor.Finding{{Check: "tls", Verdict: test.verdict}}, nil)); got != test.code {
			t.Errorf("%s: exit %d", test.verdict, got)
		}
	}
}

func TestTheDoctorTalksToPrograms(t *testing.T) {
	t.Parallel()
	got := run(t, "doctor", "--database-url", drainertest.Database(t), "-o", "json")
	var seen diagnosis
	if err := json.Unmarshal([]byte(got.stdout), &seen); err != nil {
		t.Fatalf("%v: %s", err, got.stdout)
	}
	if sum := seen.Problems + seen.Warnings + seen.OK + seen.NotChecked; sum != len(seen.Findings) || sum < 20 {
		t.Errorf("%d findings, counted %d", len(seen.Findings), sum)
	}
	for _, f := range seen.Findings {
		if f.Check == "" || f.Seen == "" || (f.Cure == "") != (f.Verdict == doctor.OK) {
			t.Errorf("%+v", f)
		}
	}
}

const configOfSecrets = `version: 1
database: {url: "${env:DRAINER_TEST_NO_URL}"}
providers:
  bank:
    adapter: http
    http: {base_url: "https://bank.invalid", headers: {Authorization: "Bearer ${env:DRAINER_TEST_NO_KEY}"}}
    tools: {pay: {http: {path: /}, idempotency: {class: read_only}}}
`

// On-call operators do not have the production secrets.
func TestOperatorsNeedNoSecretOfAProvider(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", configOfSecrets)
	url := drainertest.Database(t)
	for _, args := range [][]string{
		{"intents", "list"},
		{"status"},
		{"incidents", "list"},
		{"sagas", "list"},
		{"providers", "list"},
		{"tenants", "list"},
		{"migrate", "status"},
		{"intents", "retry", "--status", "failed"},
	} {
		if got := run(t, append(args, "--config", file, "--database-url", url)...); got.code != exitOK || got.stderr != "" {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := run(t, "intents", "list", "--config", file); got.code != exitConfigInvalid || !strings.Contains(got.stderr, "DRAINER_TEST_NO_URL is not set") || strings.Contains(got.stderr, "NO_KEY") {
		t.Errorf("without the URL: %+v", got)
	}
	if got := run(t, "run", "--config", file, "--database-url", url); got.code != exitConfigInvalid || !strings.Contains(got.stderr, "DRAINER_TEST_NO_KEY is not set") {
		t.Errorf("a daemon: %+v", got)
	}
}

func TestAnOfflineDoctorSaysWhatItDidNotCheck(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", configOfSecrets)
	got := run(t, "doctor", "--offline", "--config", file, "--database-url", drainertest.Database(t))
	if !strings.Contains(squeeze(got.stdout), "ok schema every migration") || !strings.Contains(squeeze(got.stdout), "not checked provider bank not gone to, as --offline asks; not read: env:DRAINER_TEST_NO_KEY") {
		t.Errorf("got %+v", got)
	}
	got = run(t, "doctor", "--offline", "--config", file)
	if got.code != exitOK || !strings.Contains(got.stdout, "DRAINER_TEST_NO_URL is not set") || !strings.Contains(got.stdout, "there is no connection") || !strings.Contains(got.stdout, " 0 ok") {
		t.Errorf("got %+v", got)
	}
}
