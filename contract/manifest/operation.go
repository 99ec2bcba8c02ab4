package manifest

import (
	"net/http"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/agentoutbox/drainer/dispatch"
)

// Operation is one method of one path.
type Operation struct {
	Method, Path string
	ID           string // operationId; empty where the document gives none
	Line         int    // in a YAML document, from 1; 0 where nobody knows
	Declaration  *Declaration
	Violations   []Violation
	HasServer    bool // it names servers of its own

	spec       *openapi3.Operation
	parameters []*openapi3.Parameter
}

func newOperation(method, path string, item *openapi3.PathItem, spec *openapi3.Operation) *Operation {
	operation := &Operation{
		Method: method, Path: path, ID: spec.OperationID, spec: spec,
		HasServer:  len(item.Servers) > 0 || (spec.Servers != nil && len(*spec.Servers) > 0),
		parameters: parametersOf(item, spec),
	}
	if spec.Origin != nil && spec.Origin.Key != nil {
		operation.Line = spec.Origin.Key.Line
	}
	return operation
}

// parametersOf lists an operation's parameters, and those of its path that it
// does not define anew.
func parametersOf(item *openapi3.PathItem, spec *openapi3.Operation) []*openapi3.Parameter {
	var parameters []*openapi3.Parameter
	for _, reference := range append(slices.Clone(spec.Parameters), item.Parameters...) {
		if reference == nil || reference.Value == nil {
			continue
		}
		redefined := slices.ContainsFunc(parameters, func(p *openapi3.Parameter) bool {
			return p.In == reference.Value.In && p.Name == reference.Value.Name
		})
		if !redefined {
			parameters = append(parameters, reference.Value)
		}
	}
	return parameters
}

// Writes reports whether the method says that a call may have an effect.
func (o *Operation) Writes() bool {
	return slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, o.Method)
}

// ReadsOnly reports whether a call is known to have no effect: by its method
// where no class is declared.
func (o *Operation) ReadsOnly() bool {
	if o.Declaration == nil || !o.Declaration.HasClass() {
		return !o.Writes()
	}
	return o.Declaration.Class == dispatch.ReadOnly
}

// Required lists the names of the parameters that a call cannot do without,
// sorted, by where they go: path, query, header or cookie.
func (o *Operation) Required(in string) []string {
	var names []string
	for _, parameter := range o.parameters {
		if parameter.In == in && (parameter.Required || in == openapi3.ParameterInPath) {
			names = append(names, parameter.Name)
		}
	}
	slices.Sort(names)
	return names
}

// declares reports whether the operation documents a parameter. Header names
// are compared without case, as HTTP does.
func (o *Operation) declares(in, name string) bool {
	return slices.ContainsFunc(o.parameters, func(p *openapi3.Parameter) bool {
		return p.In == in && (p.Name == name || in == openapi3.ParameterInHeader && strings.EqualFold(p.Name, name))
	})
}

// answers reports whether the operation documents a response of that status,
// by itself or as one of a range such as 4XX.
func (o *Operation) answers(status int) bool {
	return o.spec.Responses.Status(status) != nil
}

// succeedsWith reports whether a documented success carries a header.
func (o *Operation) succeedsWith(header string) bool {
	for status, response := range o.spec.Responses.Map() {
		if !strings.HasPrefix(status, "2") || response == nil || response.Value == nil {
			continue
		}
		for name := range response.Value.Headers {
			if strings.EqualFold(name, header) {
				return true
			}
		}
	}
	return false
}
