package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/rules"
	"github.com/agentoutbox/drainer/internal/jq"
)

// judge returns the outcome that is proven about a call.
func (t *tool) judge(ctx context.Context, e callEvidence, h hints) dispatch.Result {
	result := t.weigh(ctx, e)
	if result.Outcome == dispatch.Ambiguous && h.forbidRepeating(t.class) {
		result.Final = true
	}
	return result
}

func (t *tool) weigh(ctx context.Context, e callEvidence) dispatch.Result {
	switch {
	case !e.sent:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: e.class}
	case e.answer == nil && e.status > 299:
		v, _ := byStatus(e, nil)
		return dispatch.Result{Outcome: v.Outcome, ErrorClass: v.Class, HTTPStatus: e.status, RetryAfter: e.retryAfter}
	case e.answer == nil:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: e.class, HTTPStatus: e.status}
	}
	a, err := understand(e.answer)
	switch {
	case size(e.answer) > t.provider.limit:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "body_too_large", HTTPStatus: e.status}
	case err != nil:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "protocol", HTTPStatus: e.status}
	}
	return t.weighAnswer(ctx, e, a)
}

// size is roughly the number of bytes that would be stored.
func size(response *jsonrpc.Response) int64 {
	var fault *jsonrpc.Error
	if errors.As(response.Error, &fault) {
		return int64(len(fault.Message) + len(fault.Data))
	}
	return int64(len(response.Result))
}

func (t *tool) weighAnswer(ctx context.Context, e callEvidence, a *answer) dispatch.Result {
	v := t.verdict(ctx, e, a)
	result := dispatch.Result{
		Outcome: v.Outcome, Final: v.Final, ErrorClass: v.Class, HTTPStatus: e.status,
		Replayed: a.meta[t.provider.replayedMeta] == true,
		Response: evidence.JSON(a.body(), "application/json"),
		Healthy:  e.status == 0 && v.Outcome == dispatch.Ambiguous, // over stdio only an answer shows that the server works
	}
	if v.Outcome == dispatch.Completed {
		t.reading.Refer(ctx, &result, a.View())
		return result
	}
	result.RetryAfter = e.retryAfter
	if words := cmp.Or(a.message, a.text()); words != "" {
		result.Problem = &dispatch.Problem{Detail: evidence.Text(words)}
	}
	return result
}

// verdict uses the HTTP status first if the status shows that the answer is not final, then the operator's rules,
// then the protocol.
func (t *tool) verdict(ctx context.Context, e callEvidence, a *answer) rules.Verdict {
	if e.status > 299 {
		if v, known := byStatus(e, a); known {
			return v
		}
	}
	if v, known := t.reading.Rules.Judge(ctx, a); known {
		return v
	}
	v := t.byProtocol(a)
	if e.status > 299 && a.isFault && v.Outcome == dispatch.Ambiguous && a.code != codeInternalError {
		v = rules.Verdict{Outcome: dispatch.Rejected, Class: a.Class()} // a 4xx is a refusal, whatever its code
	}
	return v
}

// byProtocol returns the meaning of the answer by the protocol alone.
func (t *tool) byProtocol(a *answer) rules.Verdict {
	switch {
	case a.isFault:
		return byCode(a)
	case a.wantsInput:
		v := rules.Doubt(a.Class())
		v.Final = a.wants > 0 // a server without requests for input says that it is busy
		return v
	case a.isError:
		return rules.Verdict{Outcome: t.isError, Class: a.Class()}
	}
	return rules.Verdict{Outcome: dispatch.Completed}
}

func byCode(a *answer) rules.Verdict {
	switch a.code {
	case jsonrpc.CodeInvalidParams, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidRequest, jsonrpc.CodeParseError,
		codeCapabilityRequired, codeElicitationRequired:
		return rules.Verdict{Outcome: dispatch.Rejected, Class: a.Class()}
	case codeHeaderMismatch, codeVersionUnsupported:
		return rules.Verdict{Outcome: dispatch.Throttled, Class: a.Class()} // a new session can cure it
	}
	return rules.Doubt(a.Class())
}

// byStatus judges a response with an HTTP error status. It leaves most refusals with a JSON-RPC error to the rules
// and byProtocol. a may be nil.
func byStatus(e callEvidence, a *answer) (v rules.Verdict, known bool) {
	class := "http_" + strconv.Itoa(e.status)
	switch {
	case e.status == 425:
		return rules.Verdict{Outcome: dispatch.InFlight, Class: class}, true
	case e.status == 401 && (a == nil || (a.isFault && a.code != codeInternalError)): // a result proves that the tool ran
		return rules.Verdict{Outcome: dispatch.CredentialsRefused, Class: class}, true
	case e.status == 429, e.status == 503, e.status == 529:
		return rules.Verdict{Outcome: dispatch.Throttled, Class: class}, true
	case e.status >= 301 && e.status <= 303, e.status == 408, e.status >= 500: // 301 to 303 may lead to the result of an effect
		return rules.Doubt(class), true
	case e.sessionRefused(a):
		return rules.Verdict{Outcome: dispatch.Throttled, Class: "session_expired"}, true
	case e.status == 403 && a == nil:
		return rules.Verdict{Outcome: dispatch.Forbidden, Class: class}, true
	case a == nil:
		return rules.Verdict{Outcome: dispatch.Rejected, Class: class}, true
	}
	return rules.Verdict{}, false
}

// endsSession reports whether the next call needs another session. A child has only one session.
func (e callEvidence) endsSession() bool {
	switch {
	case e.status == 0:
		return false
	case e.answer == nil:
		return e.sessionRefused(nil)
	}
	a, err := understand(e.answer)
	return err == nil && (a.code == codeHeaderMismatch || a.code == codeVersionUnsupported || e.sessionRefused(a))
}

// sessionRefused reports whether the server no longer knows the session, and so has not looked at the call. The
// protocol demands a 404 for that. Older servers answer 400 to any request that they cannot assign. A result proves
// that the tool has run, whatever status a server or a gateway adds to it.
func (e callEvidence) sessionRefused(a *answer) bool {
	switch {
	case !e.inSession || (e.status != 404 && e.status != 400):
		return false
	case a == nil:
		return true
	case !a.isFault:
		return false
	case e.status == 404:
		return a.code != jsonrpc.CodeMethodNotFound
	}
	return byCode(a).Outcome == dispatch.Ambiguous && a.code != codeInternalError
}

// hints are a server's annotations of a tool. The protocol does not guarantee them, so they can only make the
// adapter more careful.
type hints struct{ annotations *sdk.ToolAnnotations }

// forbidRepeating reports whether the server says that a repeated call repeats its changes, although the
// configuration promises a naturally idempotent or read-only tool. A missing annotation counts with the protocol's
// default. A key makes a repeated call safe in any case.
func (h hints) forbidRepeating(class dispatch.Class) bool {
	promised := class == dispatch.NaturallyIdempotent || class == dispatch.ReadOnly
	return promised && h.annotations != nil && !h.annotations.IdempotentHint && !h.annotations.ReadOnlyHint
}

// Codes beyond those of JSON-RPC. A server gives all of them before the tool runs.
const (
	codeInternalError       = jsonrpc.CodeInternalError
	codeHeaderMismatch      = -32020
	codeCapabilityRequired  = -32021
	codeVersionUnsupported  = -32022
	codeElicitationRequired = -32042
)

// answer is a server's answer to a call: a result, or a fault (an error of JSON-RPC).
type answer struct {
	isError    bool
	content    json.RawMessage // nil if there is none
	structured json.RawMessage // nil if there is none
	meta       map[string]any
	wantsInput bool // the server asks for input that only a person could give
	wants      int  // how many inputs it asks for

	isFault bool
	code    int64
	message string
	data    json.RawMessage
}

var errNoAnswer = errors.New("the response is no answer to a tools/call")

// understand reads the response itself and not the library's result: numbers must stay exact, and unknown content
// must not cause doubt.
func understand(response *jsonrpc.Response) (*answer, error) {
	var fault *jsonrpc.Error
	if errors.As(response.Error, &fault) {
		return &answer{isFault: true, code: fault.Code, message: fault.Message, data: fault.Data}, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(response.Result, &members); err != nil || members == nil {
		return nil, errNoAnswer
	}
	a := &answer{content: present(members["content"]), structured: present(members["structuredContent"])}
	if err := a.readFlags(members); err != nil {
		return nil, err
	}
	if _, hasContent := members["content"]; !hasContent && a.structured == nil && !a.wantsInput {
		return nil, errNoAnswer
	}
	return a, nil
}

func (a *answer) readFlags(members map[string]json.RawMessage) error {
	var resultType string
	var inputs map[string]json.RawMessage
	for name, into := range map[string]any{"isError": &a.isError, "_meta": &a.meta, "resultType": &resultType, "inputRequests": &inputs} {
		if text := present(members[name]); text != nil && json.Unmarshal(text, into) != nil {
			return errNoAnswer
		}
	}
	a.wants = len(inputs)
	switch resultType {
	case "", "complete", "input_required":
		a.wantsInput = resultType == "input_required" || a.wants > 0
		return nil
	}
	return errNoAnswer // a later version of the protocol may have a type that is not final
}

func present(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// bareAnswers show only whether they are a success.
var bareAnswers = []rules.Answer{&answer{}, &answer{isError: true}, &answer{isFault: true, code: codeInternalError}}

// CanProve implements [rules.Answer]. A fault does not prove absence.
func (a *answer) CanProve(outcome dispatch.Outcome) bool {
	return outcome != dispatch.Absent || !a.isFault
}

// View implements [rules.Answer]. The expression for the reference has the same input.
func (a *answer) View() map[string]any {
	view := map[string]any{
		"is_error": a.isError, "text": a.text(),
		"structured": value(a.structured), "content": value(a.content),
		"code": nil, "message": nil, "data": nil,
	}
	if a.isFault {
		view["code"], view["message"], view["data"] = int(a.code), a.message, value(a.data)
	}
	return view
}

func value(text json.RawMessage) any {
	if text == nil {
		return nil
	}
	decoded, err := jq.Decode(text)
	if err != nil {
		return nil
	}
	return decoded
}

// text returns the text content, joined by newlines.
func (a *answer) text() string {
	parts, _ := value(a.content).([]any)
	var texts []string
	for _, part := range parts {
		if part, ok := part.(map[string]any); ok && part["type"] == "text" {
			if text, ok := part["text"].(string); ok {
				texts = append(texts, text)
			}
		}
	}
	return strings.Join(texts, "\n")
}

// body returns the part of the answer that is stored.
func (a *answer) body() json.RawMessage {
	switch {
	case a.structured != nil:
		return a.structured
	case a.content != nil:
		return a.content
	case a.isFault:
		text, err := json.Marshal(map[string]any{"code": a.code, "message": a.message, "data": a.data})
		if err != nil {
			return nil
		}
		return text
	}
	return nil
}

// Class implements [rules.Answer]. It names the failure, and is "" for a success.
func (a *answer) Class() string {
	switch {
	case a.isFault:
		return faultClass(a.code)
	case a.wantsInput:
		return "input_required"
	case a.isError:
		return "tool_error"
	}
	return ""
}

func faultClass(code int64) string {
	switch code {
	case jsonrpc.CodeParseError:
		return "parse_error"
	case jsonrpc.CodeInvalidRequest:
		return "invalid_request"
	case jsonrpc.CodeMethodNotFound:
		return "method_not_found"
	case jsonrpc.CodeInvalidParams:
		return "invalid_params"
	case codeInternalError:
		return "internal_error"
	case codeHeaderMismatch:
		return "header_mismatch"
	case codeCapabilityRequired:
		return "capability_required"
	case codeVersionUnsupported:
		return "version_unsupported"
	case codeElicitationRequired:
		return "elicitation_required"
	}
	return "rpc_error"
}
