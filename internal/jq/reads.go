package jq

import (
	"slices"

	"github.com/itchyny/gojq"
)

// Reads names the fields of the input that the expression plainly reads. It does not find those behind a pipe, in
// a function or in an assignment.
func (e *Expression) Reads() []string {
	var found reads
	found.query(e.query)
	var names []string
	for _, path := range found {
		names = append(names, path[0])
	}
	return names
}

// ReadsOnly reports whether the expression reads only these fields of its input. It recognises a path, and an
// object of paths and constants. For all other expressions it returns false.
func (e *Expression) ReadsOnly(fields ...string) bool {
	return len(e.query.FuncDefs) == 0 && e.query.Op == 0 && readsOnly(e.query.Term, fields)
}

func readsOnly(t *gojq.Term, fields []string) bool {
	switch {
	case t == nil:
		return false
	case t.Type == gojq.TermTypeIndex:
		return slices.Contains(fields, nameOf(t.Index)) && !slices.ContainsFunc(t.SuffixList, func(s *gojq.Suffix) bool {
			return !s.Optional && nameOf(s.Index) == ""
		})
	case len(t.SuffixList) > 0:
		return false
	case t.Type == gojq.TermTypeString:
		return len(t.Str.Queries) == 0
	case t.Type == gojq.TermTypeObject:
		return !slices.ContainsFunc(t.Object.KeyVals, func(f *gojq.ObjectKeyVal) bool {
			name := f.Key
			if f.KeyString != nil && len(f.KeyString.Queries) == 0 {
				name = f.KeyString.Str
			}
			if f.Val == nil {
				return !slices.Contains(fields, name)
			}
			return name == "" || len(f.Val.FuncDefs) > 0 || f.Val.Op != 0 || !readsOnly(f.Val.Term, fields)
		})
	}
	return t.Type == gojq.TermTypeNumber || t.Type == gojq.TermTypeNull || t.Type == gojq.TermTypeTrue || t.Type == gojq.TermTypeFalse
}

// reads collects paths of names from those parts of the syntax tree whose input is that of the expression.
type reads [][]string

func (r *reads) query(q *gojq.Query) {
	if q == nil || q.Op >= gojq.OpAssign {
		return
	}
	r.term(q.Term)
	r.query(q.Left)
	if q.Op != gojq.OpPipe || len(q.Patterns) > 0 { // in ". as $x | body", the body has the same input
		r.query(q.Right)
	}
}

func (r *reads) term(t *gojq.Term) {
	if t == nil {
		return
	}
	switch t.Type {
	case gojq.TermTypeIndex:
		r.path(t)
	case gojq.TermTypeObject:
		for _, field := range t.Object.KeyVals {
			r.field(field)
		}
	case gojq.TermTypeArray:
		r.query(t.Array.Query)
	case gojq.TermTypeUnary:
		r.term(t.Unary.Term)
	case gojq.TermTypeString:
		r.text(t.Str)
	case gojq.TermTypeIf:
		r.choice(t.If)
	case gojq.TermTypeTry:
		r.query(t.Try.Body)
	case gojq.TermTypeQuery:
		r.query(t.Query)
	}
}

// path collects .one.other, up to the first part that is no name.
func (r *reads) path(t *gojq.Term) {
	first := nameOf(t.Index)
	if first == "" {
		return
	}
	names := []string{first}
	for _, suffix := range t.SuffixList {
		name := nameOf(suffix.Index)
		if name == "" {
			break
		}
		names = append(names, name)
	}
	*r = append(*r, names)
}

func nameOf(i *gojq.Index) string {
	switch {
	case i == nil:
		return ""
	case i.Str != nil && len(i.Str.Queries) == 0:
		return i.Str.Str
	}
	return i.Name
}

// field also recognises {payload}, which is short for {payload: .payload}.
func (r *reads) field(f *gojq.ObjectKeyVal) {
	short := f.Val == nil && f.Key != "" && f.Key[0] != '$'
	if short {
		*r = append(*r, []string{f.Key})
	}
	r.query(f.Val)
}

func (r *reads) text(s *gojq.String) {
	for _, inserted := range s.Queries {
		r.query(inserted)
	}
}

func (r *reads) choice(c *gojq.If) {
	r.query(c.Cond)
	r.query(c.Then)
	for _, other := range c.Elif {
		r.query(other.Cond)
		r.query(other.Then)
	}
	r.query(c.Else)
}
