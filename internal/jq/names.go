package jq

import "github.com/itchyny/gojq"

// names are those of an expression that is nothing but .one.other, as most are
// that find a reference; nil for any other.
func names(query *gojq.Query) []string {
	if query.Term == nil || query.Term.Type != gojq.TermTypeIndex || len(query.FuncDefs) > 0 {
		return nil
	}
	found := []string{query.Term.Index.Name}
	for _, suffix := range query.Term.SuffixList {
		if suffix.Index == nil {
			return nil
		}
		found = append(found, suffix.Index.Name)
	}
	for _, name := range found {
		if name == "" {
			return nil
		}
	}
	return found
}

// textAt follows the names to a text, without the evaluator and its deadline.
// What is not plainly there is the evaluator's to judge.
func textAt(names []string, input any) (text string, found bool) {
	for _, name := range names {
		object, is := input.(map[string]any)
		if !is {
			return "", false
		}
		input = object[name]
	}
	text, found = input.(string)
	return text, found && len(names) > 0
}
