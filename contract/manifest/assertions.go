package manifest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// Extension is the field of an operation that holds its declaration.
const Extension = "x-agent-idempotency"

// Declaration holds the promises of an operation about repeated calls. If a promise could not be read, its
// field is zero and there is a violation.
type Declaration struct {
	Class          dispatch.Class
	Key            Key
	TTL            time.Duration // how long the provider remembers a key
	Scope          string        // the scope in which keys are unique, such as account
	Replay         Marker
	ConflictStatus int           // status for a key that was used with another payload
	InFlightStatus int           // status for a key whose first call has not ended; 0: not declared
	Absent         string        // of a read: a jq condition over {status, headers, body} that is true if nothing was found
	Reversal       string        // operationId
	Lookup         string        // operationId
	ReversalWindow time.Duration // for how long the reversal works; 0: not declared

	present map[string]bool // the fields that the document has, valid or not
}

// HasClass reports whether the class is one of the four.
func (d *Declaration) HasClass() bool { return slices.Contains(dispatch.Classes(), d.Class) }

// Key says where in the request the idempotency key goes. One of the fields is set.
type Key struct{ Header, Query, Field string }

// Marker is the response header that marks a replay.
type Marker struct{ Header, Value string }

func (o *Operation) readDeclaration() {
	value, written := o.spec.Extensions[Extension]
	if !written || value == nil {
		return
	}
	o.Declaration = &Declaration{}
	values, ok := value.(map[string]any)
	if !ok {
		o.violates(RuleMalformed, Extension, "write fields, the first of them class", "it is no object")
		return
	}
	fields := &object{operation: o, place: Extension, values: values}
	*o.Declaration = Declaration{
		Class:          dispatch.Class(fields.text("class")),
		Key:            o.readKey(fields.child("key")),
		TTL:            fields.duration("ttl", "the shortest time for which the provider remembers a key"),
		Scope:          fields.text("scope"),
		Replay:         o.readMarker(fields.child("replay")),
		ConflictStatus: fields.refusal("conflict_status"),
		InFlightStatus: fields.refusal("in_flight_status"),
		Absent:         fields.text("absent"),
		Reversal:       fields.text("reversal"),
		Lookup:         fields.text("lookup"),
		ReversalWindow: fields.duration("reversal_window", "the time for which the reversal surely works"),
		present:        fields.present(),
	}
	fields.end()
}

func (o *Operation) readKey(fields *object) Key {
	if fields == nil {
		return Key{}
	}
	key := Key{Header: fields.text("header"), Query: fields.text("query"), Field: fields.text("field")}
	fields.end()
	if written := len(fields.present()); written != 1 {
		o.violates(RuleKeyPlace, fields.place, "write one of header, query and field", "it names %s for the key", places(written))
	}
	return key
}

func places(count int) string {
	if count == 0 {
		return "no place"
	}
	return "several places"
}

func (o *Operation) readMarker(fields *object) Marker {
	if fields == nil {
		return Marker{}
	}
	marker := Marker{Header: fields.text("header"), Value: fields.text("value")}
	fields.end()
	var missing []string
	for _, name := range []string{"header", "value"} {
		if !fields.present()[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		o.violates(RuleMissingField, fields.place, `write both: replay: {header: Idempotency-Replay, value: "true"}`, "it has no %s", strings.Join(missing, " and no "))
	}
	return marker
}

// fieldNames lists all fields except class, in the order in which they are asserted.
var fieldNames = []string{"key", "ttl", "scope", "replay", "conflict_status", "in_flight_status", "absent", "reversal", "lookup", "reversal_window"}

var required = map[dispatch.Class][]string{
	dispatch.KeyIdempotent: {"key", "ttl", "scope", "replay", "conflict_status"},
	dispatch.NonIdempotent: {"reversal", "lookup", "reversal_window"},
}

var compensation = []string{"reversal", "lookup", "reversal_window"}

var optional = map[dispatch.Class][]string{
	dispatch.ReadOnly:            {"absent"},
	dispatch.KeyIdempotent:       append([]string{"in_flight_status"}, compensation...),
	dispatch.NaturallyIdempotent: compensation,
}

var examples = map[string]string{
	"key":             "key: {header: Idempotency-Key}",
	"ttl":             "ttl: 24h",
	"scope":           "scope: account",
	"replay":          `replay: {header: Idempotency-Replay, value: "true"}`,
	"conflict_status": "conflict_status: 409",
	"reversal":        "reversal: the operationId of what undoes it",
	"lookup":          "lookup: the operationId of a read that finds it",
	"reversal_window": "reversal_window: 72h",
}

// assert checks each operation by itself and against the others.
func (d *Document) assert() {
	first := map[string]*Operation{}
	for _, operation := range d.Operations {
		operation.assertClass()
		operation.assertFields()
		operation.assertPage()
		d.assertReferences(operation)
		if other := first[operation.ID]; other != nil {
			operation.violates(RuleDuplicateID, "operationId", "give each operation an id of its own", "%s %s has the same one", other.Method, other.Path)
		} else if operation.ID != "" {
			first[operation.ID] = operation
		}
	}
}

func (o *Operation) assertClass() {
	switch {
	case o.Declaration == nil:
		if o.Writes() {
			o.violates(RuleUndeclared, Extension, "add it, with the class that is true: "+list(dispatch.Classes()), "nothing says what repeating this call does")
		}
	case !o.Declaration.HasClass():
		o.assertClassName(o.Declaration.Class)
	case !o.Writes() && o.Declaration.Class != dispatch.ReadOnly:
		o.violates(RuleReadWithEffect, Extension+".class", "declare read_only, or give what has an effect another method", "a %s has no effect, but is declared %s", o.Method, o.Declaration.Class)
	}
}

// assertClassName adds a violation for an unknown or missing class, unless the form of the field is a violation
// already.
func (o *Operation) assertClassName(class dispatch.Class) {
	cure := "write one of " + list(dispatch.Classes())
	switch {
	case class != "":
		o.violates(RuleUnknownClass, Extension+".class", cure, "%s is no class", excerpt(class))
	case o.Declaration.present != nil && !o.Declaration.present["class"]:
		o.violates(RuleUnknownClass, Extension+".class", cure, "it has no class")
	}
}

// assertFields compares the fields of the declaration with those that its class needs and allows.
func (o *Operation) assertFields() {
	if o.Declaration == nil || !o.Declaration.HasClass() {
		return
	}
	class := o.Declaration.Class
	for _, name := range fieldNames {
		written := o.Declaration.present[name]
		switch {
		case !written && slices.Contains(required[class], name):
			o.violates(RuleMissingField, Extension+"."+name, "add "+examples[name], "%s needs it", class)
		case written && !slices.Contains(required[class], name) && !slices.Contains(optional[class], name):
			o.violates(RuleMisplacedField, Extension+"."+name, "leave it out, or correct the class", "it has no meaning for %s", class)
		}
	}
}

// assertPage compares the declaration with the rest of the operation.
func (o *Operation) assertPage() {
	if o.Declaration == nil {
		return
	}
	o.assertKey(o.Declaration.Key)
	if marker := o.Declaration.Replay.Header; marker != "" && !o.succeedsWith(marker) {
		o.violates(RuleUndocumentedMarker, Extension+".replay.header", "add it to the headers of a 2xx response", "no documented success carries %q", shorten(marker))
	}
	o.assertStatus("conflict_status", o.Declaration.ConflictStatus)
	o.assertStatus("in_flight_status", o.Declaration.InFlightStatus)
}

func (o *Operation) assertKey(key Key) {
	undocumented := func(place, what, name, cure string) {
		o.violates(RuleUndocumentedKey, Extension+".key."+place, cure, "the operation has no %s %s", what, excerpt(name))
	}
	if key.Header != "" && !o.declares("header", key.Header) {
		undocumented("header", "header", key.Header, "add it to the operation's parameters, with in: header")
	}
	if key.Query != "" && !o.declares("query", key.Query) {
		undocumented("query", "query parameter", key.Query, "add it to the operation's parameters, with in: query")
	}
	if key.Field != "" && !o.HasField(key.Field) {
		undocumented("field", "body field", key.Field, "add it to the properties of the request body")
	}
}

func (o *Operation) assertStatus(name string, status int) {
	if status >= 400 && status <= 499 && !o.answers(status) {
		o.violates(RuleUndocumentedStatus, Extension+"."+name, "add the response, or correct the status", "%d is none of the operation's responses", status)
	}
}

// assertReferences checks the operations that a declaration names.
func (d *Document) assertReferences(o *Operation) {
	if o.Declaration == nil {
		return
	}
	switch reversal := d.resolve(o, "reversal", o.Declaration.Reversal); {
	case reversal == nil:
	case reversal == o:
		o.violates(RuleFutileReversal, Extension+".reversal", "name the operation that undoes this one", "it names the operation itself")
	case reversal.ReadsOnly():
		o.violates(RuleFutileReversal, Extension+".reversal", "name the operation that undoes this one", "%s %s has no effect", reversal.Method, reversal.Path)
	}
	if lookup := d.resolve(o, "lookup", o.Declaration.Lookup); lookup != nil && !lookup.ReadsOnly() {
		o.violates(RuleLookupActs, Extension+".lookup", "name a GET, or an operation declared read_only", "%s %s may have an effect", lookup.Method, lookup.Path)
	}
}

func (d *Document) resolve(o *Operation, field, id string) *Operation {
	if id == "" {
		return nil
	}
	found := d.Find(id)
	if found == nil {
		o.violates(RuleUnknownOperation, Extension+"."+field, d.cureOf(id), "no operation has the operationId %q", shorten(id))
	}
	return found
}

func (d *Document) cureOf(id string) string {
	var ids []string
	for _, operation := range d.Operations {
		if operation.ID != "" {
			ids = append(ids, operation.ID)
		}
	}
	if nearest, found := spelling.Nearest(id, ids); found {
		return fmt.Sprintf("did you mean %q?", shorten(nearest))
	}
	return "name an operation of this document by its operationId"
}

func list(classes []dispatch.Class) string {
	names := make([]string, len(classes))
	for i, class := range classes {
		names[i] = string(class)
	}
	return strings.Join(names, ", ")
}

// Rule names a kind of violation, for programs.
type Rule string

const (
	RuleUndeclared         Rule = "undeclared"          // a write without x-agent-idempotency
	RuleMalformed          Rule = "malformed"           // a value of the wrong type, or an empty text
	RuleUnknownField       Rule = "unknown_field"       // a field that does not exist, usually a typo
	RuleUnknownClass       Rule = "unknown_class"       // the class is not one of the four
	RuleReadWithEffect     Rule = "read_with_effect"    // a GET with another class than read_only
	RuleMissingField       Rule = "missing_field"       // the class needs the field
	RuleMisplacedField     Rule = "misplaced_field"     // the field has no meaning in the class
	RuleVagueDuration      Rule = "vague_duration"      // forever, a number without a unit, or no duration
	RuleKeyPlace           Rule = "key_place"           // the key has no place, or several
	RuleImpossibleStatus   Rule = "impossible_status"   // the status of a refusal is not a 4xx
	RuleUndocumentedKey    Rule = "undocumented_key"    // the key is not a parameter or body field of the operation
	RuleUndocumentedMarker Rule = "undocumented_marker" // no documented success has the replay header
	RuleUndocumentedStatus Rule = "undocumented_status" // no response has the status
	RuleUnknownOperation   Rule = "unknown_operation"   // no operation has the operationId
	RuleLookupActs         Rule = "lookup_acts"         // a lookup that may have an effect
	RuleFutileReversal     Rule = "futile_reversal"     // a reversal that has no effect, or is the operation itself
	RuleDuplicateID        Rule = "duplicate_operation" // two operations with the same operationId
)

// Violation is one broken assertion.
type Violation struct {
	Method      string `json:"method"`
	Path        string `json:"path"`
	OperationID string `json:"operation_id,omitempty"`
	Line        int    `json:"line,omitempty"` // line of the operation, from 1; 0: unknown
	Place       string `json:"place"`          // the field in the operation, such as x-agent-idempotency.ttl
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
