package integration_test

import (
	"bufio"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/integration/program"
)

// The test runs each command of the README's quick start as it is written there, except for `make build`. The
// sandbox's provider gets a free port.
func TestTheQuickStartOfTheReadmeEndsWithACompletedIntent(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	inReadme := blocks(string(readme), "yaml")
	shipped, err := os.ReadFile("../demo/sandbox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(inReadme) != 2 || inReadme[0] != string(shipped) {
		t.Fatalf("the README shows another configuration than demo/sandbox.yaml:\n%s", strings.Join(inReadme, "\n"))
	}
	commands := blocks(string(readme), "sh")
	if len(commands) < 3 || !strings.HasPrefix(commands[0], "make build\n") { // the later blocks install a package
		t.Fatalf("the quick start has another shape than this test knows: %q", commands)
	}
	drainer := program.New(t, "").Command().Path
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(drainer, filepath.Join(folder, "bin", "drainer")); err != nil {
		t.Fatal(err)
	}
	server := " --listen 127.0.0.1:0"
	sandbox := inShell(folder, "exec "+strings.TrimSpace(strings.TrimPrefix(commands[0], "make build\n"))+server)
	awaitSteps(t, sandbox)

	output, err := inShell(folder, "set -e\n"+commands[1]).CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)^status\s+completed`).Match(output) {
		t.Errorf("the second terminal: %v\n%s", err, output)
	}

	// The reader's own tool has an address that is free here.
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(api.Close)
	file, err := os.OpenFile(filepath.Join(folder, "drainer.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(strings.Replace(inReadme[1], "http://127.0.0.1:9099", api.URL, 1))
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	output, err = inShell(folder, "set -e\n"+commands[2]).CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)completed +mine/greet`).Match(output) {
		t.Errorf("the reader's own tool: %v\n%s", err, output)
	}
}

func blocks(text, language string) (found []string) {
	for _, match := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}

func inShell(folder, commands string) *exec.Cmd {
	shell := exec.Command("sh", "-c", commands)
	shell.Dir = folder
	return shell
}

// awaitSteps returns when the sandbox has printed the next steps.
func awaitSteps(t *testing.T, sandbox *exec.Cmd) {
	t.Helper()
	said, err := sandbox.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sandbox.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sandbox.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := sandbox.Wait(); err != nil {
			t.Errorf("the sandbox ended with: %v", err)
		}
	})
	var before []string
	for lines := bufio.NewScanner(said); lines.Scan(); before = append(before, lines.Text()) {
		if strings.HasPrefix(lines.Text(), "Ctrl-C") {
			return
		}
	}
	t.Fatalf("the sandbox did not get ready:\n%s", strings.Join(before, "\n"))
}
