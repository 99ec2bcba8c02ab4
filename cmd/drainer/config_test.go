package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/config"
)

func TestConfigValidateSumsUpTheTools(t *testing.T) {
	t.Parallel()
	got := run(t, "config", "validate", "--config", writeValid(t))
	want := `TOOL                  CLASS           KEY TTL  MAX ATTEMPTS  TIMEOUT
stripe/create_charge  key_idempotent  24h0m0s  8             30s
stripe/refund         key_idempotent  24h0m0s  8             30s
`
	if got != (result{exitOK, want, ""}) {
		t.Errorf("got %+v, want\n%s", got, want)
	}
}

func TestConfigValidatePrintsJSON(t *testing.T) {
	t.Parallel()
	got := run(t, "config", "validate", "--config", writeValid(t), "-o", "json")
	var printed validation
	if err := json.Unmarshal([]byte(got.stdout), &printed); err != nil {
		t.Fatal(err)
	}
	if got.code != exitOK || !printed.Valid || len(printed.Tools) != 2 || printed.Tools[0].Tool != "stripe/create_charge" {
		t.Errorf("got %+v", got)
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
	published, err := os.ReadFile("../../drainer.schema.json")
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
	} {
		t.Setenv("DATABASE_URL", test.environment)
		options := newOptions()
		options.databaseURL, options.configPath = test.flag, test.config
		if got, err := options.findDatabase(newRoot()); got != test.want || err != nil {
			t.Errorf("%+v: got %q, %v", test, got, err)
		}
	}
}

func TestADatabaseMustBeNamed(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	_, err := newOptions().findDatabase(newRoot())
	if exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--database-url URL, database.url in the configuration, or DATABASE_URL") {
		t.Errorf("got %v", err)
	}
}
