package migrations_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// What is embedded cannot be changed in a test, so it builds the program of a repository in
// which all of today's migrations are released.
func TestAReleasedMigrationThatWasEditedIsRefused(t *testing.T) {
	t.Parallel()
	released, err := filepath.Glob("sql/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var sums strings.Builder
	for _, name := range released {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), filepath.Base(name))
	}
	url := drainertest.Database(t)
	for name, c := range map[string]struct {
		replaced map[string]string
		refused  bool
	}{
		"edited":    {map[string]string{"sql/00003_status.sql": "SELECT 1;"}, true},
		"a new one": {replaced: map[string]string{"sql/00900_more.sql": "-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT 1;\n"}},
	} {
		c.replaced["frozen.sha256"] = sums.String()
		program := buildWith(t, c.replaced)
		for _, command := range [][]string{{"migrate", "status"}, {"migrate", "up"}, {"doctor"}} {
			output, err := exec.Command(program, append(command, "--database-url", url)...).CombinedOutput()
			if refused := strings.Contains(string(output), "00003_status.sql"); refused != c.refused || (refused && err == nil) {
				t.Errorf("%s: %v: %v\n%s", name, command, err, output)
			}
		}
	}
}

// buildWith builds drainer with other contents of these files of this folder.
func buildWith(t *testing.T, contents map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	overlay := map[string]map[string]string{"Replace": {}}
	for name, content := range contents {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(folder, filepath.Base(name))
		if err := os.WriteFile(other, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][path] = other
	}
	written, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "overlay.json"), written, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "drainer")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-overlay", filepath.Join(folder, "overlay.json"), "-o", program, "../cmd/drainer")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return program
}
