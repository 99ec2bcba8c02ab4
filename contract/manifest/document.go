// Package manifest reads the declarations of an OpenAPI document about repeated calls of its
// operations: the extension x-agent-idempotency, described in docs/contract.md.
//
//	bytes ──Parse──▶ Document ──read extensions──▶ declarations ──assert──▶ violations
//
// A document with violations is still a Document. Each violation names its
// operation, its place and its cure. The violations are always in the same order.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/duration"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// ErrUnreadable says that a document cannot be read as OpenAPI, so that its operations are not known.
var ErrUnreadable = errors.New("not an OpenAPI document that can be read")

// Document is an OpenAPI document of version 3.0 or 3.1. Its operations are in the order of their
// paths and methods.
type Document struct {
	Operations []*Operation
	servers    openapi3.Servers
}

// Load reads a JSON or YAML file. It refuses references to other files.
func Load(path string) (*Document, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the document: %w", err)
	}
	document, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return document, nil
}

// Parse reads a document and asserts its declarations. Its only error is ErrUnreadable, wrapped.
func Parse(content []byte) (*Document, error) {
	spec, err := parse(content)
	if err != nil {
		return nil, err
	}
	document := &Document{Operations: operationsOf(spec), servers: spec.Servers}
	for _, operation := range document.Operations {
		operation.readDeclaration()
	}
	document.assert()
	return document, nil
}

func parse(content []byte) (*openapi3.T, error) {
	loader := openapi3.NewLoader()
	loader.IncludeOrigin = true
	spec, err := loader.LoadFromData(content)
	switch {
	case err != nil && strings.Contains(err.Error(), "disallowed external reference"):
		return nil, fmt.Errorf("%w: it refers to another file; bundle it into one", ErrUnreadable)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	case !strings.HasPrefix(spec.OpenAPI, "3.0.") && !strings.HasPrefix(spec.OpenAPI, "3.1."):
		return nil, fmt.Errorf("%w: the field openapi says neither 3.0.x nor 3.1.x; convert the document", ErrUnreadable)
	}
	return spec, nil
}

func operationsOf(spec *openapi3.T) []*Operation {
	var operations []*Operation
	for path, item := range spec.Paths.Map() {
		if item == nil {
			continue
		}
		for method, operation := range item.Operations() {
			operations = append(operations, newOperation(method, path, item, operation))
		}
	}
	slices.SortFunc(operations, func(a, b *Operation) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method))
	})
	return operations
}

// Violations lists the violations of all operations.
func (d *Document) Violations() []Violation {
	violations := []Violation{}
	for _, operation := range d.Operations {
		violations = append(violations, operation.Violations...)
	}
	return violations
}

// Find returns the first operation with an operationId, or nil.
func (d *Document) Find(id string) *Operation {
	for _, operation := range d.Operations {
		if operation.ID == id {
			return operation
		}
	}
	return nil
}

// Server returns the URL of the document's first server, with the defaults of its variables. It is nil if that is not
// an absolute http or https URL.
func (d *Document) Server() *url.URL {
	if len(d.servers) == 0 || d.servers[0] == nil {
		return nil
	}
	text := d.servers[0].URL
	for name, variable := range d.servers[0].Variables {
		if variable != nil {
			text = strings.ReplaceAll(text, "{"+name+"}", variable.Default)
		}
	}
	server, err := url.Parse(text)
	if err != nil || (server.Scheme != "http" && server.Scheme != "https") || server.Hostname() == "" || strings.ContainsAny(text, "{}") {
		return nil
	}
	return server
}

// longest is the longest duration that can be promised, and also the longest that a configuration accepts.
const longest = 3650 * duration.Day

// object reads an object of the extension, field by field. It goes on after a mistake. Its end
// reports the fields that were not read.
type object struct {
	operation *Operation
	place     string
	values    map[string]any
	known     []string
}

// take returns the value of a field, or nil if the document does not have it.
func (f *object) take(name string) any {
	f.known = append(f.known, name)
	return f.values[name]
}

func (f *object) malformed(name, cure, problem string) {
	f.operation.violates(RuleMalformed, f.place+"."+name, cure, "%s", problem)
}

func (f *object) text(name string) string {
	value := f.take(name)
	if value == nil {
		return ""
	}
	text, ok := value.(string)
	switch {
	case !ok:
		f.malformed(name, "put the value in quotes", "it is no text")
	case text == "":
		f.malformed(name, "write a value, or leave it out", "it is empty")
	}
	return text
}

func (f *object) duration(name, meaning string) time.Duration {
	value := f.take(name)
	if value == nil {
		return 0
	}
	text, _ := value.(string)
	length, err := duration.Parse(text)
	problem := "%s is no definite length of time"
	switch {
	case err == nil && length > longest:
		problem = "%s is as good as forever"
	case err == nil && length > 0:
		return length
	}
	f.operation.violates(RuleVagueDuration, f.place+"."+name,
		"write "+meaning+", with its unit, such as 24h or 7d", problem, excerpt(value))
	return 0
}

// refusal reads the status with which a provider refuses a call.
func (f *object) refusal(name string) int {
	value := f.take(name)
	if value == nil {
		return 0
	}
	status, ok := wholeNumber(value)
	switch {
	case !ok:
		f.malformed(name, "write a number without quotes, such as 409", "it is no whole number")
	case status < 400 || status > 499:
		f.operation.violates(RuleImpossibleStatus, f.place+"."+name, "write the 4xx status that the provider answers, such as 409", "%d refuses nothing", status)
	}
	return status
}

// wholeNumber accepts the types to which YAML and JSON decode numbers.
func wholeNumber(value any) (int, bool) {
	switch number := value.(type) {
	case int:
		return number, true
	case float64:
		return int(number), number == math.Trunc(number) && math.Abs(number) < 1e6
	default:
		return 0, false
	}
}

// child returns the object in a field. It is nil if the document does not have the field, or if it is not an object.
func (f *object) child(name string) *object {
	value := f.take(name)
	if value == nil {
		return nil
	}
	values, ok := value.(map[string]any)
	if !ok {
		f.malformed(name, "write its fields: "+examples[name], "it is no object")
		return nil
	}
	return &object{operation: f.operation, place: f.place + "." + name, values: values}
}

// present returns the known fields that the document has, valid or not.
func (f *object) present() map[string]bool {
	present := map[string]bool{}
	for _, name := range f.known {
		if f.values[name] != nil {
			present[name] = true
		}
	}
	return present
}

// end reports the fields that were not read.
func (f *object) end() {
	for _, name := range slices.Sorted(maps.Keys(f.values)) {
		if !slices.Contains(f.known, name) {
			f.operation.violates(RuleUnknownField, f.place+"."+shorten(name), spelling.Suggest(name, f.known), "there is no such field")
		}
	}
}

const excerptLength = 40

func excerpt(value any) string { return fmt.Sprintf("%q", shorten(fmt.Sprint(value))) }

func shorten(text string) string {
	if characters := []rune(text); len(characters) > excerptLength {
		return string(characters[:excerptLength]) + "…"
	}
	return text
}

// Operation is one method of one path.
type Operation struct {
	Method, Path string
	ID           string // operationId; empty if it has none
	Line         int    // line in a YAML document, from 1; 0: unknown
	Declaration  *Declaration
	Violations   []Violation
	HasServer    bool // it has servers of its own

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

// parametersOf lists an operation's own parameters, and those of its path that the operation does not
// define again.
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

// Writes reports whether, by its method, a call may have an effect.
func (o *Operation) Writes() bool {
	return slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, o.Method)
}

// ReadsOnly reports whether a call is known to have no effect: by its class, or by its method if no class is
// declared.
func (o *Operation) ReadsOnly() bool {
	if o.Declaration == nil || !o.Declaration.HasClass() {
		return !o.Writes()
	}
	return o.Declaration.Class == dispatch.ReadOnly
}

// Required lists the names of the required parameters in a place, sorted. in is path, query, header or cookie.
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

// declares reports whether the operation documents a parameter. As in HTTP, the case of a header's name does
// not matter.
func (o *Operation) declares(in, name string) bool {
	return slices.ContainsFunc(o.parameters, func(p *openapi3.Parameter) bool {
		return p.In == in && (p.Name == name || in == openapi3.ParameterInHeader && strings.EqualFold(p.Name, name))
	})
}

// answers reports whether the operation documents a response of that status, or of a range such as 4XX that
// contains it.
func (o *Operation) answers(status int) bool {
	return o.spec.Responses.Status(status) != nil
}

// succeedsWith reports whether a documented success has a header.
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

const formMedia = "application/x-www-form-urlencoded"

// MediaTypes lists the media types of the request body, sorted. It is empty if the operation has no body.
func (o *Operation) MediaTypes() []string {
	var types []string
	for media := range o.content() {
		types = append(types, media)
	}
	slices.Sort(types)
	return types
}

// HasField reports whether the request body has a top-level field of that name, in JSON or in a form.
func (o *Operation) HasField(name string) bool {
	for media, content := range o.content() {
		if content != nil && (IsJSON(media) || IsForm(media)) && hasProperty(content.Schema, name, map[*openapi3.Schema]bool{}) {
			return true
		}
	}
	return false
}

// IsJSON reports whether a media type is JSON, such as application/json or
// application/vnd.api+json.
func IsJSON(media string) bool {
	media = essence(media)
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// IsForm reports whether a media type is a URL-encoded form.
func IsForm(media string) bool { return essence(media) == formMedia }

func essence(media string) string {
	media, _, _ = strings.Cut(media, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

func (o *Operation) content() openapi3.Content {
	if o.spec.RequestBody == nil || o.spec.RequestBody.Value == nil {
		return nil
	}
	return o.spec.RequestBody.Value.Content
}

// hasProperty searches a schema and the schemas of which it is composed. seen ends the search in a schema that
// contains itself.
func hasProperty(reference *openapi3.SchemaRef, name string, seen map[*openapi3.Schema]bool) bool {
	if reference == nil || reference.Value == nil || seen[reference.Value] {
		return false
	}
	schema := reference.Value
	seen[schema] = true
	if schema.Properties[name] != nil {
		return true
	}
	for _, part := range slices.Concat(schema.AllOf, schema.AnyOf, schema.OneOf) {
		if hasProperty(part, name, seen) {
			return true
		}
	}
	return false
}
