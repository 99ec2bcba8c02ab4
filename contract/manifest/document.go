package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// ErrUnreadable says that a document is not OpenAPI that can be read, so that
// nothing can be said about its operations.
var ErrUnreadable = errors.New("not an OpenAPI document that can be read")

// Document is an OpenAPI document of version 3.0 or 3.1, its operations in the
// order of their paths and methods.
type Document struct {
	Operations []*Operation
	servers    openapi3.Servers
}

// Load reads a file, JSON or YAML. References to other files are refused.
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

// Parse reads a document and asserts its declarations. It fails, wrapping
// ErrUnreadable, only where there is no document to speak about.
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

// Violations lists what is wrong with every operation.
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

// Server is the first server that the document names, its variables filled in
// with their defaults; nil where that gives no absolute http or https URL.
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
