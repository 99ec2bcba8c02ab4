package manifest

import (
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Extension is the name under which an operation declares itself.
const Extension = "x-agent-idempotency"

// Declaration is what an operation says about being repeated. What could not
// be read is zero, and a violation.
type Declaration struct {
	Class          dispatch.Class
	Key            Key
	TTL            time.Duration // how long the provider remembers a key
	Scope          string        // within what it tells keys apart
	Replay         Marker
	ConflictStatus int    // for a key that was used with another payload
	InFlightStatus int    // for a key whose first call is not finished; 0 where nothing is declared
	Absent         string // of a read: a jq condition over {status, headers, body} that nothing was found
	Reversal       string
	Lookup         string
	ReversalWindow time.Duration // for how long the reversal works; 0 where nothing is declared

	present map[string]bool // the fields that were written, well or badly
}

// HasClass reports whether the class is one of the four.
func (d *Declaration) HasClass() bool { return slices.Contains(dispatch.Classes(), d.Class) }

// Key says where the idempotency key goes; one of the fields is set.
type Key struct{ Header, Query, Field string }

// Marker is the response header that tells a replay from a first answer.
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
