// Package payloadschema holds a payload to a JSON Schema
// (https://json-schema.org) before anything is sent. What it says of a
// violation comes from the schema alone: a payload may be secret, down to the
// names of its fields.
package payloadschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/agentoutbox/drainer/dispatch"
)

// address is what the schema is known by; it resolves to nothing.
const address = "urn:payload"

// Schema is compiled and safe for concurrent use.
type Schema struct {
	compiled *jsonschema.Schema
}

var errElsewhere = errors.New("a $ref leads out of the schema; put what it stands for under $defs")

// selfContained loads nothing: a schema must mean the same on every machine.
type selfContained struct{}

func (selfContained) Load(string) (any, error) { return nil, errElsewhere }

// Compile reads a schema, of draft 2020-12 unless its $schema says otherwise.
// Formats are asserted.
func Compile(text []byte) (*Schema, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, errors.New("not JSON")
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(selfContained{})
	compiler.AssertFormat()
	if err := compiler.AddResource(address, document); err != nil {
		return nil, fmt.Errorf("not a JSON Schema: %w", err)
	}
	compiled, err := compiler.Compile(address)
	switch {
	case leadsElsewhere(err):
		return nil, errElsewhere
	case err != nil:
		return nil, fmt.Errorf("not a valid JSON Schema: %s", reason(err))
	}
	return &Schema{compiled}, nil
}

func leadsElsewhere(err error) bool {
	var load *jsonschema.LoadURLError
	return errors.As(err, &load)
}

// reason leaves the library's name for the document behind.
func reason(err error) string {
	var invalid *jsonschema.SchemaValidationError
	if errors.As(err, &invalid) {
		err = invalid.Err
	}
	var violation *jsonschema.ValidationError
	if errors.As(err, &violation) {
		var places []string
		for _, leaf := range leaves(violation) {
			places = append(places, "/"+strings.Join(leaf.InstanceLocation, "/"))
		}
		return "look at " + strings.Join(slices.Compact(slices.Sorted(slices.Values(places))), ", ")
	}
	return strings.ReplaceAll(err.Error(), address, "")
}

// Violation says which of the schema's demands a payload does not meet; nil if
// it meets them all.
func (s *Schema) Violation(payload json.RawMessage) *dispatch.Problem {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return problem("the payload is no JSON")
	}
	err = s.compiled.Validate(value)
	var violation *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &violation):
		return problem("the payload cannot be validated")
	}
	return problem(strings.Join(demands(violation), "; "))
}

func problem(detail string) *dispatch.Problem {
	return &dispatch.Problem{Title: "the payload violates payload_schema, and was not sent", Detail: detail}
}

const maxDemands = 10

func demands(violation *jsonschema.ValidationError) []string {
	var unmet []string
	for _, leaf := range leaves(violation) {
		unmet = append(unmet, demand(leaf))
	}
	slices.Sort(unmet)
	unmet = slices.Compact(unmet)
	if len(unmet) > maxDemands {
		unmet = append(unmet[:maxDemands], fmt.Sprintf("and %d more", len(unmet)-maxDemands))
	}
	return unmet
}

// demand is where in the schema a demand stands, such as
// #/properties/amount/type.
func demand(leaf *jsonschema.ValidationError) string {
	_, fragment, _ := strings.Cut(leaf.SchemaURL, "#")
	place := strings.Join(append([]string{"#" + fragment}, leaf.ErrorKind.KeywordPath()...), "/")
	if required, ok := leaf.ErrorKind.(*kind.Required); ok {
		place += ": " + strings.Join(required.Missing, ", ")
	}
	return place
}

func leaves(violation *jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(violation.Causes) == 0 {
		return []*jsonschema.ValidationError{violation}
	}
	var all []*jsonschema.ValidationError
	for _, cause := range violation.Causes {
		all = append(all, leaves(cause)...)
	}
	return all
}
