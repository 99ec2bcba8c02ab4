package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Program is drainer against one database.
type Program struct {
	Env []string // of its processes, this one's environment included

	t    testing.TB
	path string
}

// New is the program as it ships. env are more variables, NAME=value.
func New(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{}.against(t, databaseURL, env...)
}

// WithFailpoints is the program with its failpoints compiled in; none is armed.
// The variable [MutantVariable] puts one of [Mutants] in its place.
func WithFailpoints(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, mutant: os.Getenv(MutantVariable)}.against(t, databaseURL, env...)
}

// Raced is WithFailpoints, built with the race detector: a process that races
// says so in its log.
func Raced(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, raced: true, mutant: os.Getenv(MutantVariable)}.against(t, databaseURL, env...)
}

// Mutated is WithFailpoints with a guard taken out: one of [Mutants], by name.
func Mutated(t testing.TB, mutant, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, mutant: mutant}.against(t, databaseURL, env...)
}

func (v variant) against(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	path, err := v.path()
	if err != nil {
		t.Fatal(err)
	}
	return &Program{t: t, path: path, Env: append(os.Environ(), append(env, "DATABASE_URL="+databaseURL)...)}
}

// For reports to another test, a subtest perhaps.
func (p *Program) For(t testing.TB) *Program {
	other := *p
	other.t = t
	return &other
}

// Command is `drainer args…`, not started.
func (p *Program) Command(args ...string) *exec.Cmd {
	command := exec.Command(p.path, args...)
	command.Env = slices.Clip(p.Env) // whoever appends appends for this process alone
	return command
}

// Run fails the test unless the command ends with that exit code.
func (p *Program) Run(wantExit int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	command := p.Command(args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if got := command.ProcessState.ExitCode(); got != wantExit {
		p.t.Fatalf("drainer %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, wantExit, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// RunJSON decodes what the command says with -o json.
func (p *Program) RunJSON(into any, args ...string) {
	p.t.Helper()
	stdout, _ := p.Run(0, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(stdout), into); err != nil {
		p.t.Fatalf("drainer %s: %v\n%s", strings.Join(args, " "), err, stdout)
	}
}

// WriteConfig returns the path of a file with that text.
func WriteConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
