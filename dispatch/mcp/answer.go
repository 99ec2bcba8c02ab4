package mcp

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentoutbox/drainer/internal/jq"
)

// Codes beyond those of JSON-RPC, all of them given before a tool runs.
const (
	codeInternalError       = jsonrpc.CodeInternalError
	codeHeaderMismatch      = -32020
	codeCapabilityRequired  = -32021
	codeVersionUnsupported  = -32022
	codeElicitationRequired = -32042
)

// answer is a server's word on a call: a result, or a fault, which is what
// JSON-RPC calls an error.
type answer struct {
	isError    bool
	content    json.RawMessage // nil where there is none
	structured json.RawMessage // nil where there is none
	meta       map[string]any
	wantsInput bool // the server will not go on without answers that nobody here can give
	wants      int  // how many

	isFault bool
	code    int64
	message string
	data    json.RawMessage
}

var errNoAnswer = errors.New("the response is no answer to a tools/call")

// understand reads the response itself, not what the library made of it:
// numbers must stay exact, and unknown content is no reason for doubt.
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
	return errNoAnswer // a later protocol may say there what is no end yet
}

func present(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// view is what rules and the reference's expression see.
func (a *answer) view() map[string]any {
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

// text is the text content, joined by newlines.
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

// body is what is stored of it.
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

// class names the failure; "" for a success.
func (a *answer) class() string {
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
