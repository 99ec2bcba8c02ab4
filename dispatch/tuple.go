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

// MaxPartBytes bounds each part of a tuple. A longer primary key would exceed the limit of the index and fail the
// agent's own transaction.
const MaxPartBytes = 255

// ErrInvalidTuple means that a four-tuple cannot identify an intent.
var ErrInvalidTuple = errors.New("invalid intent key")

// Tuple identifies an intent. It is the primary key of the outbox.
type Tuple struct {
	AgentRunID    string
	StepID        string
	ToolName      string
	BusinessScope string
}

// Provider returns the part of the tool name before its first slash, or the whole name if there is no slash.
func (t Tuple) Provider() string {
	provider, _, _ := strings.Cut(t.ToolName, "/")
	return provider
}

// Operation returns the part of the tool name after its first slash, or the whole name if there is no slash.
func (t Tuple) Operation() string {
	provider, operation, found := strings.Cut(t.ToolName, "/")
	if !found {
		return provider
	}
	return operation
}

// Qualifiers make keys differ if the same tuple stands for another effect. A zero field does not enter a key.
type Qualifiers struct {
	Namespace  string // of the outbox, or of the provider: two outboxes may use one account
	Tenant     string
	Generation int // 2 after the first new key that an operator asked for
}

// IdempotencyKey derives the key that attempts send: the first 32 hex digits of SHA-256 over the parts as netstrings
// (D. J. Bernstein, 1997). Different tuples never have the same netstrings. The SQL function outbox.idempotency_key
// computes the same key.
func (t Tuple) IdempotencyKey() string { return t.QualifiedKey(Qualifiers{}) }

// QualifiedKey appends a netstring for each qualifier that is set, in the order of the fields: ns=NAMESPACE,
// tenant=TENANT, gen=GENERATION. The tuple always has four parts, which come first, so no part can be taken for a
// qualifier.
func (t Tuple) QualifiedKey(q Qualifiers) string {
	netstrings := make([]byte, 0, 256) // on the stack, since a key is computed for every attempt
	for _, part := range t.parts() {
		netstrings = appendNetstring(netstrings, "", part.value)
	}
	if q.Namespace != "" {
		netstrings = appendNetstring(netstrings, "ns=", q.Namespace)
	}
	if q.Tenant != "" {
		netstrings = appendNetstring(netstrings, "tenant=", q.Tenant)
	}
	if q.Generation > 1 {
		netstrings = appendNetstring(netstrings, "gen=", strconv.Itoa(q.Generation))
	}
	digest := sha256.Sum256(netstrings)
	return "idem_v1_" + hex.EncodeToString(digest[:16])
}

func appendNetstring(to []byte, tag, value string) []byte {
	to = strconv.AppendInt(to, int64(len(tag)+len(value)), 10)
	to = append(to, ':')
	to = append(to, tag...)
	to = append(to, value...)
	return append(to, ',')
}

// Validate returns every part that is empty, too long or not valid text, joined, each wrapping ErrInvalidTuple. The
// error never repeats a part's value.
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
	case len(p.value) > MaxPartBytes:
		return fmt.Sprintf("is %d bytes long; at most %d are allowed", len(p.value), MaxPartBytes)
	case !utf8.ValidString(p.value) || strings.ContainsRune(p.value, 0):
		return "is not valid UTF-8 text without NUL"
	}
	return ""
}
