package throwaway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const logTail = 4 << 10

// child is a started process.
type child struct {
	process *os.Process
	ended   chan struct{} // closed when the process has been waited for
}

// startChild starts a process from a thread of its own, which lives as long as
// the process: Linux takes the death of that thread for the parent's.
func startChild(cmd *exec.Cmd) (*child, error) {
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return &child{process: cmd.Process, ended: ended}, nil
}

// end sends the signal, waits, and after the patience kills.
func (c *child) end(signal syscall.Signal, patience time.Duration) error {
	if err := c.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(patience):
	}
	err := c.process.Kill()
	<-c.ended
	return errors.Join(fmt.Errorf("still there %s after signal %s, so killed", patience, signal), err)
}

// command runs one of Postgres's programs as the server's owner, apart from
// the terminal's process group, so that Ctrl-C reaches only the parent.
func (s *Server) command(ctx context.Context, program string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.binaries, program), arguments...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner, Setpgid: true}
	endWithParent(cmd.SysProcAttr)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	return cmd
}

// said is the end of what the server wrote to its log.
func (s *Server) said() string {
	said, err := os.ReadFile(s.log.Name())
	if err != nil {
		return ""
	}
	return string(said[max(0, len(said)-logTail):])
}

// owner is who the server runs as: nil for the user of this process, except
// for root, as whom Postgres refuses to run.
func owner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("postgres refuses to run as root, and there is neither a user postgres nor a user nobody; run as another user")
}
