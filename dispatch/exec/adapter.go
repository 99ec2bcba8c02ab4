// Package exec is the adapter for a provider whose adapter is a program: a child process, in any language, that
// speaks the protocol of docs/adapter-protocol.md in lines over its stdin and stdout.
//
//	Dispatch ──supervisor──▶ running ──inbox──▶ stdin
//	   ▲                        │                 child
//	   └────────calls◀──────read lines◀────────── stdout
//
// One child serves a provider and handles many requests at once. The first dispatch starts it. A child that breaks
// the protocol, is silent or ends is replaced, after a delay that grows. The requests that it has not answered stay
// in doubt. Other providers notice nothing.
package exec

import (
	"context"
	"io"
	"os"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
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
	client   *protocol.Client
	children *supervisor
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
	children := supervise(launch.start)
	client := &protocol.Client{Tools: spec.Tools, Timeout: spec.Timeout, Reach: children.reach}
	return &Adapter{program: settings.Command[0], client: client, children: children}, nil
}

// Dispatch asks the child at most once and returns the result.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	return a.client.Dispatch(ctx, request)
}

// Greet starts the child, if there is none, and asks for its hello.
func (a *Adapter) Greet(ctx context.Context) dispatch.Result { return a.client.Greet(ctx) }

// Close ends the child. First it closes the child's stdin and gives it time to finish. Then the child gets SIGTERM,
// and then SIGKILL.
func (a *Adapter) Close() error { return a.children.close() }

// Destinations returns the program. The program's own connections are not known.
func (a *Adapter) Destinations() []dispatch.Destination {
	return []dispatch.Destination{{Network: "program", Address: a.program}}
}
