package main_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The test does what a reader would do with this example.
func TestTheProgramKnowsItsOwnAdapter(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "drainer")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	command := exec.CommandContext(t.Context(), program, "config", "validate", "--config", "drainer.yaml")
	command.Env = append(command.Environ(), "DATABASE_URL=postgres://localhost/app")
	output, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "warehouse/ship") {
		t.Errorf("%v\n%s", err, output)
	}
	schema, err := exec.CommandContext(t.Context(), program, "config", "schema").Output()
	if err != nil || !strings.Contains(string(schema), `"filedrop"`) || !strings.Contains(string(schema), `"webhook"`) {
		t.Errorf("the schema does not know the adapter: %v", err)
	}
}
