package dispatchtest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
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

// Close ends the dispatches that are under way.
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

// flaw is one mistake that an adapter can make.
type flaw string

const (
	none flaw = "none"

	publishesNoShape      flaw = "publishes no shape of its blocks"
	publishesAnotherShape flaw = "publishes another shape than it decodes"
	acceptsUnknownFields  flaw = "accepts unknown fields"
	repeatsValues         flaw = "repeats values in errors of New"
	panicsInNew           flaw = "panics in New"
	connectsInNew         flaw = "connects in New"
	leaksInNew            flaw = "leaks a goroutine of New"

	losesTheKey      flaw = "loses the key"
	keysAttempts     flaw = "keys attempts, not intents"
	sharesAKey       flaw = "sends one key for all"
	numbersAttempts  flaw = "numbers attempts in the body"
	roundsNumbers    flaw = "decodes numbers as float64"
	sendsTwice       flaw = "sends everything twice"
	claimsAtOnce     flaw = "completes without sending"
	mixesRequests    flaw = "fails some of many at once"
	changesRequests  flaw = "changes the request"
	panicsAtStrange  flaw = "panics at what it does not expect"
	givesEngineWords flaw = "reports an outcome of the engine"

	sendsUnknownOperations flaw = "sends unknown operations"
	sendsWhenCancelled     flaw = "sends though it is cancelled"
	ignoresContext         flaw = "does not watch the context"
	hasNoTimeout           flaw = "has no timeout of its own"
	returnsLate            flaw = "returns late"
	deniesSending          flaw = "says not_sent after sending"
	doubtsEverything       flaw = "says ambiguous without a connection"
	takesSilenceForSuccess flaw = "takes silence for success"
	takesBabbleForSuccess  flaw = "takes babble for success"
	mistakesRefusals       flaw = "mistakes one refusal for another"
	retriesByItself        flaw = "retries by itself"
	staysBroken            flaw = "stays broken"
	dialsByItself          flaw = "dials past the network"
	blursRefusedEgress     flaw = "takes refused egress for a failed connection"

	tellsSecrets     flaw = "repeats a secret in an error class"
	echoesSecrets    flaw = "stores a secret in a response"
	tellsPayloads    flaw = "repeats the payload in a problem"
	givesFreeText    flaw = "gives free text for an error class"
	givesNoClass     flaw = "gives no error class"
	storesNUL        flaw = "stores NUL"
	leaksGoroutines  flaw = "leaks a goroutine of Dispatch"
	leaksConnections flaw = "leaks connections"
	failsToClose     flaw = "fails to close"
	neverCloses      flaw = "never returns from Close"
)

// distort changes a message on its way out.
func (t *toy) distort(message *line, request dispatch.Request) {
	switch t.flaw {
	case losesTheKey:
		message.Key = ""
	case keysAttempts:
		message.Key += string(rune('0' + request.Attempt))
	case sharesAKey:
		message.Key = "the key"
	case numbersAttempts:
		message.Payload = json.RawMessage(`{"n": ` + strings.Repeat("1", request.Attempt) + `}`)
	case roundsNumbers:
		var value any
		_ = json.Unmarshal(message.Payload, &value)
		message.Payload, _ = json.Marshal(value)
	}
}

// misbehaveBefore returns the result that replaces a dispatch, if any.
func (t *toy) misbehaveBefore(request dispatch.Request) (dispatch.Result, bool) {
	switch t.flaw {
	case claimsAtOnce:
		return dispatch.Result{Outcome: dispatch.Completed}, true
	case mixesRequests:
		if t.calls.Load() > 32 {
			return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "full"}, true
		}
	case changesRequests:
		request.Headers["x-changed"] = "1"
	case panicsAtStrange:
		if !isUsual(request) {
			panic("strange")
		}
	case staysBroken:
		if t.failed.Load() {
			return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "closed"}, true
		}
	case leaksGoroutines:
		go func() { <-make(chan struct{}) }()
	}
	return dispatch.Result{}, false
}

func isUsual(request dispatch.Request) bool {
	var payload struct{ Amount *int }
	err := json.Unmarshal(request.Payload, &payload)
	return err == nil && payload.Amount != nil && strings.Contains(string(request.Payload), "a memo of the agent") &&
		request.Tuple.BusinessScope == "conformance" && request.Headers["traceparent"] != "" && request.Headers["tracestate"] == ""
}

// misbehaveAfter changes a result.
func (t *toy) misbehaveAfter(request dispatch.Request, result dispatch.Result) dispatch.Result {
	failed := result.Outcome != dispatch.Completed
	t.failed.Store(failed)
	switch {
	case t.flaw == returnsLate && failed:
		<-time.After(3 * patience / 4)
	case t.flaw == sendsTwice:
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		text, _ := t.write(toyTool{Verb: "act"}, request)
		return t.send(ctx, text)
	case t.flaw == givesEngineWords:
		result.Outcome, result.ErrorClass = dispatch.Lost, "lost"
	case t.flaw == tellsSecrets && failed:
		result.ErrorClass = "refused_" + t.settings.Token
	case t.flaw == echoesSecrets:
		result.Response, _ = json.Marshal(map[string]string{"authorization": "Bearer " + t.settings.Token})
	case t.flaw == tellsPayloads && failed:
		result.Problem = &dispatch.Problem{Detail: "refused: " + string(request.Payload)}
	case t.flaw == givesFreeText && failed:
		result.ErrorClass = "dial tcp 127.0.0.1: connection refused"
	case t.flaw == givesNoClass && failed:
		result.ErrorClass = ""
	case t.flaw == storesNUL:
		result.Response = json.RawMessage(`{"said": "\u0000"}`)
	}
	return result
}

const secret = "secret-77aa01"

// line is the toy protocol: a request is one line of JSON, an answer is one of
// "done", "later", "never" and "busy".
type line struct {
	Token   string          `json:"token"`
	Verb    string          `json:"verb"`
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"`
}

// desk is the server of the toy protocol.
type desk struct {
	gate  *dispatchtest.Gate
	ended chan struct{}

	mu        sync.Mutex
	situation dispatchtest.Situation
	messages  []dispatchtest.Message
}

func newDesk(t *testing.T) *desk {
	d := &desk{ended: make(chan struct{}), situation: dispatchtest.Answering}
	d.gate = dispatchtest.OpenGate(t, dispatchtest.ServeConns(t, d.serve), nil)
	t.Cleanup(func() { close(d.ended) })
	return d
}

func (d *desk) counterpart() dispatchtest.Counterpart {
	return dispatchtest.Counterpart{
		Settings: "{address: '" + d.gate.Address + "', token: " + secret + ", attempts: 1}",
		Tool:     "verb: act",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "a memo of the agent", "and": {"z": [true], "a": null}}`),
		Exact:    json.RawMessage(`{"amount": 9007199254740993}`),
		Secrets:  []string{secret},
		Received: func() []dispatchtest.Message {
			d.mu.Lock()
			defer d.mu.Unlock()
			return slices.Clone(d.messages)
		},
		Enter: d.enter,
	}
}

func (d *desk) enter(situation dispatchtest.Situation) {
	if situation == dispatchtest.Unreachable {
		d.gate.Shut()
	} else {
		d.gate.Open()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.situation = situation
}

func (d *desk) serve(conn net.Conn) {
	reader := bufio.NewReader(conn)
	for {
		text, err := reader.ReadBytes('\n')
		if err != nil {
			return
		}
		switch answer := d.take(text); answer {
		case "":
			return
		case "silence":
			<-d.ended
			return
		default:
			if _, err := io.WriteString(conn, answer+"\n"); err != nil {
				return
			}
		}
	}
}

// take records a request and returns the answer. An empty answer hangs up.
func (d *desk) take(text []byte) string {
	var request line
	if err := json.Unmarshal(text, &request); err != nil {
		return "never"
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.messages = append(d.messages, dispatchtest.Message{Key: request.Key, Body: request.Payload})
	return map[dispatchtest.Situation]string{
		dispatchtest.Answering:  "done",
		dispatchtest.Throttling: "later",
		dispatchtest.Rejecting:  "never",
		dispatchtest.Busy:       "busy",
		dispatchtest.Silent:     "silence",
		dispatchtest.Babbling:   "220 mail.example ESMTP",
	}[d.situation]
}
