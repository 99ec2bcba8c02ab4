// Package sidecar is the adapter for a provider whose adapter is a service
// beside drainer: it answers the protocol of docs/adapter-protocol.md over
// HTTP, on a Unix socket or on a loopback address.
//
//	Dispatch ──greeter: GET /v1/hello──▶ POST /v1/dispatch ──judge──▶ Result
//
// Only a result of the protocol is believed. Whatever else comes back after an
// octet has left, a status included, leaves the request in doubt: it may come
// from a framework, or a proxy, that does not know what the handler did.
package sidecar

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/deadline"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// Kind registers the adapter as "sidecar".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "sidecar",
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter dispatches to one provider through its sidecar.
type Adapter struct {
	tools     map[string]dispatch.ToolSpec
	transport *onesend.Transport
	greeter   *greeter
	base      string
	socket    string // the path of a Unix socket; empty for TCP
	header    http.Header
	limit     int
	timeout   time.Duration
	requests  atomic.Uint64
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	settings, address, err := newSettings(spec)
	if err != nil {
		return nil, err
	}
	a := &Adapter{
		tools:     spec.Tools,
		transport: onesend.New(address.network(spec.Network)),
		base:      address.base,
		socket:    address.socket,
		header:    settings.header(),
		limit:     settings.MaxMessage,
		timeout:   spec.Timeout,
	}
	a.greeter = newGreeter(a.askHello)
	return a, nil
}

// Dispatch asks the sidecar once and reports what is known of it.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	operation := request.Tuple.Operation()
	tool, configured := a.tools[operation]
	if !configured {
		return notSent("unconfigured_tool")
	}
	ctx, cancel := deadline.Within(ctx, a.timeout)
	defer cancel()
	greeting, class := a.greeter.wait(ctx)
	if class != "" {
		return notSent(class)
	}
	if class := greeting.hello.Refusal(operation, tool.Class); class != "" {
		return notSent(class)
	}
	if ctx.Err() != nil {
		return notSent(failure.Context(ctx))
	}
	result, understood := a.send(ctx, request, tool.Class)
	if !understood {
		a.greeter.forget(greeting) // it may be another sidecar by now
	}
	return result
}

// Close closes the idle connections.
func (a *Adapter) Close() error {
	a.greeter.close()
	a.transport.CloseIdleConnections()
	return nil
}

func (a *Adapter) send(ctx context.Context, request dispatch.Request, class dispatch.Class) (_ dispatch.Result, understood bool) {
	id := strconv.FormatUint(a.requests.Add(1), 10)
	message, err := protocol.Encode(ctx, id, request)
	if err != nil {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "unrenderable_request"}, true
	}
	response, problem := a.transport.Send(a.request(ctx, http.MethodPost, "/v1/dispatch", message))
	switch {
	case problem != nil && problem.Sent:
		return ambiguous(problem.Class), false
	case problem != nil:
		return notSent(problem.Class), false
	}
	defer response.Body.Close()
	result, doubt := a.judge(ctx, id, response)
	if doubt != "" {
		return ambiguous(doubt), false
	}
	return result.Evidence(class), true
}

// request has no GetBody, so that nobody can send it again.
func (a *Adapter) request(ctx context.Context, method, path string, message []byte) *http.Request {
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(message))
	if err != nil {
		panic(err) // the address was checked, and the rest is constant
	}
	request.GetBody = nil
	request.Header = a.header.Clone()
	return request
}

func notSent(class string) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}
}

func ambiguous(class string) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: class}
}
