package conformance_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
)

type toySettings struct {
	Address  string `yaml:"address"`
	Token    string `yaml:"token"`
	Attempts int    `yaml:"attempts"`
}

type toyTool struct {
	Verb string `yaml:"verb"`
}

// toy is an adapter with one flaw, or with none.
type toy struct {
	flaw     flaw
	settings toySettings
	tools    map[string]toyTool
	network  dispatch.Network
	timeout  time.Duration

	calls   atomic.Int64
	failed  atomic.Bool
	release chan struct{} // closed with the adapter
}

func kindWith(flaw flaw) dispatch.Kind {
	kind := dispatch.Kind{
		Name:     "toy",
		Settings: toySettings{},
		Tool:     toyTool{},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return newToy(spec, flaw) },
	}
	switch flaw {
	case publishesNoShape:
		kind.Settings, kind.Tool = nil, nil
	case publishesAnotherShape:
		kind.Settings, kind.Tool = struct{}{}, struct{}{}
	}
	return kind
}

func newToy(spec dispatch.Spec, flaw flaw) (dispatch.Adapter, error) {
	t := &toy{flaw: flaw, tools: map[string]toyTool{}, network: spec.Network, timeout: spec.Timeout, release: make(chan struct{})}
	if err := t.decode(spec.Settings, &t.settings); err != nil {
		return nil, err
	}
	for name, tool := range spec.Tools {
		var settings toyTool
		if err := t.decode(tool.Settings, &settings); err != nil {
			return nil, &dispatch.ToolError{Operation: name, Err: err}
		}
		if settings.Verb != "act" {
			return nil, &dispatch.ToolError{Operation: name, Err: t.invalid("verb", settings.Verb)}
		}
		t.tools[name] = settings
	}
	if _, _, err := net.SplitHostPort(t.settings.Address); err != nil {
		return nil, t.invalid("address", t.settings.Address)
	}
	return t, t.misbehaveInNew()
}

func (t *toy) decode(block dispatch.Block, into any) error {
	if t.flaw != acceptsUnknownFields {
		return block.Decode(into)
	}
	loose := map[string]any{}
	if err := block.Decode(&loose); err != nil {
		return err
	}
	text, err := yaml.Marshal(loose)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(text, into)
}

func (t *toy) invalid(field, value string) error {
	if t.flaw == repeatsValues {
		return fmt.Errorf("%s: %q is not valid", field, value)
	}
	return errors.New(field + " is not valid")
}

func (t *toy) misbehaveInNew() error {
	switch t.flaw {
	case panicsInNew:
		panic("New")
	case connectsInNew:
		conn, err := t.network.DialContext(context.Background(), "tcp", t.settings.Address)
		if err != nil {
			return fmt.Errorf("connecting: %w", err)
		}
		return conn.Close()
	case leaksInNew:
		go func() { <-make(chan struct{}) }()
	}
	return nil
}

// Close ends what is under way.
func (t *toy) Close() error {
	switch t.flaw {
	case failsToClose:
		return errors.New("not now")
	case neverCloses:
		select {}
	}
	close(t.release)
	return nil
}

func (t *toy) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	t.calls.Add(1)
	tool, known := t.tools[request.Tuple.Operation()]
	if !known && t.flaw != sendsUnknownOperations {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	if t.flaw != hasNoTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.timeout)
		defer cancel()
	}
	if result, ended := t.misbehaveBefore(request); ended {
		return result
	}
	if ctx.Err() != nil && t.flaw != sendsWhenCancelled {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: classOf(ctx)}
	}
	text, err := t.write(tool, request)
	if err != nil {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "unrenderable_request"}
	}
	result := t.send(ctx, text)
	if t.flaw == retriesByItself && result.Outcome == dispatch.Ambiguous {
		result = t.send(ctx, text)
	}
	return t.misbehaveAfter(request, result)
}

func (t *toy) write(tool toyTool, request dispatch.Request) ([]byte, error) {
	message := line{Token: t.settings.Token, Verb: tool.Verb, Key: request.IdempotencyKey, Payload: request.Payload}
	if len(message.Payload) == 0 {
		message.Payload = json.RawMessage("null")
	}
	t.distort(&message, request)
	text, err := json.Marshal(message)
	return append(text, '\n'), err
}

// send makes one attempt.
func (t *toy) send(ctx context.Context, text []byte) dispatch.Result {
	conn, err := t.dial(ctx)
	switch {
	case errors.Is(err, dispatch.ErrEgressRefused) && t.flaw != blursRefusedEgress:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "egress_refused"}
	case err != nil && ctx.Err() != nil:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: classOf(ctx)}
	case err != nil:
		return t.undialed()
	}
	if t.flaw != leaksConnections {
		defer conn.Close()
	}
	if t.flaw != ignoresContext {
		defer context.AfterFunc(ctx, func() { conn.Close() })()
	}
	if _, err := conn.Write(text); err != nil {
		return t.unanswered(ctx)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return t.unanswered(ctx)
	}
	return t.judge(strings.TrimSpace(answer))
}

func (t *toy) dial(ctx context.Context) (net.Conn, error) {
	if t.flaw == dialsByItself {
		return (&net.Dialer{}).DialContext(ctx, "tcp", t.settings.Address)
	}
	if t.flaw == sendsWhenCancelled {
		ctx = context.Background()
	}
	return t.network.DialContext(ctx, "tcp", t.settings.Address)
}

func (t *toy) undialed() dispatch.Result {
	if t.flaw == doubtsEverything {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "dial"}
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "dial"}
}

func (t *toy) unanswered(ctx context.Context) dispatch.Result {
	class := "reset"
	if ctx.Err() != nil {
		class = classOf(ctx)
	}
	switch t.flaw {
	case deniesSending:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}
	case takesSilenceForSuccess:
		return dispatch.Result{Outcome: dispatch.Completed}
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: class}
}

func (t *toy) judge(answer string) dispatch.Result {
	result, known := map[string]dispatch.Result{
		"done":  {Outcome: dispatch.Completed, Response: json.RawMessage(`{"said": "done"}`)},
		"later": {Outcome: dispatch.Throttled, ErrorClass: "later"},
		"never": {Outcome: dispatch.Rejected, ErrorClass: "never", Problem: &dispatch.Problem{Title: "never"}},
		"busy":  {Outcome: dispatch.InFlight, ErrorClass: "busy"},
	}[answer]
	switch {
	case t.flaw == mistakesRefusals && (answer == "later" || answer == "busy"):
		result.Outcome = dispatch.Rejected
	case t.flaw == mistakesRefusals && answer == "never":
		result.Outcome = dispatch.Throttled
	case !known && t.flaw == takesBabbleForSuccess:
		return dispatch.Result{Outcome: dispatch.Completed}
	case !known:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "protocol"}
	}
	return result
}

func classOf(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "timeout"
	}
	return "cancelled"
}
