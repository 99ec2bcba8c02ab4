package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxPartOctets bounds each part of a tuple: a longer primary key would fail
// the agent's own transaction at the index.
const MaxPartOctets = 255

// ErrInvalidTuple says that a four-tuple cannot identify an intent.
var ErrInvalidTuple = errors.New("invalid intent key")

// Tuple identifies an intent: the primary key of the outbox.
type Tuple struct {
	AgentRunID    string
	StepID        string
	ToolName      string
	BusinessScope string
}

// Provider is the part of the tool name before its first slash; a tool name
// without one is its own provider.
func (t Tuple) Provider() string {
	provider, _, _ := strings.Cut(t.ToolName, "/")
	return provider
}

// Operation is the part of the tool name after its first slash; a tool name
// without one is its own operation.
func (t Tuple) Operation() string {
	provider, operation, found := strings.Cut(t.ToolName, "/")
	if !found {
		return provider
	}
	return operation
}

// IdempotencyKey derives the key that every attempt carries upstream: the
// first 32 hex digits of SHA-256 over the parts as netstrings (D. J.
// Bernstein, 1997), which no two different tuples share. The SQL function
// outbox.idempotency_key computes the same.
func (t Tuple) IdempotencyKey() string {
	netstrings := make([]byte, 0, 256) // on the stack: it is computed for every attempt
	for _, part := range t.parts() {
		netstrings = strconv.AppendInt(netstrings, int64(len(part.value)), 10)
		netstrings = append(netstrings, ':')
		netstrings = append(netstrings, part.value...)
		netstrings = append(netstrings, ',')
	}
	digest := sha256.Sum256(netstrings)
	return "idem_v1_" + hex.EncodeToString(digest[:16])
}

// Validate reports every part that is empty, too long or not valid text,
// joined, each wrapping ErrInvalidTuple. It never repeats a part's value.
func (t Tuple) Validate() error {
	var problems []error
	for _, part := range t.parts() {
		if problem := part.problem(); problem != "" {
			problems = append(problems, fmt.Errorf("%w: %s %s", ErrInvalidTuple, part.name, problem))
		}
	}
	if t.ToolName != "" && t.Provider() == "" {
		problems = append(problems, fmt.Errorf("%w: tool_name starts with a slash; write <provider>/<operation>", ErrInvalidTuple))
	}
	return errors.Join(problems...)
}

type part struct{ name, value string }

func (t Tuple) parts() [4]part {
	return [4]part{
		{"agent_run_id", t.AgentRunID},
		{"step_id", t.StepID},
		{"tool_name", t.ToolName},
		{"business_scope", t.BusinessScope},
	}
}

func (p part) problem() string {
	switch {
	case p.value == "":
		return "is empty"
	case len(p.value) > MaxPartOctets:
		return fmt.Sprintf("is %d octets long; at most %d are allowed", len(p.value), MaxPartOctets)
	case !utf8.ValidString(p.value) || strings.ContainsRune(p.value, 0):
		return "is not valid UTF-8 text without NUL"
	}
	return ""
}
