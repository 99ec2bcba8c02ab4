package pgpool

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentoutbox/drainer/internal/child"
)

const (
	// commandTimeout is far above what the programs of clouds take, even on a slow machine.
	commandTimeout = 15 * time.Second
	// longestPassword is above any token; Postgres itself takes no longer ones.
	longestPassword = 64 << 10
	// commandPause is the least time between two runs: many connects may fail at once.
	commandPause = time.Second
)

// passwordCommand gets passwords from a program. It runs once at a time, for all
// connections of the process. Neither its output nor its arguments are ever shown.
type passwordCommand struct {
	command []string
	ttl     time.Duration
	refused atomic.Bool // the newest password was; another run may print another

	turn    chan struct{} // held to read or write what follows
	printed string
	failure error
	ran     time.Time // the newest run's end
}

func newPasswordCommand(command []string, ttl time.Duration) *passwordCommand {
	return &passwordCommand{command: command, ttl: ttl, turn: make(chan struct{}, 1)}
}

// forget has the next connect run the command again.
func (c *passwordCommand) forget() { c.refused.Store(true) }

// password returns the newest output of the command, or runs it.
func (c *passwordCommand) password(ctx context.Context) (string, error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { <-c.turn }()
	age := time.Since(c.ran)
	isFresh := c.failure == nil && age < c.ttl && !c.refused.Load()
	if !c.ran.IsZero() && (isFresh || age < commandPause) {
		return c.printed, c.failure
	}
	c.refused.Store(false)
	c.printed, c.failure = c.run(context.WithoutCancel(ctx)) // others wait for its result, too
	c.ran = time.Now()
	return c.printed, c.failure
}

// run leaves out what the program printed from every error.
func (c *passwordCommand) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	name := "password_command " + c.command[0]
	output := &bounded{}
	command := exec.Command(c.command[0], c.command[1:]...)
	command.Stdout = output
	command.WaitDelay = time.Second // for what it started and left behind
	running, err := child.StartGroup(command, syscall.SIGKILL)
	if err != nil {
		return "", fmt.Errorf("%s cannot be started: %w", name, err)
	}
	select {
	case <-running.Ended():
	case <-ctx.Done():
		_ = running.Signal(syscall.SIGKILL)
		<-running.Ended()
		return "", fmt.Errorf("%s did not end within %s", name, commandTimeout)
	}
	if output.tooLong {
		return "", fmt.Errorf("%s printed more than 64 KiB", name)
	}
	if err := running.Failure(); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(output.text.String(), "\n"), "\r")
	if password == "" {
		return "", fmt.Errorf("%s printed nothing", name)
	}
	return password, nil
}

// bounded refuses too much, which ends the program that writes it. The buffer is not
// embedded, because io.Copy would fill it past Write.
type bounded struct {
	text    bytes.Buffer
	tooLong bool
}

func (b *bounded) Write(text []byte) (int, error) {
	if b.text.Len()+len(text) > longestPassword {
		b.tooLong = true
		return 0, io.ErrShortWrite
	}
	return b.text.Write(text)
}
