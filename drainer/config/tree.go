package config

import (
	"errors"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// field is a key and its value. An element of a list has its place for a key.
type field struct {
	path  path
	key   token.Position
	value ast.Node
}

// position is where a reader should look: the value itself where it is one
// scalar, else the key above the block.
func (f field) position() token.Position {
	if scalar, ok := f.value.(ast.ScalarNode); ok && f.value.Type() != ast.NullType {
		return *scalar.GetToken().Position
	}
	return f.key
}

// fields lists what a mapping holds, in the order of the file. A merge key
// (<<) adds the fields that the mapping does not have itself.
func (f field) fields() ([]field, error) {
	mapping, ok := f.value.(ast.MapNode)
	if !ok {
		return nil, errors.New("want a block of fields, one `name: value` a line")
	}
	var own, merged []field
	seen := map[string]bool{}
	for entry := mapping.MapRange(); entry.Next(); {
		child := field{key: *entry.Key().GetToken().Position, value: entry.Value()}
		if entry.Key().IsMergeKey() {
			inherited, err := f.inherit(child)
			if err != nil {
				return nil, err
			}
			merged = append(merged, inherited...)
			continue
		}
		name := keyName(entry.Key())
		child.path = f.path.child(name)
		seen[name] = true
		own = append(own, child)
	}
	for _, inherited := range merged {
		if name := inherited.name(); !seen[name] {
			seen[name] = true
			own = append(own, inherited)
		}
	}
	return own, nil
}

// inherit reads the value of a merge key: a mapping or a list of them.
func (f field) inherit(merge field) ([]field, error) {
	sources := []ast.Node{merge.value}
	if list, ok := merge.value.(*ast.SequenceNode); ok {
		sources = list.Values
	}
	var inherited []field
	for _, source := range sources {
		fields, err := field{path: f.path, key: merge.key, value: source}.fields()
		if err != nil {
			return nil, err
		}
		inherited = append(inherited, fields...)
	}
	return inherited, nil
}

func (f field) name() string {
	return f.path[len(f.path)-1]
}

func keyName(key ast.MapKeyNode) string {
	switch key := key.(type) {
	case *ast.StringNode:
		return key.Value
	case *ast.MappingKeyNode:
		return key.Value.GetToken().Value
	default:
		return key.GetToken().Value
	}
}

// textOf reports the text of a quoted, plain or block string.
func textOf(node ast.Node) (string, bool) {
	switch node := node.(type) {
	case *ast.StringNode:
		return node.Value, true
	case *ast.LiteralNode:
		return node.Value.Value, true
	}
	return "", false
}

func isNull(node ast.Node) bool {
	return node == nil || node.Type() == ast.NullType
}
