package child_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/child"
)

// family starts a shell that leaves a process behind. That process holds stdout open, so a reader that reaches the
// end of stdout knows that both are gone.
func family(t *testing.T, script string) (*child.Process, *bufio.Reader) {
	t.Helper()
	command := exec.Command("sh", "-c", "sleep 1000 & echo started; "+script)
	stdout, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdout.Close() })
	command.Stdout = theirs
	process, err := child.StartGroup(command, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	t.Cleanup(func() { _ = process.Signal(syscall.SIGKILL) })
	reader := bufio.NewReader(stdout)
	if line, err := reader.ReadString('\n'); line != "started\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return process, reader
}

func everyoneEnds(t *testing.T, stdout io.Reader) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stdout)
	}()
	select {
	case <-ended:
	case <-time.After(drainertest.Patience):
		t.Fatal("a process still holds stdout open")
	}
}

func TestWhatAProcessLeavesBehindIsKilled(t *testing.T) {
	t.Parallel()
	process, stdout := family(t, "exit 0")
	everyoneEnds(t, stdout)
	<-process.Ended()
}

func TestASignalGoesToTheWholeGroup(t *testing.T) {
	t.Parallel()
	process, stdout := family(t, "wait; wait")
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	everyoneEnds(t, stdout)
	<-process.Ended()
}

func TestAGroupThatIsGoneNeedsNoSignal(t *testing.T) {
	t.Parallel()
	process, _ := family(t, "exit 3")
	if process.Failure() == nil {
		t.Error("exit code 3 is no failure")
	}
	if err := process.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}
