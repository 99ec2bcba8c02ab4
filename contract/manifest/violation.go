package manifest

import "fmt"

// Rule names a kind of violation, for programs.
type Rule string

const (
	RuleUndeclared         Rule = "undeclared"          // a write without x-agent-idempotency
	RuleMalformed          Rule = "malformed"           // a value that is no object, text or whole number where one belongs
	RuleUnknownField       Rule = "unknown_field"       // most often a typo
	RuleUnknownClass       Rule = "unknown_class"       // none of the four classes
	RuleReadWithEffect     Rule = "read_with_effect"    // a GET that is declared to be more than a read
	RuleMissingField       Rule = "missing_field"       // its class needs it
	RuleMisplacedField     Rule = "misplaced_field"     // it has no meaning in its class
	RuleVagueDuration      Rule = "vague_duration"      // forever, a number without a unit, nothing at all
	RuleKeyPlace           Rule = "key_place"           // the key goes nowhere, or to several places
	RuleImpossibleStatus   Rule = "impossible_status"   // a refusal that is no 4xx
	RuleUndocumentedKey    Rule = "undocumented_key"    // the key is no parameter and no body field of the operation
	RuleUndocumentedMarker Rule = "undocumented_marker" // no success carries the replay header
	RuleUndocumentedStatus Rule = "undocumented_status" // a status that is none of the responses
	RuleUnknownOperation   Rule = "unknown_operation"   // no operation has that operationId
	RuleLookupActs         Rule = "lookup_acts"         // a lookup that is more than a read
	RuleFutileReversal     Rule = "futile_reversal"     // a reversal that has no effect, or is the operation itself
	RuleDuplicateID        Rule = "duplicate_operation" // two operations with one operationId
)

// Violation is one broken assertion.
type Violation struct {
	Method      string `json:"method"`
	Path        string `json:"path"`
	OperationID string `json:"operation_id,omitempty"`
	Line        int    `json:"line,omitempty"` // of the operation, from 1; 0 where nobody knows
	Place       string `json:"place"`          // within the operation: x-agent-idempotency.ttl
	Rule        Rule   `json:"rule"`
	Problem     string `json:"problem"`
	Cure        string `json:"cure"`
}

func (o *Operation) violates(rule Rule, place, cure, problem string, args ...any) {
	o.Violations = append(o.Violations, Violation{
		Method: o.Method, Path: o.Path, OperationID: o.ID, Line: o.Line,
		Place: place, Rule: rule, Problem: fmt.Sprintf(problem, args...), Cure: cure,
	})
}
