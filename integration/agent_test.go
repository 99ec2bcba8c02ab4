package integration_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// The example's agents crash before each of their lines once, and are started again. The
// second of them asks for the first one's steps in other words.
func TestAnAgentThatCrashesAtAnyLineHasEachEffectOnce(t *testing.T) {
	t.Parallel()
	python := pythonWithPsycopg2(t)
	w := newProducers(t)
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("../examples/agent-python")); err != nil {
		t.Fatal(err)
	}
	agent, err := os.ReadFile(filepath.Join(folder, "agent.py"))
	if err != nil {
		t.Fatal(err)
	}
	configured := strings.ReplaceAll(string(agent), "demo/charge", "sim/act")
	if err := os.WriteFile(filepath.Join(folder, "agent.py"), []byte(configured), 0o600); err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile(filepath.Join(folder, "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	w.Exec(string(schema))
	packages, err := filepath.Abs("../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	start := func(arguments ...string) (crashed bool) {
		command := exec.CommandContext(t.Context(), python, arguments...)
		command.Dir = folder
		command.Env = append(os.Environ(), "DATABASE_URL="+w.URL, "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
		output, err := command.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 9 {
			return true
		}
		if err != nil {
			t.Errorf("%q: %v\n%s", arguments, err, output)
		}
		return false
	}

	const lines = 96 // more than each agent has
	var clerks, closers atomic.Int64
	t.Run("agents", func(t *testing.T) {
		for line := 1; line <= lines; line++ {
			t.Run(fmt.Sprint(line), func(t *testing.T) {
				t.Parallel()
				run := fmt.Sprintf("run-%d", line)
				for role, crashes := range map[string]*atomic.Int64{"clerk": &clerks, "closer": &closers} {
					if start("crash.py", fmt.Sprint(line), run, role) {
						crashes.Add(1)
						start("agent.py", run, role)
					}
				}
			})
		}
	})
	if clerks.Load() < 30 || closers.Load() < 30 || closers.Load() == lines {
		t.Errorf("clerks crashed at %d lines and closers at %d, of %d", clerks.Load(), closers.Load(), lines)
	}
	w.AwaitRest()
	if got := w.Count(`SELECT count(*) FROM (SELECT FROM outbox.status WHERE status = 'completed' GROUP BY agent_run_id HAVING count(*) = 3) r`); got != lines {
		t.Errorf("%d of %d runs have their three steps completed", got, lines)
	}
	if other := drainertest.Value[int](t, w.DB, `SELECT count(*) FROM outbox.intent`); other != 3*lines {
		t.Errorf("%d intents of %d runs", other, lines)
	}
	w.AssertOneEffectEach()
	const told = "This step was already asked for with other values. The first request stands. Do not ask for it again."
	if got := w.Count(`SELECT count(*) FROM agent.progress WHERE $1 = ANY (heard)`, told); got < lines {
		t.Errorf("%d agents of %d runs heard that their step was asked for before", got, lines)
	}
}
