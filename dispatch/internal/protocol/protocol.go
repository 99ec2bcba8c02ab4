// Package protocol is the protocol, version 1, between drainer and an adapter in another process.
// docs/adapter-protocol.md describes it, and docs/adapter-protocol.schema.json is the schema of its messages.
//
//	hello   ⇄  both sides list their versions, the adapter its operations
//	Request →  one attempt at an intent
//	Result  ←  the outcome of that attempt
//
// A message is one JSON object. The executable adapter sends messages as lines, the sidecar sends them as bodies.
// Their meaning is the same.
package protocol

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

const version = 1

// Peer is an adapter in another process that has said hello. Kinds of peers differ in how messages are carried, and
// in how long the peer lives.
type Peer interface {
	Hello() Hello
	// Ask makes one attempt and returns its result.
	Ask(ctx context.Context, id string, message []byte, class dispatch.Class) dispatch.Result
}

// Client dispatches to one provider through its peer.
type Client struct {
	Tools   map[string]dispatch.ToolSpec
	Timeout time.Duration // limit of a dispatch; 0 for none
	// Reach returns the peer, or nil and the result of a dispatch that was not sent.
	Reach func(context.Context) (Peer, dispatch.Result)

	requests atomic.Uint64
}

// Dispatch asks the peer at most once. An id is used only once in the client's life, so a late answer cannot be
// taken for the answer to another request.
func (c *Client) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	operation := request.Tuple.Operation()
	tool, configured := c.Tools[operation]
	if !configured {
		return NotSent("unconfigured_tool")
	}
	ctx, cancel := adapter.Within(ctx, c.Timeout)
	defer cancel()
	if ctx.Err() != nil {
		return NotSent(evidence.Context(ctx)) // a cancelled dispatch starts no child
	}
	peer, refusal := c.Reach(ctx)
	if peer == nil {
		return refusal
	}
	if class := peer.Hello().Refusal(operation, tool.Class); class != "" {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class, OfOperation: true}
	}
	if ctx.Err() != nil {
		return NotSent(evidence.Context(ctx))
	}
	id := strconv.FormatUint(c.requests.Add(1), 10)
	message, err := Encode(ctx, id, request)
	if err != nil {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: dispatch.Unrenderable, Unsent: true, Problem: render.Problem(err)}
	}
	return peer.Ask(ctx, id, message, tool.Class)
}

// Greet connects to the peer and checks its hello against every configured tool. It sends no request.
func (c *Client) Greet(ctx context.Context) dispatch.Result {
	ctx, cancel := adapter.Within(ctx, c.Timeout)
	defer cancel()
	peer, refusal := c.Reach(ctx)
	if peer == nil {
		return refusal
	}
	for _, operation := range slices.Sorted(maps.Keys(c.Tools)) {
		if class := peer.Hello().Refusal(operation, c.Tools[operation].Class); class != "" {
			refusal := NotSent(class)
			refusal.Problem = &dispatch.Problem{Title: operation}
			return refusal
		}
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

// NotSent is the result of a request of which no byte was sent.
func NotSent(class string) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}
}

// Ambiguous is the result of a request that may have had its effect.
func Ambiguous(class string) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: class}
}

// Configure reads a provider's block into settings, and checks that the tools' own blocks are empty. It returns the
// problems, not joined.
func Configure(spec dispatch.Spec, settings any) []error {
	problems := []error{adapter.Decode(spec.Settings, settings)}
	_, err := adapter.Tools(spec.Tools, func(_ string, tool dispatch.ToolSpec) (struct{}, error) {
		return struct{}{}, adapter.Decode(tool.Settings, &struct{}{})
	})
	return append(problems, err)
}

// CheckMaxMessage fills in the default of the longest message, in bytes, and checks it.
func CheckMaxMessage(bytes *int) error {
	*bytes = cmp.Or(*bytes, DefaultMaxMessage)
	if *bytes < 1024 {
		return errors.New("max_message is under 1024 bytes")
	}
	return nil
}

// Hello is the first message of both sides. Both then use the highest version that both list.
type Hello struct {
	Protocol []int  `json:"protocol"`
	Name     string `json:"name"`
	// Operations lists the adapter's operations, each with the safest class that
	// it can promise. If an adapter lists none, the configuration alone decides.
	Operations map[string]dispatch.Class `json:"operations,omitempty"`
}

// Greeting returns the hello line of drainer, with its newline.
func Greeting() []byte {
	line, _ := json.Marshal(Hello{Protocol: []int{version}, Name: "drainer"}) // constant, so it cannot fail
	return append(line, '\n')
}

// ParseHello reads an adapter's hello. It returns the error class of a hello that cannot be used: "invalid_hello" or
// "protocol_version".
func ParseHello(text []byte) (hello Hello, class string) {
	mistakes, err := readObject(text, map[string]any{"protocol": &hello.Protocol, "name": &hello.Name, "operations": &hello.Operations})
	if err != nil || len(mistakes) > 0 || !hello.isValid() {
		return Hello{}, "invalid_hello"
	}
	if !slices.Contains(hello.Protocol, version) {
		return Hello{}, "protocol_version"
	}
	return hello, ""
}

func (h Hello) isValid() bool {
	for operation, class := range h.Operations {
		if operation == "" || !slices.Contains(dispatch.Classes(), class) {
			return false
		}
	}
	return h.Name != "" && len(h.Protocol) > 0
}

// Refusal returns an error class if the adapter lacks the operation, or if the configuration promises a safer class
// than the adapter does. It returns "" if the call may be made. A configured class that promises less is safe.
func (h Hello) Refusal(operation string, configured dispatch.Class) string {
	if h.Operations == nil {
		return ""
	}
	promised, known := h.Operations[operation]
	safestFirst := dispatch.Classes()
	switch {
	case !known:
		return "unknown_operation"
	case slices.Index(safestFirst, configured) < slices.Index(safestFirst, promised):
		return "class_not_promised"
	}
	return ""
}

// DefaultMaxMessage is the longest message that drainer reads from an adapter, in bytes without the newline.
const DefaultMaxMessage = 1 << 20

// Lines reads lines of at most longest bytes, and never holds more than one. The error is io.ErrUnexpectedEOF for a
// last line without its newline, which was cut short, and bufio.ErrTooLong for a line that is too long.
func Lines(from io.Reader, longest int) *bufio.Scanner {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, longest+1)
	lines.Split(wholeLine)
	return lines
}

func wholeLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return end + 1, data[:end], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

var errNoObject = errors.New("not one JSON object")

// readObject fills in the fields of a message by their exact names; encoding/json would take "ID" for "id". It
// returns the names of fields that have the wrong type or occur twice: with two outcomes or ids, it is unknown which
// one is meant. Unknown fields are ignored.
func readObject(text []byte, fields map[string]any) (mistakes []string, err error) {
	object := json.NewDecoder(bytes.NewReader(text))
	seen := map[string]bool{}
	if start, err := object.Token(); err != nil || start != json.Delim('{') {
		return nil, errNoObject
	}
	for object.More() {
		token, err := object.Token()
		if err != nil {
			return nil, errNoObject
		}
		name, _ := token.(string) // the decoder returns only strings as names
		into, known := fields[name]
		if !known || seen[name] {
			into = &json.RawMessage{}
		}
		isMistake := known && seen[name]
		seen[name] = true
		if err := object.Decode(into); err != nil {
			if !isMistyped(err) {
				return nil, errNoObject
			}
			isMistake = true
		}
		if isMistake {
			mistakes = append(mistakes, name)
		}
	}
	return mistakes, atEnd(object)
}

func isMistyped(err error) bool {
	var mistyped *json.UnmarshalTypeError
	return errors.As(err, &mistyped)
}

// atEnd checks that the object is complete and that nothing follows it.
func atEnd(object *json.Decoder) error {
	if _, err := object.Token(); err != nil {
		return errNoObject
	}
	if _, err := object.Token(); !errors.Is(err, io.EOF) {
		return errNoObject
	}
	return nil
}

// Request is one attempt at an intent.
type Request struct {
	ID             string            `json:"id"` // of this message; repeated in the result
	Operation      string            `json:"operation"`
	IdempotencyKey string            `json:"idempotency_key"`
	Attempt        int               `json:"attempt"`
	Tuple          Tuple             `json:"tuple"`
	Payload        json.RawMessage   `json:"payload"`
	Headers        map[string]string `json:"headers,omitempty"`
	ProviderRef    string            `json:"provider_ref,omitempty"`
	DeadlineMS     int64             `json:"deadline_ms,omitempty"` // the remaining time of the attempt
}

// maxNesting is half of the depth that Python's parser accepts by default.
const maxNesting = 500

var errTooDeep = errors.New("the payload is nested too deeply")

// Tuple is the identity of an intent.
type Tuple struct {
	AgentRunID    string `json:"agent_run_id"`
	StepID        string `json:"step_id"`
	ToolName      string `json:"tool_name"`
	BusinessScope string `json:"business_scope"`
}

// Encode writes the request as one line, with its newline. The payload's numbers and strings keep their form. White
// space between them is removed, and characters that some readers take for the end of a line are escaped.
//
// Encode returns an error for a payload that is not JSON, or that is nested deeper than maxNesting.
func Encode(ctx context.Context, id string, request dispatch.Request) ([]byte, error) {
	if nesting(request.Payload) > maxNesting {
		return nil, render.Because("payload", errTooDeep)
	}
	message := Request{
		ID:             id,
		Operation:      request.Tuple.Operation(),
		IdempotencyKey: request.IdempotencyKey,
		Attempt:        request.Attempt,
		Tuple:          Tuple(request.Tuple),
		Payload:        request.Payload,
		Headers:        render.TraceContext(request.Headers),
		ProviderRef:    request.ProviderRef,
		DeadlineMS:     millisecondsLeft(ctx),
	}
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(message); err != nil {
		return nil, fmt.Errorf("the payload is no JSON: %w", err)
	}
	return escapeLineEnds(line.Bytes()), nil
}

// escapeLineEnds escapes characters that Unicode, and so some readers of lines, treats as the end of a line. In JSON
// they occur only in strings.
func escapeLineEnds(line []byte) []byte {
	for _, end := range []rune{'\u0085', '\u2028', '\u2029'} {
		line = bytes.ReplaceAll(line, []byte(string(end)), fmt.Appendf(nil, `\u%04x`, end))
	}
	return line
}

// millisecondsLeft returns 0 if and only if there is no deadline.
func millisecondsLeft(ctx context.Context) int64 {
	deadline, bounded := ctx.Deadline()
	if !bounded {
		return 0
	}
	return max(1, time.Until(deadline).Milliseconds())
}

// nesting returns the depth of the arrays and objects of a JSON text.
func nesting(text []byte) int {
	depth, deepest, inString := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// Result is the peer's report on a request.
type Result struct {
	ID           string            `json:"id"`
	Outcome      dispatch.Outcome  `json:"outcome"`
	Final        bool              `json:"final,omitempty"`
	HTTPStatus   int               `json:"http_status,omitempty"`
	ErrorClass   string            `json:"error_class,omitempty"`
	RetryAfterMS float64           `json:"retry_after_ms,omitempty"`
	Replayed     bool              `json:"replayed,omitempty"`
	ProviderRef  string            `json:"provider_ref,omitempty"`
	Response     json.RawMessage   `json:"response,omitempty"`
	Problem      *dispatch.Problem `json:"problem,omitempty"`
}

var (
	// ErrUnaddressed means that a text is not the result of any request.
	ErrUnaddressed = errors.New("not a JSON object with an id")
	// ErrInvalid means that a result breaks the protocol. Only its id is believed.
	ErrInvalid = errors.New("not a valid result")
)

var (
	outcomes = []dispatch.Outcome{
		dispatch.Completed, dispatch.NotSent, dispatch.Throttled, dispatch.Rejected,
		dispatch.CredentialsRefused, dispatch.Forbidden, dispatch.Absent, dispatch.Ambiguous, dispatch.InFlight,
	}
	className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// ParseResult reads a result. With [ErrInvalid] it still returns the id.
func ParseResult(text []byte) (Result, error) {
	var result Result
	mistakes, err := readObject(text, result.fields())
	switch {
	case err != nil || result.ID == "" || slices.Contains(mistakes, "id"):
		return Result{}, ErrUnaddressed
	case len(mistakes) > 0 || !result.isValid():
		return Result{ID: result.ID}, ErrInvalid
	}
	return result, nil
}

// fields returns where the value of each field is stored, by name.
func (r *Result) fields() map[string]any {
	return map[string]any{
		"id": &r.ID, "outcome": &r.Outcome, "final": &r.Final, "http_status": &r.HTTPStatus, "error_class": &r.ErrorClass,
		"retry_after_ms": &r.RetryAfterMS, "replayed": &r.Replayed, "provider_ref": &r.ProviderRef,
		"response": &r.Response, "problem": &r.Problem,
	}
}

func (r Result) isValid() bool {
	return slices.Contains(outcomes, r.Outcome) &&
		(r.HTTPStatus == 0 || 100 <= r.HTTPStatus && r.HTTPStatus <= 599) &&
		(r.ErrorClass == "" || className.MatchString(r.ErrorClass)) &&
		r.RetryAfterMS >= 0
}

// Evidence converts the result for the engine, for a tool of the class.
func (r Result) Evidence(class dispatch.Class) dispatch.Result {
	return dispatch.Result{
		Outcome:     r.outcome(class),
		Final:       r.Final,
		HTTPStatus:  r.HTTPStatus,
		ErrorClass:  r.errorClass(),
		RetryAfter:  r.retryAfter(),
		Replayed:    r.Replayed,
		ProviderRef: evidence.Text(r.ProviderRef),
		Response:    r.response(),
		Problem:     r.problem(),
	}
}

// outcome takes in_flight for doubt if a call must not be repeated: it would be sent again to a provider that does
// not recognise its key.
func (r Result) outcome(class dispatch.Class) dispatch.Outcome {
	if r.Outcome == dispatch.InFlight && class == dispatch.NonIdempotent {
		return dispatch.Ambiguous
	}
	return r.Outcome
}

func (r Result) errorClass() string {
	switch {
	case r.Outcome == dispatch.Completed:
		return ""
	case r.ErrorClass == "":
		return string(r.Outcome)
	}
	return r.ErrorClass
}

func (r Result) retryAfter() time.Duration {
	if r.RetryAfterMS >= float64(evidence.LongestWait.Milliseconds()) {
		return evidence.LongestWait
	}
	return time.Duration(r.RetryAfterMS * float64(time.Millisecond))
}

func (r Result) response() json.RawMessage {
	if string(r.Response) == "null" {
		return nil
	}
	return evidence.JSON(r.Response, "application/json")
}

func (r Result) problem() *dispatch.Problem {
	if r.Problem == nil || *r.Problem == (dispatch.Problem{}) {
		return nil
	}
	return &dispatch.Problem{
		Type:   evidence.Text(r.Problem.Type),
		Title:  evidence.Text(r.Problem.Title),
		Detail: evidence.Text(r.Problem.Detail),
	}
}
