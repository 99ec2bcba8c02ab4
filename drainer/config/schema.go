package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/internal/duration"
)

// Schema returns the JSON Schema of the whole file, with the blocks of every registered
// adapter, for editors and reviews. Load also checks rules that the schema cannot express.
func Schema(registry dispatch.Registry) ([]byte, error) {
	tool := shape(toolBlock{})
	provider := shape(providerBlock{})
	for _, name := range registry.Names() {
		tool.Properties.Set(name, adapterShape(registry[name].Tool, "How the "+name+" adapter makes this call."))
		provider.Properties.Set(name, adapterShape(registry[name].Settings, "Settings of the "+name+" adapter, for all tools of the provider."))
	}
	set(provider, "adapter", func(adapter *jsonschema.Schema) { adapter.Enum = anys(registry.Names()) })
	set(provider, "tools", func(tools *jsonschema.Schema) { named(tools, tool, `.`) })

	root := shape(rootBlock{})
	set(root, "providers", func(providers *jsonschema.Schema) { named(providers, provider, `^[^/]+$`) })
	set(root, "pages", func(pages *jsonschema.Schema) {
		for _, kind := range PageKinds() { // exactly one of these
			pages.Items.OneOf = append(pages.Items.OneOf, &jsonschema.Schema{Required: []string{string(kind)}})
		}
	})
	root.Version = jsonschema.Version
	root.Title = "Configuration of drainer"

	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration schema: %w", err)
	}
	return append(text, '\n'), nil
}

func shape(of any) *jsonschema.Schema {
	reflector := jsonschema.Reflector{
		Anonymous:                  true,
		DoNotReference:             true,
		FieldNameTag:               "yaml",
		RequiredFromJSONSchemaTags: true,
		Mapper:                     scalarShape,
	}
	schema := reflector.Reflect(of)
	schema.Version = ""
	return schema
}

// scalarShape describes the types that look different in the file than in Go.
func scalarShape(of reflect.Type) *jsonschema.Schema {
	switch of {
	case reflect.TypeFor[time.Duration]():
		return &jsonschema.Schema{Type: "string", Pattern: duration.Pattern + `|\$\{`}
	case reflect.TypeFor[Retention]():
		type block Retention // another type, because shape of Retention would call this function again
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{scalarShape(reflect.TypeFor[time.Duration]()), shape(block{})}}
	case reflect.TypeFor[dispatch.Class]():
		return &jsonschema.Schema{Type: "string", Enum: anys(dispatch.Classes())}
	case reflect.TypeFor[incident.Kind]():
		return &jsonschema.Schema{Type: "string", Enum: anys(incident.Kinds())}
	case reflect.TypeFor[incident.Severity]():
		return &jsonschema.Schema{Type: "string", Enum: anys(incident.Severities())}
	case reflect.TypeFor[payloadSchema]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "object"}, {Type: "string"}}}
	case reflect.TypeFor[list]():
		return &jsonschema.Schema{Type: "object"}
	}
	if reflect.PointerTo(of).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

func adapterShape(zero any, description string) *jsonschema.Schema {
	if zero == nil {
		return &jsonschema.Schema{Type: "object", Description: description, AdditionalProperties: jsonschema.FalseSchema}
	}
	schema := shape(zero)
	schema.Description = description
	return schema
}

// named turns an object into a map from names to blocks.
func named(object, block *jsonschema.Schema, pattern string) {
	object.PropertyNames = &jsonschema.Schema{Pattern: pattern}
	object.AdditionalProperties = block
}

func set(object *jsonschema.Schema, property string, change func(*jsonschema.Schema)) {
	if schema, found := object.Properties.Get(property); found {
		change(schema)
	}
}

func anys[T any](values []T) []any {
	all := make([]any, len(values))
	for i, value := range values {
		all[i] = value
	}
	return all
}
