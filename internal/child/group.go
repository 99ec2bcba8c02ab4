package child

import (
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
)

// group keeps signals from a process group whose number may belong to others
// by now: it is the leader's own until the leader has been waited for.
type group struct {
	mu     sync.Mutex
	waited bool
}

func (g *group) signal(leader int, signal syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waited {
		return nil
	}
	if err := syscall.Kill(-leader, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %s to process group %d: %w", signal, leader, err)
	}
	return nil
}

// wait kills what the leader leaves behind.
func (g *group) wait(leader *exec.Cmd) error {
	if awaitExit(leader.Process.Pid) {
		_ = g.signal(leader.Process.Pid, syscall.SIGKILL)
		g.retire()
		return leader.Wait()
	}
	defer g.retire()
	return leader.Wait()
}

func (g *group) retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waited = true
}
