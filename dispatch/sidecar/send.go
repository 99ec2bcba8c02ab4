package sidecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

const helloTimeout = 5 * time.Second

// greeting is the hello of one sidecar, which all dispatches share. It is valid until an answer cannot be
// understood, since another sidecar may listen by then. The first dispatch asks for it.
type greeting struct {
	adapter *Adapter
	hello   protocol.Hello
	ended   context.Context
	end     context.CancelFunc
}

// Alive implements [sharedconn.Conn].
func (g *greeting) Alive() bool { return g.ended.Err() == nil }

// Done implements [sharedconn.Conn].
func (g *greeting) Done() <-chan struct{} { return g.ended.Done() }

// Close implements [sharedconn.Conn].
func (g *greeting) Close() { g.end() }

// Hello implements [protocol.Peer].
func (g *greeting) Hello() protocol.Hello { return g.hello }

// noHello is the error class of a sidecar that gave no valid hello.
type noHello string

const unauthorized noHello = "http_401"

func (class noHello) Error() string { return "no hello: " + string(class) }

// greet asks the sidecar for its hello. It dispatches nothing.
func (a *Adapter) greet(ctx context.Context) (*greeting, error) {
	response, problem := a.transport.Send(a.request(ctx, http.MethodGet, "/v1/hello", nil))
	if problem != nil {
		return nil, noHello(problem.Class)
	}
	defer response.Body.Close()
	body, class := a.read(ctx, response)
	if class != "" {
		return nil, noHello(class)
	}
	hello, class := protocol.ParseHello(body)
	if class != "" {
		return nil, noHello(class)
	}
	g := &greeting{adapter: a, hello: hello}
	g.ended, g.end = context.WithCancel(context.Background())
	return g, nil
}

func (a *Adapter) reach(ctx context.Context) (protocol.Peer, dispatch.Result) {
	g, err := a.greetings.Get(ctx)
	var class noHello
	switch {
	case err == nil:
		return g, dispatch.Result{}
	case errors.As(err, &class) && class == unauthorized:
		return nil, dispatch.Result{Outcome: dispatch.CredentialsRefused, ErrorClass: string(class)} // the sidecar refused the token
	case errors.As(err, &class):
		return nil, protocol.NotSent(string(class))
	}
	return nil, protocol.NotSent(evidence.Context(ctx))
}

// Ask implements [protocol.Peer].
func (g *greeting) Ask(ctx context.Context, id string, message []byte, class dispatch.Class) dispatch.Result {
	response, problem := g.adapter.transport.Send(g.adapter.request(ctx, http.MethodPost, "/v1/dispatch", message))
	if problem != nil {
		g.end()
		if problem.Sent {
			return protocol.Ambiguous(problem.Class)
		}
		return protocol.NotSent(problem.Class)
	}
	defer response.Body.Close()
	result, doubt := g.adapter.judge(ctx, id, response)
	if doubt != "" {
		g.end()
		return protocol.Ambiguous(doubt)
	}
	return result.Evidence(class)
}

// request makes a request without GetBody, so that net/http cannot send it again.
func (a *Adapter) request(ctx context.Context, method, path string, message []byte) *http.Request {
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(message))
	if err != nil {
		panic(err) // the address was checked, and the rest is constant
	}
	request.GetBody = nil
	request.Header = a.header.Clone()
	return request
}

// judge returns the result in a response, or an error class if the response proves nothing.
func (a *Adapter) judge(ctx context.Context, id string, response *http.Response) (protocol.Result, string) {
	body, class := a.read(ctx, response)
	if class != "" {
		return protocol.Result{}, class
	}
	result, err := protocol.ParseResult(body)
	switch {
	case errors.Is(err, protocol.ErrUnaddressed) || result.ID != id:
		return protocol.Result{}, "protocol"
	case err != nil:
		return protocol.Result{}, "invalid_result"
	}
	return result, ""
}

// read returns the body of a 200, or an error class for any other response.
func (a *Adapter) read(ctx context.Context, response *http.Response) (body []byte, class string) {
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Sprintf("http_%d", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(a.limit)+1))
	switch {
	case err != nil:
		return nil, evidence.Sent(ctx, err)
	case len(body) > a.limit:
		return nil, "body_too_large"
	}
	return body, ""
}
