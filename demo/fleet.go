package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const (
	joinPoll = 20 * time.Millisecond
	logTail  = 2 << 10
)

// fleet are the processes that run `drainer run`.
type fleet struct {
	program     string
	config      string
	logs        string // the folder of their logs
	environment []string

	all    []*drainer
	failed chan error // the first to end unasked
}

// watch runs the story and ends it early if a drainer ends unasked.
func (f *fleet) watch(ctx context.Context, story func(context.Context) error) error {
	f.failed = make(chan error, 1)
	group, ctx := errgroup.WithContext(ctx)
	told := make(chan struct{})
	group.Go(func() error {
		defer close(told)
		return story(ctx)
	})
	group.Go(func() error {
		select {
		case err := <-f.failed:
			return err
		case <-told:
			return nil
		}
	})
	return group.Wait()
}

// start returns once the new drainer has joined the others.
func (f *fleet) start(ctx context.Context, pool *pgxpool.Pool) (*drainer, error) {
	log, err := os.Create(filepath.Join(f.logs, fmt.Sprintf("drainer-%d.log", len(f.all)+1)))
	if err != nil {
		return nil, err
	}
	known, err := workers(ctx, pool, nil)
	if err != nil {
		return nil, err
	}
	command := exec.Command(f.program, "run", "--config", f.config)
	command.Env = append(os.Environ(), f.environment...)
	command.Stderr = log
	started, err := spawn(command, log, f.ended)
	if err != nil {
		return nil, fmt.Errorf("starting a drainer: %w", err)
	}
	f.all = append(f.all, started)
	started.worker, err = awaitJoin(ctx, pool, known)
	return started, err
}

func (f *fleet) ended(unasked error) {
	select {
	case f.failed <- unasked:
	default:
	}
}

// stop asks every drainer to shut down, and waits.
func (f *fleet) stop() error {
	var group errgroup.Group
	for _, drainer := range f.all {
		group.Go(drainer.stop)
	}
	return group.Wait()
}

func (f *fleet) kill() error {
	var problems []error
	for _, drainer := range f.all {
		problems = append(problems, drainer.kill())
	}
	return errors.Join(problems...)
}

// printLogs shows how each drainer ended.
func (f *fleet) printLogs(to io.Writer) {
	if to == nil {
		return
	}
	for _, drainer := range f.all {
		said, err := os.ReadFile(drainer.log.Name())
		if err != nil {
			continue
		}
		fmt.Fprintf(to, "--- the end of the log of drainer %d ---\n%s\n", drainer.process.Pid(), said[max(0, len(said)-logTail):])
	}
}

// awaitJoin returns the worker that was not known before.
func awaitJoin(ctx context.Context, pool *pgxpool.Pool, known []string) (string, error) {
	poll := time.NewTicker(joinPoll)
	defer poll.Stop()
	for {
		joined, err := workers(ctx, pool, known)
		if err != nil {
			return "", err
		}
		if len(joined) > 0 {
			return joined[0], nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for a drainer to join: %w", ctx.Err())
		}
	}
}
