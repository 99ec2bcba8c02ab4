package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/agentoutbox/drainer/dispatch"
)

// payloadSchema is the JSON Schema that a tool's payloads must meet. In the file it is a block, or the text of a
// JSON document. It is safe for concurrent use.
//
// Its messages about a violation use the schema alone: a payload may be secret, even the names of its fields.
type payloadSchema struct {
	compiled *jsonschema.Schema
	text     string
}

var _ dispatch.PayloadSchema = (*payloadSchema)(nil)

func (p *payloadSchema) assign(node ast.Node) (problem string) {
	text, isText := textOf(node)
	if !isText {
		var document any
		if err := yaml.NodeToValue(node, &document); err != nil {
			return "is no block that can be read"
		}
		written, err := json.Marshal(document)
		if err != nil {
			return "holds something that JSON has not"
		}
		text = string(written)
	}
	compiled, err := compilePayloadSchema(text)
	if err != nil {
		return err.Error()
	}
	*p = *compiled
	return ""
}

// payloadURN names the schema inside the library. It cannot be loaded.
const payloadURN = "urn:payload"

var errElsewhere = errors.New("a $ref leads out of the schema; put what it stands for under $defs")

// selfContained refuses to load other documents, because a schema must mean the same on every machine.
type selfContained struct{}

func (selfContained) Load(string) (any, error) { return nil, errElsewhere }

// compilePayloadSchema reads a schema of draft 2020-12, unless its $schema names another draft. Formats are
// asserted.
func compilePayloadSchema(text string) (*payloadSchema, error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, errors.New("not JSON")
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(selfContained{})
	compiler.AssertFormat()
	if err := compiler.AddResource(payloadURN, document); err != nil {
		return nil, fmt.Errorf("not a JSON Schema: %w", err)
	}
	compiled, err := compiler.Compile(payloadURN)
	switch {
	case errors.As(err, new(*jsonschema.LoadURLError)):
		return nil, errElsewhere
	case err != nil:
		return nil, fmt.Errorf("not a valid JSON Schema: %s", whySchemaIsInvalid(err))
	}
	return &payloadSchema{compiled, text}, nil
}

// whySchemaIsInvalid leaves out payloadURN, because the user has never seen it.
func whySchemaIsInvalid(err error) string {
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
		slices.Sort(places)
		return "look at " + strings.Join(slices.Compact(places), ", ")
	}
	return strings.ReplaceAll(err.Error(), payloadURN, "")
}

// Document returns the schema as JSON.
func (p *payloadSchema) Document() json.RawMessage { return json.RawMessage(p.text) }

const maxDemands = 10

// Violation lists the places in the schema that a payload violates, at most maxDemands of them. It returns nil if
// the payload is valid.
func (p *payloadSchema) Violation(payload json.RawMessage) *dispatch.Problem {
	problem := func(detail string) *dispatch.Problem {
		return &dispatch.Problem{Title: "the payload violates payload_schema, and was not sent", Detail: detail}
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return problem("the payload is no JSON")
	}
	err = p.compiled.Validate(value)
	var violation *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &violation):
		return problem("the payload cannot be validated")
	}
	var unmet []string
	for _, leaf := range leaves(violation) {
		unmet = append(unmet, demand(leaf))
	}
	slices.Sort(unmet)
	unmet = slices.Compact(unmet)
	if len(unmet) > maxDemands {
		unmet = append(unmet[:maxDemands], fmt.Sprintf("and %d more", len(unmet)-maxDemands))
	}
	return problem(strings.Join(unmet, "; "))
}

// demand returns the violated place in the schema, such as #/properties/amount/type.
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
