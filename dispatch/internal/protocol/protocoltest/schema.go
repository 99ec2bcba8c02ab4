// Package protocoltest holds messages against the published schema.
package protocoltest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is docs/adapter-protocol.schema.json.
type Schema struct {
	messages map[string]*jsonschema.Schema
}

// Published reads the schema.
func Published(t testing.TB) Schema {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(here), "../../../../docs/adapter-protocol.schema.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("protocol.json", document); err != nil {
		t.Fatal(err)
	}
	schema := Schema{messages: map[string]*jsonschema.Schema{}}
	for _, message := range []string{"hello", "request", "result"} {
		compiled, err := compiler.Compile("protocol.json#/$defs/" + message)
		if err != nil {
			t.Fatal(err)
		}
		schema.messages[message] = compiled
	}
	return schema
}

// Check fails the test where the text is not such a message.
func (s Schema) Check(t testing.TB, message string, text []byte) {
	t.Helper()
	if err := s.Validate(message, text); err != nil {
		t.Errorf("%s: %v", text, err)
	}
}

// Validate says what keeps the text from being such a message.
func (s Schema) Validate(message string, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return s.messages[message].Validate(value)
}
