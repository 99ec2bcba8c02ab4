// Package mcp calls tools of Model Context Protocol servers (https://modelcontextprotocol.io/specification), over
// streamable HTTP or the pipes of a child.
//
//	Request ──tool.render──▶ tools/call ──session──tap──┬─wire──▶ HTTP
//	                                                    └─pipe──▶ child
//	Result ◀──tool.judge── evidence ◀───────────────────┘
//
// The library implements the protocol: handshake, versions, framing, streams. It cannot report the outcome of a
// call: its errors do not say whether anything was sent, and its results are not exact. So the tap assigns each
// written and each received message to its call, and the transports below the tap gather the evidence. The return of
// the library only shows that the call is over.
//
// One dispatch makes at most one tools/call. A failure before that call (starting the child, the handshake, listing
// tools) is not_sent.
package mcp

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/sharedconn"
)

const (
	defaultTimeout = 30 * time.Second
	// openWithin is how long a child's session may take to open. It may exceed a dispatch's timeout: a
	// later dispatch then finds the session open.
	openWithin = time.Minute
	// patientStream is a number of resumptions of a stream that no call has time for. The library ends the session
	// when it has used them up.
	patientStream = 1 << 20
)

// Kind registers the adapter as "mcp".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "mcp",
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter calls the tools of one server in one session. The first dispatch opens the session, and a later one opens
// it again after it has ended.
type Adapter struct {
	provider  *provider
	tools     map[string]*tool
	timeout   time.Duration
	transport *onesend.Transport // for an endpoint
	program   *program           // for a child
	sessions  *sharedconn.Shared[*session]
	patience  time.Duration // how long the server may take to answer server/discover
	isOlder   atomic.Bool   // the server answered initialize fast, after it was silent to server/discover
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. The errors name fields and never repeat a value.
func New(spec dispatch.Spec) (*Adapter, error) {
	provider, err := newProvider(spec.Settings)
	tools, toolsErr := adapter.Tools(spec.Tools, func(operation string, spec dispatch.ToolSpec) (*tool, error) {
		return newTool(provider, operation, spec)
	})
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	a := &Adapter{provider: provider, tools: tools, timeout: spec.Timeout, patience: discoverWithin}
	open, limit := a.openEndpoint, cmp.Or(spec.Timeout, defaultTimeout)
	if provider.endpoint == "" {
		a.program = &program{
			command: provider.command, env: provider.env, directory: provider.directory,
			limit: max(provider.limit, maxControlBytes), restarts: restarts{within: limit},
		}
		open, limit, a.patience = a.openChild, max(limit, openWithin), startWithin
	} else {
		a.transport = onesend.New(spec.Network)
	}
	a.sessions = sharedconn.New(func(ctx context.Context) (*session, error) { return a.agree(ctx, open) }, limit)
	return a, nil
}

// Dispatch makes one call and returns the result that the evidence proves.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	params, err := tool.render(ctx, request)
	if err != nil {
		return render.Refusal(ctx, err)
	}
	session, err := a.sessions.Get(ctx)
	if err != nil {
		return unsent(ctx, err)
	}
	hints, known, err := session.find(ctx, tool.name)
	switch {
	case err != nil:
		return session.child.explain(ctx, unsent(ctx, err))
	case ctx.Err() != nil:
		return unsent(ctx, ctx.Err()) // session.find does not check ctx if it knows the tool
	case !known:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unknown_tool", OfOperation: true}
	}
	seen := session.call(ctx, params)
	if seen.endsSession() && a.sessions.Forget(session) {
		go session.Close() // the other calls of the session end by themselves
	}
	result := tool.judge(ctx, seen, hints)
	if seen.answer == nil {
		result = session.child.explain(ctx, result)
	}
	return result
}

// Greet opens the session and looks for every configured tool in the server's list. It calls no tool.
func (a *Adapter) Greet(ctx context.Context) dispatch.Result {
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	session, err := a.sessions.Get(ctx)
	if err != nil {
		return unsent(ctx, err)
	}
	for _, operation := range slices.Sorted(maps.Keys(a.tools)) {
		_, known, err := session.find(ctx, a.tools[operation].name)
		switch {
		case err != nil:
			return session.child.explain(ctx, unsent(ctx, err))
		case !known:
			return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unknown_tool", Problem: &dispatch.Problem{Title: operation}}
		}
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

// Close ends the session and its child, if any.
func (a *Adapter) Close() error {
	a.sessions.Close()
	if a.program != nil {
		a.program.wait()
	} else {
		a.transport.Close()
	}
	return nil
}

// agree opens a session with the protocol of the last session. If the server does not answer server/discover, agree
// sends initialize on a new connection. If the answer to initialize is slow as well, the silence does not prove that
// the server is older, and the next session begins with server/discover again.
func (a *Adapter) agree(ctx context.Context, open func(context.Context, bool) (*session, error)) (*session, error) {
	wasOlder := a.isOlder.Load()
	session, err := open(ctx, wasOlder)
	if errors.Is(err, errSilent) {
		session, err = open(ctx, true)
		a.isOlder.Store(err == nil && session.tap.wasPrompt())
	} else if wasOlder && err != nil {
		a.isOlder.Store(false) // a newer server may have replaced it
	}
	return session, err
}

func (a *Adapter) openEndpoint(ctx context.Context, isOlder bool) (*session, error) {
	life, end := context.WithCancel(context.Background())
	w := &wire{transport: a.transport, header: a.provider.header, limit: a.provider.limit, life: life}
	transport := &sdk.StreamableClientTransport{
		Endpoint: a.provider.endpoint,
		HTTPClient: &http.Client{
			Transport:     w,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		MaxRetries:           patientStream,
		DisableStandaloneSSE: true, // the server has nothing to ask drainer, and lists are read when needed
	}
	asking, refused := noteRefusal(ctx)
	session, err := newSession(asking, newTap(transport, a.patience, w.speak), isOlder, end)
	if err != nil {
		return nil, &setupError{err: err, refusal: refused.Load()}
	}
	return session, nil
}

func (a *Adapter) openChild(ctx context.Context, isOlder bool) (*session, error) {
	tap := newTap(a.program, a.patience, nil)
	session, err := newSession(ctx, tap, isOlder, tap.abandon)
	if err != nil {
		return nil, &setupError{err: err, problem: a.program.last.obituary(ctx)}
	}
	session.child = a.program.last
	return session, nil
}

// setupError is the error of a session that could not be opened, or of a list that could not be read.
type setupError struct {
	err     error
	refusal *refusal          // nil if the server sent none
	problem *dispatch.Problem // how the child ended, if it did
}

func (e *setupError) Error() string { return "setting up a call: " + e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

// unsent returns the result of a failure before the call.
func unsent(ctx context.Context, err error) dispatch.Result {
	result := dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "protocol"}
	var refused *setupError
	var broken *wireError
	var unstarted *startError
	if errors.As(err, &refused) {
		result.Problem = refused.problem
	}
	if errors.As(err, &unstarted) && unstarted.problem != nil {
		result.Problem = unstarted.problem
	}
	switch {
	case ctx.Err() != nil:
		result.ErrorClass = evidence.Context(ctx)
	case errors.As(err, &broken):
		result.ErrorClass = broken.class
	case unstarted != nil:
		result.ErrorClass = unstarted.class
	case errors.Is(err, context.DeadlineExceeded):
		result.ErrorClass = "timeout"
	case refused != nil && refused.problem != nil:
		result.ErrorClass = "child_start"
	case refused != nil && refused.refusal != nil:
		result.ErrorClass = "http_" + strconv.Itoa(refused.refusal.status)
		result.RetryAfter = refused.refusal.retryAfter
		if refused.refusal.status == http.StatusUnauthorized {
			result.Outcome = dispatch.CredentialsRefused
		}
	}
	return result
}

// Destinations returns the address of the endpoint, or the program. The connections of a program itself are not
// known.
func (a *Adapter) Destinations() []dispatch.Destination {
	if a.program != nil {
		return []dispatch.Destination{{Network: "program", Address: a.program.location()}}
	}
	endpoint, err := url.Parse(a.provider.endpoint)
	if err != nil {
		return nil
	}
	return []dispatch.Destination{onesend.Destination(endpoint)}
}

// location returns the program's name or path. A relative path begins at the directory in which the program is
// started.
func (p *program) location() string {
	name := p.command[0]
	if !strings.Contains(name, "/") || filepath.IsAbs(name) || p.directory == "" {
		return name
	}
	return filepath.Join(p.directory, name)
}
