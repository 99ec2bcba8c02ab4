package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// judge gives the result in a response, or the error class of a response that
// proves nothing.
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

// read gives the body of a 200, or the error class of anything else.
func (a *Adapter) read(ctx context.Context, response *http.Response) (body []byte, class string) {
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Sprintf("http_%d", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(a.limit)+1))
	switch {
	case err != nil:
		return nil, failure.Sent(ctx, err)
	case len(body) > a.limit:
		return nil, "body_too_large"
	}
	return body, ""
}

// askHello asks who the sidecar is. Nothing is dispatched by that.
func (a *Adapter) askHello(ctx context.Context) (protocol.Hello, string) {
	response, problem := a.transport.Send(a.request(ctx, http.MethodGet, "/v1/hello", nil))
	if problem != nil {
		return protocol.Hello{}, problem.Class
	}
	defer response.Body.Close()
	body, class := a.read(ctx, response)
	if class != "" {
		return protocol.Hello{}, class
	}
	return protocol.ParseHello(body)
}
