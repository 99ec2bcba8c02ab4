package mcp

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// call is one tools/call and what is known of it. The library writes it from
// one goroutine and reads its answer in another, while the one that
// dispatched may have stopped waiting.
type call struct {
	mu       sync.Mutex
	numbered bool
	id       jsonrpc.ID
	begun    bool // an octet may have been written
	sealed   bool // none will be from now on
	over     bool // what comes after this is not believed
	seen     evidence
}

// evidence is what is known of a call in the end.
type evidence struct {
	sent       bool   // an octet of it may have left
	class      string // why there is no answer
	status     int    // of HTTP; 0 where there was none
	retryAfter time.Duration
	inSession  bool // it named a session
	answer     *jsonrpc.Response
}

// number gives the call its id, once: a second message that calls a tool is
// not this call, and must not be sent.
func (c *call) number(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.numbered {
		return false
	}
	c.numbered, c.id = true, id
	return true
}

// begin asks for leave to write the call, which is given once.
func (c *call) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun || c.sealed {
		return false
	}
	c.begun, c.seen.sent = true, true
	return true
}

// fail ends the call without an answer.
func (c *call) fail(sent bool, class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over, c.seen.sent, c.seen.class = true, sent, class
	}
}

// interrupt is a failure that an answer may yet make up for.
func (c *call) interrupt(class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over && c.seen.class == "" {
		c.seen.class = class
	}
}

// abandon ends the call without an answer, for whatever interrupted it.
func (c *call) abandon(otherwise string) {
	c.interrupt(otherwise)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

// responded notes what HTTP says.
func (c *call) responded(status int, retryAfter time.Duration, inSession bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.status, c.seen.retryAfter, c.seen.inSession = status, retryAfter, inSession
}

// answered ends the call with the first answer to it.
func (c *call) answered(response *jsonrpc.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over, c.seen.answer = true, response
	}
}

func (c *call) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

func (c *call) hasAnswer() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.answer != nil
}

// conclude sees to it that nothing is written any more, and tells what is
// known; otherwise is why, where nothing else is known.
func (c *call) conclude(otherwise string) evidence {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed, c.over = true, true
	if c.seen.class == "" {
		c.seen.class = otherwise
	}
	return c.seen
}

type (
	dispatched struct{} // the key of the call that a context belongs to
	onWire     struct{} // the same, for the one message that is the call
)

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, dispatched{}, c)
}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(dispatched{}).(*call)
	return c
}

func asWritten(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, onWire{}, c)
}

func writtenCall(ctx context.Context) *call {
	c, _ := ctx.Value(onWire{}).(*call)
	return c
}
