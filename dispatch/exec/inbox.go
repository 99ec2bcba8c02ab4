package exec

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// inbox writes whole lines to a child's stdin, one after the other.
type inbox struct {
	stdin   *os.File
	turn    chan struct{} // holds one token: who writes
	stalled time.Duration
}

func newInbox(stdin *os.File, stalled time.Duration) *inbox {
	return &inbox{stdin: stdin, turn: make(chan struct{}, 1), stalled: stalled}
}

// write reports how many octets are in the pipe, and the error class where
// that is not the whole line. It gives up when ctx ends, or when the pipe stays
// full for too long: nobody else can write meanwhile.
func (i *inbox) write(ctx context.Context, line []byte) (written int, class string) {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return 0, failure.Context(ctx)
	}
	written, err := i.writeUntil(ctx, line)
	switch {
	case err == nil:
		return written, ""
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return written, down
	case ctx.Err() != nil:
		return written, failure.Context(ctx)
	}
	return written, stalled
}

func (i *inbox) writeUntil(ctx context.Context, line []byte) (int, error) {
	if err := i.stdin.SetWriteDeadline(time.Now().Add(i.stalled)); err != nil {
		return 0, err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = i.stdin.SetWriteDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-interrupted // or it would interrupt the next line
		}
	}()
	return i.stdin.Write(line)
}

func (i *inbox) close() { _ = i.stdin.Close() }
