package config

import (
	"encoding/json"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/agentoutbox/drainer/dispatch/payloadschema"
)

// payloadSchema is written as a block, or as the text of a JSON document.
type payloadSchema struct{ *payloadschema.Schema }

func (p *payloadSchema) assign(node ast.Node) string {
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
	compiled, err := payloadschema.Compile([]byte(text))
	if err != nil {
		return err.Error()
	}
	p.Schema = compiled
	return ""
}
