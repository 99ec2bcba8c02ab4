package jq

import "github.com/itchyny/gojq"

// Reads names the fields that the expression takes from its input, as far as
// that is plain: not what is behind a pipe, in a function or assigned to.
func (e *Expression) Reads() []string {
	var found reads
	found.query(e.query)
	var names []string
	for _, path := range found {
		names = append(names, path[0])
	}
	return names
}

// reads collects paths of names from those parts of the syntax tree that see the input
// itself.
type reads [][]string

func (r *reads) query(q *gojq.Query) {
	if q == nil || q.Op >= gojq.OpAssign {
		return
	}
	r.term(q.Term)
	r.query(q.Left)
	if q.Op != gojq.OpPipe || len(q.Patterns) > 0 { // ". as $x | body" hands its input on
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

// path follows .one.other as far as there are names.
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

// field also knows {payload}, which is short for {payload: .payload}.
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
