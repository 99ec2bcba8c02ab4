package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// closeWithin is how long a server may take to accept the end of the session.
const closeWithin = time.Second

// returnWithin is how long the library may take to notice that a call's context has ended. After that, the dispatch no
// longer waits for the library.
const returnWithin = 500 * time.Millisecond

// session is an open connection to the server, shared by every dispatch.
type session struct {
	client *sdk.ClientSession
	tap    *tap
	gone   chan struct{} // closed when the connection has ended
	abort  func()        // ends the connection without telling the server
	child  *life         // nil for an endpoint

	closing sync.Once

	mu    sync.Mutex
	tools map[string]hints // the tools of the last listing
}

// Older servers may not answer server/discover. discoverWithin is how long drainer waits for an endpoint's answer,
// and startWithin for a child's, which may first be installed by a package runner.
const (
	discoverWithin = time.Second
	startWithin    = 10 * time.Second
)

// olderVersion is the newest protocol version that begins with initialize.
const olderVersion = "2025-11-25"

var errSilent = errors.New("the server was silent to server/discover")

// newSession makes the handshake and lists the tools. It begins with initialize if isOlder, and otherwise returns
// errSilent if the server does not answer server/discover in time.
func newSession(ctx context.Context, t *tap, isOlder bool, abort func()) (*session, error) {
	options := &sdk.ClientSessionOptions{}
	if isOlder {
		options.ProtocolVersion = olderVersion
	}
	shaking, silent := context.WithCancelCause(ctx)
	defer silent(nil)
	t.onSilence = func() { silent(errSilent) }
	client := sdk.NewClient(&sdk.Implementation{Name: "drainer", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{}, // the client offers nothing that a server could use
		// Otherwise the library would answer a request for input with another call.
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
	})
	connected, err := client.Connect(shaking, t, options)
	t.heard()
	if err != nil {
		abort()
		if errors.Is(context.Cause(shaking), errSilent) {
			return nil, errSilent
		}
		return nil, err
	}
	s := &session{client: connected, tap: t, gone: make(chan struct{}), abort: abort}
	go func() {
		defer close(s.gone)
		_ = connected.Wait() // the calls know why it ended
	}()
	if err := s.list(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the session in an orderly way. If the server does not answer within closeWithin, Close ends the
// connection.
func (s *session) Close() {
	s.closing.Do(func() {
		defer s.abort()
		timer := time.AfterFunc(closeWithin, s.abort)
		defer timer.Stop()
		_ = s.client.Close()
		<-s.gone
	})
}

// Done implements [sharedconn.Conn].
func (s *session) Done() <-chan struct{} { return s.gone }

// Alive implements [sharedconn.Conn].
func (s *session) Alive() bool {
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// find looks up a tool. If the tool is unknown, find asks the server for its list once more, since servers change
// their lists.
func (s *session) find(ctx context.Context, name string) (h hints, known bool, err error) {
	for asked := false; ; asked = true {
		s.mu.Lock()
		h, known = s.tools[name]
		s.mu.Unlock()
		if known || asked {
			return h, known, nil
		}
		asking, refused := noteRefusal(ctx)
		if err := s.list(asking); err != nil {
			return hints{}, false, &setupError{err: err, refusal: refused.Load()}
		}
	}
}

// list reads all pages of the tools, up to a number that no honest server reaches.
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

// call makes the one tools/call of a dispatch. It returns soon after ctx ends,
// even if the library does not.
func (s *session) call(ctx context.Context, params *sdk.CallToolParams) callEvidence {
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
		_, _ = s.client.CallTool(context.WithValue(held, dispatched{}, c), params) // the tap and the transport have the evidence
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		timer := time.NewTimer(returnWithin)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C:
		}
	}
	s.tap.forget(c)
	otherwise := "session_closed"
	if ctx.Err() != nil {
		otherwise = evidence.Context(ctx)
	}
	e := c.conclude(otherwise)
	if e.class == "cancelled" && ctx.Err() != nil {
		e.class = evidence.Context(ctx) // held is always cancelled, even if ctx ended by its deadline
	}
	return e
}

// holdOpen returns a context that ends with ctx. After an answer it stays open for closeWithin, so that the rest of
// the stream can be read: cutting a stream short costs its connection.
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

var errSecondCall = errors.New("a dispatch calls a tool once")

// tap lies between the library and a transport. It assigns every answer to its call, since the library's own results
// are neither exact nor evidence.
type tap struct {
	transport sdk.Transport
	sdk.Connection
	patience  time.Duration // how long the server may take to answer server/discover
	onVersion func(string)  // gets the version that the server chose; may be nil
	onSilence func()        // called if server/discover is not answered in time

	mu        sync.Mutex
	discover  jsonrpc.ID
	silence   *time.Timer
	handshake jsonrpc.ID
	asked     time.Time // when initialize was sent
	isPrompt  bool      // initialize was answered within patience
	calls     map[jsonrpc.ID]*call
}

func newTap(transport sdk.Transport, patience time.Duration, onVersion func(string)) *tap {
	return &tap{transport: transport, patience: patience, onVersion: onVersion, calls: make(map[jsonrpc.ID]*call)}
}

// Connect implements the library's Transport.
func (t *tap) Connect(ctx context.Context) (sdk.Connection, error) {
	connection, err := t.transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	t.Connection = connection
	return t, nil
}

// abandon closes the connection without the library, if there is one.
func (t *tap) abandon() {
	if t.Connection != nil {
		_ = t.Close()
	}
}

// Write marks the one message that is the call, so that the transport recognises it.
func (t *tap) Write(ctx context.Context, message jsonrpc.Message) error {
	request, _ := message.(*jsonrpc.Request)
	if request != nil && request.Method == "initialize" {
		t.mu.Lock()
		t.handshake, t.asked = request.ID, time.Now()
		t.mu.Unlock()
	}
	if request != nil && request.Method == "server/discover" {
		t.heard()
		t.mu.Lock()
		t.discover, t.silence = request.ID, time.AfterFunc(t.patience, t.onSilence)
		t.mu.Unlock()
	}
	c := callOf(ctx)
	if c == nil || request == nil || request.Method != "tools/call" {
		return t.Connection.Write(ctx, message)
	}
	if !c.number(request.ID) {
		return errSecondCall
	}
	t.mu.Lock()
	t.calls[request.ID] = c
	t.mu.Unlock()
	return t.Connection.Write(context.WithValue(ctx, onWire{}, c), message)
}

// Read hands every answer to its call before the library sees it.
func (t *tap) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := t.Connection.Read(ctx)
	if err != nil {
		class := "protocol"
		switch {
		case errors.Is(err, errTooLarge):
			class = "body_too_large"
		case errors.Is(err, io.EOF):
			class = "reset"
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, c := range t.calls { // they will get no answer
			c.interrupt(class)
		}
		return nil, err
	}
	if response, ok := message.(*jsonrpc.Response); ok {
		t.deliver(response)
	}
	return message, nil
}

// heard ends the wait for an answer to server/discover.
func (t *tap) heard() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.silence != nil {
		t.silence.Stop()
	}
}

// wasPrompt reports whether the server answered initialize fast enough. A server so fast would also have answered
// server/discover, if it knew the method.
func (t *tap) wasPrompt() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isPrompt
}

func (t *tap) forget(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.calls, c.id)
}

// deliver passes an answer to its call. It ignores an error that the library made up for a call that it gave up.
// Only an error from the wire is a *jsonrpc.Error.
func (t *tap) deliver(response *jsonrpc.Response) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.silence != nil && response.ID == t.discover {
		t.silence.Stop()
		return
	}
	if t.handshake.IsValid() && response.ID == t.handshake {
		t.isPrompt = time.Since(t.asked) < t.patience
		t.tellVersion(response.Result)
		return
	}
	c := t.calls[response.ID]
	if c == nil {
		return
	}
	var fault *jsonrpc.Error
	if response.Error == nil || errors.As(response.Error, &fault) {
		c.answered(response)
	} else {
		c.interrupt("reset")
	}
}

func (t *tap) tellVersion(result json.RawMessage) {
	var chosen struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if t.onVersion != nil && json.Unmarshal(result, &chosen) == nil {
		t.onVersion(chosen.ProtocolVersion)
	}
}

// call is one tools/call and its known facts. The library writes it in one goroutine and reads its answer in
// another. Meanwhile, the dispatching goroutine may have stopped waiting.
type call struct {
	mu       sync.Mutex
	numbered bool
	id       jsonrpc.ID
	begun    bool // a byte may have been written
	sealed   bool // no byte may be written any more
	over     bool // later evidence is not believed
	seen     callEvidence
}

// callEvidence holds the known facts about a call at its end.
type callEvidence struct {
	sent       bool   // a byte of the call may have been sent
	class      string // why there is no answer
	status     int    // the HTTP status; 0 if there was none
	retryAfter time.Duration
	inSession  bool // the request named a session
	answer     *jsonrpc.Response
}

// number gives the call its id. It returns false for a second message that calls a tool: that message is not this
// call and must not be sent.
func (c *call) number(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.numbered {
		return false
	}
	c.numbered, c.id = true, id
	return true
}

// begin reports whether the call may be written now. It returns true at most once.
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

// interrupt records a failure. An answer may still come after it.
func (c *call) interrupt(class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over && c.seen.class == "" {
		c.seen.class = class
	}
}

// abandon ends the call without an answer. The error class of an earlier interruption stays; without one, the class is
// otherwise.
func (c *call) abandon(otherwise string) {
	c.interrupt(otherwise)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

// responded records the status and the headers of the HTTP response.
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

// conclude prevents all further writes and returns the evidence so far. otherwise is the error class if no failure
// was recorded.
func (c *call) conclude(otherwise string) callEvidence {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealed, c.over = true, true
	if c.seen.class == "" {
		c.seen.class = otherwise
	}
	return c.seen
}

type (
	dispatched struct{} // the context key of the dispatch's call
	onWire     struct{} // the context key of the call, only for the message that is the call
)

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(dispatched{}).(*call)
	return c
}

func writtenCall(ctx context.Context) *call {
	c, _ := ctx.Value(onWire{}).(*call)
	return c
}
