package mcp

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// pipe speaks to a child. The library reads; writing needs evidence, and an
// end where the child does not read.
type pipe struct {
	sdk.Connection // reads only
	input          *os.File
	turn           chan struct{} // held while writing
	onClose        func()
}

// newPipe calls onClose once, after the child's input was closed.
func newPipe(ours ends, limit int64, onClose func()) (*pipe, error) {
	transport := &sdk.IOTransport{
		Reader:        &lineReader{file: ours.out, limit: limit},
		Writer:        ours.in,
		MaxLineLength: -1, // lineReader's, whose error can be told from others
	}
	connection, err := transport.Connect(context.Background())
	if err != nil {
		return nil, err
	}
	return &pipe{Connection: connection, input: ours.in, turn: make(chan struct{}, 1), onClose: sync.OnceFunc(onClose)}, nil
}

// Close closes both ends, and leaves it to onClose to wait for the child: the
// library holds a lock meanwhile.
func (p *pipe) Close() error {
	err := p.Connection.Close()
	p.onClose()
	return err
}

// Write writes a message as one line.
func (p *pipe) Write(ctx context.Context, message jsonrpc.Message) error {
	line, err := jsonrpc.EncodeMessage(message)
	if err != nil {
		return err
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c := writtenCall(ctx)
	if c != nil && !c.begin() {
		return errSecondCall
	}
	written, err := p.write(ctx, append(line, '\n'))
	if err != nil && c != nil {
		c.fail(written > 0, writeClass(ctx, written, err))
	}
	if err != nil && written > 0 {
		_ = p.Close() // half a line has gone out; nobody can go on behind it
	}
	return err
}

// write gives up when ctx ends. That takes a deadline, which the next write
// must not inherit.
func (p *pipe) write(ctx context.Context, line []byte) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		_ = p.input.SetWriteDeadline(time.Now())
	})
	defer func() {
		if !stop() {
			<-hurried
			_ = p.input.SetWriteDeadline(time.Time{})
		}
	}()
	return p.input.Write(line)
}

func writeClass(ctx context.Context, written int, err error) string {
	switch {
	case ctx.Err() != nil:
		return failure.Context(ctx)
	case written == 0:
		return "child_gone"
	}
	return failure.Sent(ctx, err)
}

// lineReader bounds the length of a line.
type lineReader struct {
	file  *os.File
	limit int64
	line  int64
}

func (r *lineReader) Read(octets []byte) (int, error) {
	n, err := r.file.Read(octets)
	if last := bytes.LastIndexByte(octets[:n], '\n'); last >= 0 {
		r.line = int64(n - last - 1)
	} else if r.line += int64(n); r.line > r.limit {
		return 0, errTooLarge
	}
	if os.IsTimeout(err) {
		err = io.EOF // the child has ended
	}
	return n, err
}

func (r *lineReader) Close() error { return r.file.Close() }
