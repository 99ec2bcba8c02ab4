package bench_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/internal/child"
)

// setupVariable holds what a process is told, as JSON.
const setupVariable = "BENCH_SETUP"

// patience bounds every wait: far above what a slow machine needs.
const patience = 20 * time.Minute

// process is this binary in another role. What it prints goes to a file, as a
// collector of logs would have it.
type process struct {
	b     testing.TB
	role  string
	child *child.Process
	log   string
}

// spawn starts a process that lives until it is ended, or the benchmark is.
func spawn(b testing.TB, role string, setup any, arguments ...string) *process {
	b.Helper()
	encoded, err := json.Marshal(setup)
	if err != nil {
		b.Fatal(err)
	}
	log, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	command := exec.Command(os.Args[0], arguments...)
	command.Env = append(os.Environ(), roleVariable+"="+role, setupVariable+"="+string(encoded))
	command.Stdout, command.Stderr = log, log
	started, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		b.Fatalf("starting a %s: %v", role, err)
	}
	p := &process{b: b, role: role, child: started, log: log.Name()}
	b.Cleanup(p.kill)
	return p
}

// setupOf is the other end of spawn.
func setupOf[S any]() (setup S, err error) {
	err = json.Unmarshal([]byte(os.Getenv(setupVariable)), &setup)
	return setup, err
}

// awaitLog returns what the pattern's group matches, once it is logged.
func (p *process) awaitLog(pattern string) string {
	p.b.Helper()
	expression := regexp.MustCompile(pattern)
	var found [][]byte
	p.await("logs "+pattern, func() bool {
		log, err := os.ReadFile(p.log)
		if err != nil {
			p.b.Fatal(err)
		}
		found = expression.FindSubmatch(log)
		return found != nil
	})
	return string(found[len(found)-1])
}

// await returns once the condition holds, and fails if the process ends first.
func (p *process) await(what string, condition func() bool) {
	p.b.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-p.child.Ended():
			p.b.Fatalf("the %s ended before it %s: %v\n%s", p.role, what, p.child.Failure(), p.lastWords())
		case <-deadline:
			p.b.Fatalf("the %s never %s\n%s", p.role, what, p.lastWords())
		}
	}
}

func (p *process) lastWords() []byte {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(log[max(0, len(log)-2000):])
}

// end asks the process to finish, and waits.
func (p *process) end() {
	p.b.Helper()
	if err := p.child.End(syscall.SIGTERM, time.Minute); err != nil {
		p.b.Error(err)
	}
	if err := p.child.Failure(); err != nil {
		p.b.Errorf("the %s ended badly: %v\n%s", p.role, err, p.lastWords())
	}
	_ = os.Remove(p.log) // hundreds of megabytes, in the way of the next round
}

func (p *process) kill() {
	_ = p.child.Signal(syscall.SIGKILL)
	<-p.child.Ended()
}

// complain is how a process in its role fails.
func complain(role string, err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
	return 1
}
