package config

import "github.com/goccy/go-yaml/ast"

// resolver replaces aliases by what they stand for and expands the secrets in
// every scalar. A value that is anchored is resolved once, before its name is
// known, so an alias can neither form a cycle nor reveal a secret twice.
type resolver struct {
	*reader
	anchors map[string]ast.Node
}

func (r *resolver) resolve(node ast.Node) ast.Node {
	switch node := node.(type) {
	case *ast.MappingNode:
		for _, entry := range node.Values {
			entry.Value = r.resolve(entry.Value)
		}
	case *ast.MappingValueNode:
		node.Value = r.resolve(node.Value)
	case *ast.SequenceNode:
		for i, element := range node.Values {
			node.Values[i] = r.resolve(element)
		}
	case *ast.AnchorNode:
		resolved := r.resolve(node.Value)
		r.anchors[node.Name.GetToken().Value] = resolved
		return resolved
	case *ast.AliasNode:
		return r.alias(node)
	case *ast.TagNode:
		r.report(*node.GetToken().Position, "YAML tags have no meaning here; leave it out")
		return r.resolve(node.Value)
	case *ast.StringNode:
		node.Value = r.expand(node, node.Value)
	case *ast.LiteralNode:
		node.Value.Value = r.expand(node, node.Value.Value)
	}
	return node
}

func (r *resolver) alias(node *ast.AliasNode) ast.Node {
	name := node.Value.GetToken().Value
	target, known := r.anchors[name]
	if !known {
		r.report(*node.GetToken().Position, "alias *"+name+" has no anchor &"+name+" before it")
		r.unresolved[node] = true
		return node
	}
	return target
}

func (r *resolver) expand(node ast.Node, text string) string {
	expanded, problems := r.secrets.expand(text)
	for _, problem := range problems {
		r.report(*node.GetToken().Position, problem.Error())
		r.unresolved[node] = true
	}
	return expanded
}
