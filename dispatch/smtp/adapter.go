// Package smtp sends intents as mails through a server (RFC 5321).
//
//	Request ──tool.render──▶ mail ──relay.connect──▶ session ──transact──▶ Result
//
// One dispatch opens one connection and offers one mail, to all of its recipients or to none. The server comes from
// the configuration alone. Data of the agent can name recipients and fill the mail.
//
// The server must not deliver a mail before it has read the dot at its end (RFC 5321, 4.1.1.4 and 4.1.1.10). So a
// failure before the dot has no effect, and a dot without its reply leaves doubt.
package smtp

import (
	"context"
	"errors"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
)

// Kind registers the adapter as "smtp". A mail server does not recognise repetitions, so every tool must be
// non_idempotent.
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "smtp",
		Classes:  []dispatch.Class{dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter sends through one server.
type Adapter struct {
	relay   *relay
	tools   map[string]*tool
	timeout time.Duration
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	relay, from, err := newRelay(spec)
	tools, toolsErr := adapter.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (*tool, error) { return newTool(spec.Settings, from) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	return &Adapter{relay: relay, tools: tools, timeout: spec.Timeout}, nil
}

// Dispatch offers one mail and returns the result that the evidence proves.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	mail, err := tool.render(ctx, request)
	if err != nil {
		return unrendered(ctx, err)
	}
	session, trouble := a.relay.connect(ctx)
	if trouble != nil {
		return *trouble
	}
	defer session.close()
	return session.transact(ctx, mail)
}

// Destinations returns the address of the server.
func (a *Adapter) Destinations() []dispatch.Destination {
	use := map[string]dispatch.TLSUse{securityTLS: dispatch.ImplicitTLS, securitySTARTTLS: dispatch.UpgradedTLS}[a.relay.security]
	return []dispatch.Destination{{Network: "tcp", Address: a.relay.address, TLS: use}}
}
