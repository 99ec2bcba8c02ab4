package demo_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/demo"
	"github.com/agentoutbox/drainer/drainertest"
)

// The sandbox's next steps enqueue and run with the drainer.yaml of the folder.
func TestASandboxRefusesTheConfigurationOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	const foreign = "version: 1\ndatabase: {url: \"${env:DATABASE_URL}\"}\n"
	config := filepath.Join(folder, "drainer.yaml")
	if err := os.WriteFile(config, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	sandbox, err := demo.OpenSandbox(t.Context(), folder, "127.0.0.1:0", drainertest.EmptyDatabase(t))
	if err == nil {
		_ = sandbox.Close()
		t.Fatal("it was opened")
	}
	if !strings.Contains(err.Error(), "--folder") {
		t.Errorf("it says no way out: %v", err)
	}
	if kept, err := os.ReadFile(config); err != nil || string(kept) != foreign {
		t.Errorf("the configuration became %q, %v", kept, err)
	}
}

func TestASandboxKeepsWhatWasAddedToItsConfiguration(t *testing.T) {
	t.Parallel()
	folder, server := t.TempDir(), drainertest.EmptyDatabase(t)
	wrote := func() bool {
		t.Helper()
		sandbox, err := demo.OpenSandbox(t.Context(), folder, "127.0.0.1:0", server)
		if err != nil {
			t.Fatal(err)
		}
		if err := sandbox.Close(); err != nil {
			t.Error(err)
		}
		return sandbox.IsNew
	}
	if !wrote() {
		t.Error("the first sandbox wrote no configuration")
	}
	config := filepath.Join(folder, "drainer.yaml")
	written, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	added := string(written) + "# mine\n"
	if err := os.WriteFile(config, []byte(added), 0o600); err != nil {
		t.Fatal(err)
	}
	if wrote() {
		t.Error("the second sandbox wrote a configuration")
	}
	if kept, err := os.ReadFile(config); err != nil || string(kept) != added {
		t.Errorf("the configuration became %q, %v", kept, err)
	}
}
