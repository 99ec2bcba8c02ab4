package mcp

import (
	"context"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// closeWithin is how long a server may take to be told that nobody calls any
// more.
const closeWithin = time.Second

// returnWithin is how long the library may take to notice that a call's
// context has ended. After that the call is left to it.
const returnWithin = 500 * time.Millisecond

// session is an open connection to the server, shared by every dispatch.
type session struct {
	client *sdk.ClientSession
	tap    *tap
	gone   chan struct{} // closed when the connection has ended
	abort  func()        // ends it without saying goodbye

	mu    sync.Mutex
	tools map[string]hints // as listed last
}

// newSession shakes hands and lists the tools.
func newSession(ctx context.Context, t *tap, abort func()) (*session, error) {
	client := sdk.NewClient(&sdk.Implementation{Name: "drainer", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{}, // nothing that a server could ask of us
		// The library would answer a demand for input by calling again.
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
	})
	connected, err := client.Connect(ctx, t, nil)
	if err != nil {
		abort()
		return nil, err
	}
	s := &session{client: connected, tap: t, gone: make(chan struct{}), abort: abort}
	go func() {
		defer close(s.gone)
		_ = connected.Wait() // why it ended, the calls know
	}()
	if err := s.list(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close says goodbye, and soon is gone in any case.
func (s *session) close() {
	defer s.abort()
	timer := time.AfterFunc(closeWithin, s.abort)
	defer timer.Stop()
	_ = s.client.Close() // the session is over, whether the server heard of it or not
	<-s.gone
}

func (s *session) hasEnded() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// find looks a tool up, and where it is not known asks the server once more:
// servers change their lists.
func (s *session) find(ctx context.Context, name string) (h hints, known bool, err error) {
	if h, known := s.listed(name); known {
		return h, true, nil
	}
	if err := s.list(ctx); err != nil {
		return hints{}, false, err
	}
	h, known = s.listed(name)
	return h, known, nil
}

func (s *session) listed(name string) (hints, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, known := s.tools[name]
	return h, known
}

// list reads every page, up to a number that no honest server has.
func (s *session) list(ctx context.Context) error {
	const maxPages = 1000
	tools := make(map[string]hints)
	params := &sdk.ListToolsParams{}
	for range maxPages {
		page, err := s.client.ListTools(ctx, params)
		if err != nil {
			return err
		}
		for _, tool := range page.Tools {
			tools[tool.Name] = hints{tool.Annotations}
		}
		if page.NextCursor == "" {
			break
		}
		params = &sdk.ListToolsParams{Cursor: page.NextCursor}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tools = tools
	return nil
}

// call makes the one tools/call of a dispatch and returns what is known of it,
// soon after ctx ends whatever the library does.
func (s *session) call(ctx context.Context, params *sdk.CallToolParams) evidence {
	c := &call{}
	held, release := holdOpen(ctx)
	defer func() { release(c.hasAnswer()) }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if recover() != nil {
				c.interrupt("panic")
			}
		}()
		_, _ = s.client.CallTool(withCall(held, c), params) // the tap and the transport know better
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		wait(ended, returnWithin)
	}
	s.tap.forget(c)
	e := c.conclude(s.silence(ctx))
	if e.class == "cancelled" && ctx.Err() != nil {
		e.class = failure.Context(ctx) // held is cancelled, whatever ended ctx
	}
	return e
}

// holdOpen ends with ctx, except that after an answer there is a moment to
// read what follows it: cutting a stream short costs its connection.
func holdOpen(ctx context.Context) (held context.Context, release func(answered bool)) {
	held, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return held, func(answered bool) {
		if answered && stop() {
			time.AfterFunc(closeWithin, cancel)
		} else {
			cancel()
		}
	}
}

// silence is why there is no answer where nothing else is known.
func (s *session) silence(ctx context.Context) string {
	if ctx.Err() != nil {
		return failure.Context(ctx)
	}
	return "session_closed"
}

func wait(ended <-chan struct{}, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}
