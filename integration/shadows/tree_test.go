package shadows_test

import (
	"fmt"
	"strings"
)

// node is one node of an analyzed statement, as Postgres prints it for debug_print_parse:
// {NAME :field value :field value}. A list has only elements, and no name.
type node struct {
	name     string
	fields   map[string][]any // each a *node, or a word
	elements []any
}

// parseTree parses the output of Postgres.
func parseTree(printed string) (*node, error) {
	r := &treeReader{rest: printed}
	value, err := r.value(r.word())
	if err != nil {
		return nil, err
	}
	tree, isNode := value.(*node)
	if !isNode || tree.name != "QUERY" {
		return nil, fmt.Errorf("no analyzed statement: %.40q", printed)
	}
	return tree, nil
}

type treeReader struct{ rest string }

// word returns the next brace, parenthesis or run of other characters. It is empty at the end.
func (r *treeReader) word() string {
	r.rest = strings.TrimLeft(r.rest, " \n\t")
	if r.rest == "" {
		return ""
	}
	end := 0
	for end < len(r.rest) && !strings.ContainsRune(" \n\t(){}", rune(r.rest[end])) {
		if r.rest[end] == '\\' {
			end++ // the next character is escaped
		}
		end++
	}
	end = min(max(end, 1), len(r.rest))
	word := r.rest[:end]
	r.rest = r.rest[end:]
	return word
}

func (r *treeReader) value(word string) (any, error) {
	switch word {
	case "{":
		return r.node()
	case "(":
		list := &node{}
		for {
			switch word := r.word(); word {
			case ")":
				return list, nil
			case "":
				return nil, fmt.Errorf("a list without an end")
			default:
				element, err := r.value(word)
				if err != nil {
					return nil, err
				}
				list.elements = append(list.elements, element)
			}
		}
	}
	return word, nil
}

func (r *treeReader) node() (*node, error) {
	n := &node{name: r.word(), fields: map[string][]any{}}
	for field := ""; ; {
		switch word := r.word(); {
		case word == "}":
			return n, nil
		case word == "":
			return nil, fmt.Errorf("%s without an end", n.name)
		case strings.HasPrefix(word, ":"):
			field = word[1:]
			n.fields[field] = nil
		default:
			value, err := r.value(word)
			if err != nil {
				return nil, err
			}
			n.fields[field] = append(n.fields[field], value)
		}
	}
}

// each calls f for the node and for all nodes below it.
func (n *node) each(f func(*node)) {
	f(n)
	for _, values := range n.fields {
		for _, value := range values {
			if below, isNode := value.(*node); isNode {
				below.each(f)
			}
		}
	}
	for _, element := range n.elements {
		if below, isNode := element.(*node); isNode {
			below.each(f)
		}
	}
}

// text returns a field of one word.
func (n *node) text(field string) string {
	for _, value := range n.fields[field] {
		if word, isWord := value.(string); isWord {
			return word
		}
	}
	return ""
}

func (n *node) number(field string) int {
	number := -1
	_, _ = fmt.Sscan(n.text(field), &number)
	return number
}

// list returns the elements of a field with a list.
func (n *node) list(field string) []any {
	for _, value := range n.fields[field] {
		if list, isNode := value.(*node); isNode && list.name == "" {
			return list.elements
		}
	}
	return nil
}

// nodes returns the nodes in a field's list.
func (n *node) nodes(field string) (all []*node) {
	for _, element := range n.list(field) {
		if one, isNode := element.(*node); isNode {
			all = append(all, one)
		}
	}
	return all
}
