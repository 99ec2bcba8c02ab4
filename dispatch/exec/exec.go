// Package exec is the adapter for a provider whose adapter is a program: a
// child process, in any language, that stays and speaks the protocol of
// docs/adapter-protocol.md in lines over its stdin and stdout.
//
//	Dispatch ──supervisor──▶ running ──inbox──▶ stdin
//	   ▲                        │                 child
//	   └────────calls◀──────read lines◀────────── stdout
//
// One child serves a provider, many requests at once. It is started at the
// first dispatch. Whoever breaks the protocol, falls silent or dies is
// replaced, after a while that grows; what it had been asked stays in doubt.
// None of that is felt beyond the provider.
package exec

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/deadline"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// Kind registers the adapter as "exec".
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "exec",
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter dispatches to one provider through one child at a time.
type Adapter struct {
	program  string
	tools    map[string]dispatch.ToolSpec
	children *supervisor
	timeout  time.Duration
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It starts nothing.
func New(spec dispatch.Spec) (*Adapter, error) { return build(spec, usualPatience, os.Stderr) }

func build(spec dispatch.Spec, patience patience, stderr io.Writer) (*Adapter, error) {
	settings, err := newSettings(spec)
	if err != nil {
		return nil, err
	}
	launch := launcher{provider: spec.Provider, settings: settings, patience: patience, stderr: stderr}
	return &Adapter{program: settings.Command[0], tools: spec.Tools, children: supervise(launch.start), timeout: spec.Timeout}, nil
}

// Dispatch asks the child once and reports what is known of it.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, configured := a.tools[request.Tuple.Operation()]
	if !configured {
		return notSent("unconfigured_tool")
	}
	ctx, cancel := deadline.Within(ctx, a.timeout)
	defer cancel()
	if ctx.Err() != nil {
		return notSent(failure.Context(ctx)) // which is no reason to start a child
	}
	child, refusal := a.children.serving(ctx)
	if child == nil {
		return refusal
	}
	if class := child.hello.Refusal(request.Tuple.Operation(), tool.Class); class != "" {
		return notSent(class)
	}
	return child.ask(ctx, request, tool.Class)
}

// Close ends the child: its stdin ends first, and it may finish; then it is
// asked to, and then it is killed.
func (a *Adapter) Close() error { return a.children.close() }

func notSent(class string) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}
}

func ambiguous(class string) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: class}
}
