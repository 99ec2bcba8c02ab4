package integration_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
