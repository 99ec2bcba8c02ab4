package exec

import (
	"context"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"syscall"

	"github.com/agentoutbox/drainer/internal/child"
)

// launcher starts the children of one provider.
type launcher struct {
	provider string
	settings Settings
	patience patience
	stderr   io.Writer // drainer's
}

// start gives a child that has said hello, or the error class of one that did
// not.
func (l launcher) start(ctx context.Context) (*running, string) {
	started, err := l.spawn()
	if err != nil {
		return nil, "child_start"
	}
	ctx, cancel := context.WithTimeout(ctx, l.settings.StartTimeout)
	defer cancel()
	hello, class := started.greet(ctx)
	if class != "" {
		started.end(class)
		<-started.done
		return nil, class
	}
	started.hello = hello
	return started, ""
}

func (l launcher) spawn() (*running, error) {
	path, err := osexec.LookPath(l.settings.Command[0])
	if err != nil {
		return nil, fmt.Errorf("looking for the program: %w", err)
	}
	command := &osexec.Cmd{Path: path, Args: l.settings.Command, Env: environment(l.settings.Env), Dir: l.settings.Directory}
	pipes, err := connect(command, l.settings.Stderr != "discard")
	if err != nil {
		return nil, err
	}
	process, err := child.StartGroup(command, syscall.SIGKILL)
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	started := newRunning(process, pipes.stdin, l.patience)
	started.follow(pipes.stdout, func() { started.listen(pipes.stdout, l.settings.MaxMessage) })
	if pipes.stderr != nil {
		started.follow(pipes.stderr, func() { relay(pipes.stderr, l.stderr, l.provider) })
	}
	go started.bury()
	return started, nil
}

// pipes are the two ends of what connects a child.
type pipes struct {
	stdin, stdout, stderr *os.File // ours; stderr is nil where nobody reads it
	theirs                []*os.File
}

func connect(command *osexec.Cmd, withStderr bool) (*pipes, error) {
	p := &pipes{}
	var failures [3]error
	var stdin, stdout, stderr *os.File
	stdin, p.stdin, failures[0] = os.Pipe()
	p.stdout, stdout, failures[1] = os.Pipe()
	if withStderr {
		p.stderr, stderr, failures[2] = os.Pipe()
	}
	p.theirs = []*os.File{stdin, stdout, stderr}
	for _, err := range failures {
		if err != nil {
			p.closeTheirs()
			p.closeOurs()
			return nil, fmt.Errorf("making a pipe for the program: %w", err)
		}
	}
	command.Stdin, command.Stdout = stdin, stdout
	if withStderr {
		command.Stderr = stderr
	}
	return p, nil
}

func (p *pipes) closeTheirs() { closeAll(p.theirs) }
func (p *pipes) closeOurs()   { closeAll([]*os.File{p.stdin, p.stdout, p.stderr}) }

func closeAll(files []*os.File) {
	for _, file := range files {
		if file != nil {
			_ = file.Close()
		}
	}
}
