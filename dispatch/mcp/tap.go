package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

var errSecondCall = errors.New("a dispatch calls a tool once")

// tap stands between the library and a transport, and ties every answer to
// its call: what the library reports in the end is neither exact nor evidence.
type tap struct {
	transport sdk.Transport
	sdk.Connection
	onVersion func(string) // what the server chose; may be nil

	mu        sync.Mutex
	handshake jsonrpc.ID
	calls     map[jsonrpc.ID]*call
}

func newTap(transport sdk.Transport, onVersion func(string)) *tap {
	return &tap{transport: transport, onVersion: onVersion, calls: make(map[jsonrpc.ID]*call)}
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

// abandon closes the connection under the library, if there is one.
func (t *tap) abandon() {
	if t.Connection != nil {
		_ = t.Close()
	}
}

// Write marks the one message that is the call.
func (t *tap) Write(ctx context.Context, message jsonrpc.Message) error {
	request, _ := message.(*jsonrpc.Request)
	if request != nil && request.Method == "initialize" {
		t.awaitVersion(request.ID)
	}
	c := callOf(ctx)
	if c == nil || request == nil || request.Method != "tools/call" {
		return t.Connection.Write(ctx, message)
	}
	if !c.number(request.ID) {
		return errSecondCall
	}
	t.expect(c)
	return t.Connection.Write(asWritten(ctx, c), message)
}

// Read hands every answer to its call before the library sees it.
func (t *tap) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := t.Connection.Read(ctx)
	if err != nil {
		t.end(readClass(err))
		return nil, err
	}
	if response, ok := message.(*jsonrpc.Response); ok {
		t.deliver(response)
	}
	return message, nil
}

func readClass(err error) string {
	switch {
	case errors.Is(err, errTooLarge):
		return "body_too_large"
	case errors.Is(err, io.EOF):
		return "reset"
	}
	return "protocol"
}

func (t *tap) awaitVersion(id jsonrpc.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handshake = id
}

func (t *tap) expect(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[c.id] = c
}

func (t *tap) forget(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.calls, c.id)
}

// deliver leaves alone what the library makes up for a call that it gave up:
// only what came over the wire has an error of that type.
func (t *tap) deliver(response *jsonrpc.Response) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handshake.IsValid() && response.ID == t.handshake {
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

// end tells the calls that are still out why no answer will come.
func (t *tap) end(class string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.calls {
		c.interrupt(class)
	}
}
