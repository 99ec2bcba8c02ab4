package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/config"
)

func TestConfigValidateSumsUpTheTools(t *testing.T) {
	t.Parallel()
	got := run(t, "config", "validate", "--config", writeValid(t))
	want := `TOOL                  CLASS           KEY TTL  MAX ATTEMPTS  TIMEOUT  COMPENSATION   AGENT SAFE
stripe/create_charge  key_idempotent  24h0m0s  8             30s      stripe/refund  yes
stripe/refund         key_idempotent  24h0m0s  8             30s      none           yes
`
	if got != (result{exitOK, want, ""}) {
		t.Errorf("got %+v, want\n%s", got, want)
	}
}

func TestConfigValidateWarnsOfASecretThatIsTooShortToBeFound(t *testing.T) {
	t.Parallel()
	path := write(t, "drainer.yaml", strings.ReplaceAll(validConfig, "TOKEN", write(t, "token", "short")))
	if got := run(t, "config", "validate", "--config", path); got.code != exitOK || !strings.Contains(got.stderr, "secrets shorter than 8 bytes, which are not taken out of what providers answer: 1") {
		t.Errorf("got %+v", got)
	}
}

func TestConfigValidatePrintsJSON(t *testing.T) {
	t.Parallel()
	got := run(t, "config", "validate", "--config", writeValid(t), "-o", "json")
	var printed validation
	if err := json.Unmarshal([]byte(got.stdout), &printed); err != nil {
		t.Fatal(err)
	}
	if got.code != exitOK || !printed.Valid || len(printed.Tools) != 2 || printed.Tools[0].Name != "stripe/create_charge" {
		t.Errorf("got %+v", got)
	}
}

const unsafeConfig = `version: 1
providers:
  mail:
    adapter: http
    http: {base_url: https://mail.example}
    tools:
      send:
        http: {path: /send}
        idempotency: {class: non_idempotent}
        lookup: {tool: find}
      find:
        http: {method: GET, path: /find, response: {rules: [{when: .status == 404, outcome: absent}]}}
        idempotency: {class: read_only}
`

func TestConfigValidateWarnsOfUnsafeTools(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", unsafeConfig)
	const warning = "drainer: warning: tools that are not safe for agents: 1 of 2\n" +
		"drainer: warning: tools with neither compensate_with nor compensation: none: 1 of 2\n"
	want := `TOOL       CLASS           KEY TTL  MAX ATTEMPTS  TIMEOUT  COMPENSATION  AGENT SAFE
mail/find  read_only                8             30s                    yes
mail/send  non_idempotent           8             30s      missing       no, lacks compensate_with, reversal_window
`
	if got := run(t, "config", "validate", "--config", file); got != (result{exitOK, want, warning}) {
		t.Errorf("got %+v, want\n%s", got, want)
	}
	got := run(t, "config", "validate", "--config", file, "-o", "json")
	var printed validation
	if err := json.Unmarshal([]byte(got.stdout), &printed); err != nil {
		t.Fatal(err)
	}
	safe, unsafe := printed.Tools[0], printed.Tools[1]
	if !safe.AgentSafe || safe.Missing != nil || unsafe.AgentSafe || !slices.Equal(unsafe.Missing, []string{"compensate_with", "reversal_window"}) {
		t.Errorf("got %+v", printed.Tools)
	}
	if safe.Undo != "" || unsafe.Undo != "missing" {
		t.Errorf("got %+v", printed.Tools)
	}
	if got.code != exitOK || got.stderr != warning {
		t.Errorf("got %+v", got)
	}
}

func TestTheLogWarnsOfUnsafeToolsAndOfPagingNobody(t *testing.T) {
	t.Parallel()
	loaded, err := config.Load(write(t, "drainer.yaml", unsafeConfig), newOptions(builtins(t)).registry)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	logWarnings(slog.New(slog.NewJSONHandler(&log, nil)), loaded)
	type warning struct {
		Level          string
		Count          int
		Missing, Tools []string
	}
	var got [3]warning
	lines := json.NewDecoder(&log)
	if err := errors.Join(lines.Decode(&got[0]), lines.Decode(&got[1]), lines.Decode(&got[2])); err != nil || lines.More() {
		t.Fatalf("want three lines: %v", err)
	}
	want := [3]warning{
		{Level: "WARN", Count: 1, Missing: []string{"compensate_with", "reversal_window"}, Tools: []string{"mail/send"}},
		{Level: "WARN", Count: 1, Tools: []string{"mail/send"}},
		{Level: "WARN"}, // no paging channel
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestAConfigWithoutProvidersHasNothingToDrain(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", "version: 1\n")
	want := "drainer: " + file + ": there are no providers, so there is nothing to drain; add one under providers\n"
	for _, args := range [][]string{{"config", "validate"}, {"run", "--once"}} {
		if got := run(t, append(args, "--config", file)...); got != (result{exitConfigInvalid, "", want}) {
			t.Errorf("%v: got %+v, want %s", args, got, want)
		}
	}
}

func TestAMistakeOfAToolIsShownWhereItStands(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", strings.Replace(unsafeConfig, "path: /find", "path: find", 1))
	got := run(t, "config", "validate", "--config", file)
	want := "drainer: " + file + ":12:9: providers.mail.tools.find.http: path: path must start with a slash\n"
	if got != (result{exitConfigInvalid, "", want}) {
		t.Errorf("got %+v, want %s", got, want)
	}
}

func TestInvalidConfigExitsWith3AndOneLineAMistake(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", "version: 1\nworkr: {}\nserver: {listen: 1}\n")
	got := run(t, "config", "validate", "--config", file)
	want := "drainer: " + file + `:2:1: unknown field "workr"; did you mean "worker"?
drainer: ` + file + `:3:18: server.listen: want text; put the value in quotes
`
	if got != (result{exitConfigInvalid, "", want}) {
		t.Errorf("got %+v, want\n%s", got, want)
	}
}

func TestInvalidConfigIsPrintedAsJSONToo(t *testing.T) {
	t.Parallel()
	file := write(t, "drainer.yaml", "version: 1\nworkr: {}\n")
	got := run(t, "config", "validate", "--config", file, "-o", "json")
	var printed validation
	if err := json.Unmarshal([]byte(got.stdout), &printed); err != nil {
		t.Fatal(err)
	}
	want := config.Error{File: file, Line: 2, Column: 1, Message: `unknown field "workr"; did you mean "worker"?`}
	if got.code != exitConfigInvalid || printed.Valid || len(printed.Errors) != 1 || *printed.Errors[0] != want {
		t.Errorf("got %+v", got)
	}
}

func TestMissingConfigExitsWith3(t *testing.T) {
	t.Parallel()
	got := run(t, "config", "validate", "--config", "gone.yaml")
	want := "drainer: gone.yaml: cannot be read: no such file or directory; correct --config\n"
	if got != (result{exitConfigInvalid, "", want}) {
		t.Errorf("got %+v, want %s", got, want)
	}
}

func TestPublishedSchemaIsCurrent(t *testing.T) {
	t.Parallel()
	published, err := os.ReadFile("../../../drainer.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, "config", "schema"); got.code != exitOK || got.stdout != string(published) {
		t.Error("drainer.schema.json is out of date; run: make generate")
	}
}

func TestDatabaseIsChosenByFlagThenConfigThenEnvironment(t *testing.T) {
	file := writeValid(t)
	bare := write(t, "bare.yaml", "version: 1\n")
	for _, test := range []struct{ flag, config, environment, want string }{
		{"flag", file, "environment", "flag"},
		{"", file, "environment", "postgres://localhost/from_config"},
		{"", bare, "environment", "environment"},
		{"", "", "environment", "environment"},
		{"flag", "gone.yaml", "", "flag"},
		{"${file:" + bare + "}", file, "", "version: 1"},
		{"", "", "${file:" + bare + "}", "version: 1"},
	} {
		t.Setenv("DATABASE_URL", test.environment)
		options := newOptions(builtins(t))
		options.databaseURL, options.configPath = test.flag, test.config
		database, err := options.findDatabase(newRoot(builtins(t)))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := database.URL(); got != test.want || err != nil {
			t.Errorf("%+v: got %q, %v", test, got, err)
		}
	}
}

func TestADatabaseMustBeNamed(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	_, err := newOptions(builtins(t)).findDatabase(newRoot(builtins(t)))
	if exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--database-url URL, database.url in the configuration, or DATABASE_URL") {
		t.Errorf("got %v", err)
	}
}

func TestConfigImportWritesAConfigurationThatIsValid(t *testing.T) {
	t.Parallel()
	imported := run(t, "config", "import", goodManifest, "--provider", "billing")
	if imported.code != exitOK || imported.stderr != "" {
		t.Fatalf("got %+v", imported)
	}
	got := run(t, "config", "validate", "--config", write(t, "drainer.yaml", imported.stdout))
	if got.code != exitOK || !strings.Contains(got.stdout, "billing/create_charge  key_idempotent") {
		t.Errorf("got %+v", got)
	}
}

func TestConfigImportSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	mixed := badManifest + `  /v1/addresses:
    put:
      operationId: set_address
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent}
`
	got := run(t, "config", "import", write(t, "openapi.yaml", mixed), "--provider", "billing")
	want := `left out: DELETE /v1/charges: drainer verify manifest finds violations in it: 1
left out: POST /v1/charges: drainer verify manifest finds violations in it: 1
drainer: operations left out: 2
`
	if got.code != exitFailed || got.stderr != want || !strings.Contains(got.stdout, "set_address:") {
		t.Errorf("got %+v, want\n%s", got, want)
	}
	validated := run(t, "config", "validate", "--config", write(t, "drainer.yaml", got.stdout))
	if validated.code != exitOK {
		t.Errorf("what is left is not valid: %+v", validated)
	}
}

func TestConfigImportPrintsNothingWhereNothingCanBeImported(t *testing.T) {
	t.Parallel()
	got := run(t, "config", "import", write(t, "openapi.yaml", badManifest), "--provider", "billing")
	if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "no operation could be imported") {
		t.Errorf("got %+v", got)
	}
	for _, provider := range []string{"", "a/b"} {
		if got := run(t, "config", "import", goodManifest, "--provider", provider); got.code != exitUsage {
			t.Errorf("--provider %q: %+v", provider, got)
		}
	}
}

func TestConfigValidateSaysWhenTwoFilesReachOneAccount(t *testing.T) {
	t.Parallel()
	one := write(t, "one.yaml", unsafeConfig)
	other := write(t, "other.yaml", strings.Replace(unsafeConfig, "tools:", "idempotency: {namespace: eu}\n    tools:", 1))
	const warning = "drainer: warning: providers whose account two outboxes may share, with the same keys: 1; " +
		"give each file an idempotency.namespace there, or each outbox one of its own\n"
	const shared = "PROVIDER  ADDRESS  CREDENTIALS  NAMESPACE\nmail      same     same         same\n"
	if got := run(t, "config", "validate", one, one); got != (result{exitOK, shared, warning}) {
		t.Errorf("got %+v", got)
	}
	if got := run(t, "config", "validate", one, one, "-o", "json"); got.code != exitOK || !strings.Contains(got.stdout, `"same_credentials": true`) {
		t.Errorf("got %+v", got)
	}
	if got := run(t, "config", "validate", one, other, "-o", "json"); got.code != exitOK || got.stderr != "" || !strings.Contains(got.stdout, `"shared": []`) {
		t.Errorf("got %+v", got)
	}
	for _, args := range [][]string{{one}, {one, one, one}, {one, one, "--config", one}} {
		if got := run(t, append([]string{"config", "validate"}, args...)...); got.code != exitUsage {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := run(t, "config", "validate", one, "gone.yaml"); got.code != exitConfigInvalid || !strings.Contains(got.stderr, "gone.yaml: cannot be read") {
		t.Errorf("got %+v", got)
	}
}
