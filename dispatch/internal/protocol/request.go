package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Request is one attempt at an intent.
type Request struct {
	ID             string            `json:"id"` // of this message; the result repeats it
	Operation      string            `json:"operation"`
	IdempotencyKey string            `json:"idempotency_key"`
	Attempt        int               `json:"attempt"`
	Tuple          Tuple             `json:"tuple"`
	Payload        json.RawMessage   `json:"payload"`
	Headers        map[string]string `json:"headers,omitempty"`
	ProviderRef    string            `json:"provider_ref,omitempty"`
	DeadlineMS     int64             `json:"deadline_ms,omitempty"` // what is left of the attempt's time
}

// maxNesting is half of what Python reads by default.
const maxNesting = 500

var errTooDeep = errors.New("the payload is nested too deeply")

// Tuple is the identity of an intent.
type Tuple struct {
	AgentRunID    string `json:"agent_run_id"`
	StepID        string `json:"step_id"`
	ToolName      string `json:"tool_name"`
	BusinessScope string `json:"business_scope"`
}

// Encode writes the request as one line, with its newline. The payload's
// numbers and strings stay as they are; the space between them goes, and what
// some readers take for the end of a line is escaped.
//
// A payload that is no JSON, or nested deeper than parsers of other languages
// go, is an error.
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

// escapeLineEnds escapes what Unicode calls the end of a line, and what some
// readers of lines take for one. In JSON it stands in strings only.
func escapeLineEnds(line []byte) []byte {
	for _, end := range []rune{'\u0085', '\u2028', '\u2029'} {
		line = bytes.ReplaceAll(line, []byte(string(end)), fmt.Appendf(nil, `\u%04x`, end))
	}
	return line
}

// millisecondsLeft is 0 where there is no deadline, and never else.
func millisecondsLeft(ctx context.Context) int64 {
	deadline, bounded := ctx.Deadline()
	if !bounded {
		return 0
	}
	return max(1, time.Until(deadline).Milliseconds())
}

// nesting is how deep the arrays and objects of a JSON text go.
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
