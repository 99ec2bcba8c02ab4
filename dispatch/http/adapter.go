// Package http is the declarative HTTP adapter. The configuration alone defines a provider (a base URL and its
// credentials) and a tool (a method, a path and a body).
//
//	Request ──tool.render──▶ call ──transport──▶ response ──tool.judge──▶ Result
//
// One dispatch sends at most one request. The host comes from the configuration alone. Data of the agent can fill a
// path segment, a query value, a header value or the body, and nothing else.
//
// A response is judged by the first of these that decides: the operator's rules for the tool, the rules of the
// provider's profile, the HTTP status.
package http

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Kind registers the adapter as "http".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "http",
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter dispatches to one provider over connections that no other provider
// shares.
type Adapter struct {
	provider  *provider
	tools     map[string]*tool
	transport *onesend.Transport
	timeout   time.Duration
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. The errors name fields and never repeat a value.
func New(spec dispatch.Spec) (*Adapter, error) {
	provider, err := newProvider(spec.Settings)
	tools, toolsErr := adapter.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (*tool, error) { return newTool(provider, spec) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	for _, tool := range tools {
		tool.prepare()
	}
	return &Adapter{provider: provider, tools: tools, transport: onesend.New(spec.Network), timeout: spec.Timeout}, nil
}

// Dispatch sends one request and returns the result that the evidence proves.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	call, err := tool.render(ctx, request)
	if err != nil {
		return render.Refusal(ctx, err)
	}
	return a.send(ctx, tool, call)
}

// Close ends the connections.
func (a *Adapter) Close() error {
	a.transport.Close()
	return nil
}

func (a *Adapter) send(ctx context.Context, tool *tool, request *http.Request) dispatch.Result {
	response, failure := a.transport.Send(request)
	if failure != nil {
		return unanswered(failure)
	}
	defer response.Body.Close()
	return tool.judge(ctx, response)
}

// unanswered is the result of a request that got no response.
func unanswered(failure *onesend.Failure) dispatch.Result {
	if failure.Sent {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: failure.Class}
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: failure.Class}
}

// Destinations returns the address to which every request goes.
func (a *Adapter) Destinations() []dispatch.Destination {
	return []dispatch.Destination{onesend.Destination(a.provider.base)}
}

// Signer adds a proof of the sender to a rendered request. It is called once for each attempt, since a signature may
// depend on the time.
type Signer func(header http.Header, body []byte)

// NewSigned is [New] for protocols that sign their requests.
func NewSigned(spec dispatch.Spec, sign Signer) (*Adapter, error) {
	adapter, err := New(spec)
	if err != nil {
		return nil, err
	}
	adapter.provider.sign = sign
	return adapter, nil
}
