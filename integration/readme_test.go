package integration_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/docblock"
)

// The README's Python example is what a producer copies, so it is what runs.
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
