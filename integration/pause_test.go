package integration_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/agentoutbox/drainer/dispatch"
)

// pausePoint is a place in a dispatch where a daemon process can be stopped.
type pausePoint string

const (
	nowhere    pausePoint = ""
	beforeSend pausePoint = "before_send"
	afterReply pausePoint = "after_reply"
)

// pausing is an adapter that stops at the gate before and after it sends.
type pausing struct {
	adapter dispatch.Adapter
	gate    *gate
}

func (p pausing) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	p.gate.pass(beforeSend)
	result := p.adapter.Dispatch(ctx, request)
	p.gate.pass(afterReply)
	return result
}

// gate is closed at one pause point until the test opens it. Whoever stands
// before it says so in a line on stdout, and heeds no context: only the test,
// or a signal, ends the pause.
type gate struct {
	at     pausePoint
	opened chan struct{}
	mu     sync.Mutex
	out    io.Writer
}

// newGate opens at the first line from the test, and ends the process once
// the test is gone.
func newGate(at pausePoint, from io.Reader, to io.Writer) *gate {
	g := &gate{at: at, opened: make(chan struct{}), out: to}
	go func() {
		lines := bufio.NewScanner(from)
		if lines.Scan() {
			close(g.opened)
		}
		for lines.Scan() {
		}
		os.Exit(3)
	}()
	return g
}

func (g *gate) pass(point pausePoint) {
	if point != g.at {
		return
	}
	select {
	case <-g.opened:
		return
	default:
	}
	g.mu.Lock()
	fmt.Fprintln(g.out, point)
	g.mu.Unlock()
	<-g.opened
}
