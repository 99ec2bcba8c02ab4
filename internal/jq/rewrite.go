package jq

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/itchyny/gojq"
)

// definitions are the evaluator's functions that are written in jq, unchanged from gojq (copyright itchyny, MIT
// licence).
//
//go:embed builtin.jq
var definitions string

// updates replace two functions that the evaluator implements in Go. They are written as jq defines them, so that
// each change is charged before it is made.
const updates = `
def _bounded_assign(p; $v): reduce path(p) as $q (.; setpath($q; $v));
def _bounded_modify(p; f):
  reduce path(p) as $q ([., []];
    label $out | (setpath([0] + $q; .[0] | getpath($q) | f) | ., break $out), setpath([1, (.[1] | length)]; $q))
  | .[1] as $gone | .[0] | delpaths($gone);`

// These prefixes and names belong to the evaluation. No expression may use them.
const (
	reservedFunction = "_bounded_"
	reservedVariable = "$__"
	budgetVariable   = "$__budget"
	valueVariable    = "$__value"
)

// definition is a function of the evaluator, rewritten once for all expressions.
type definition struct {
	body  *gojq.FuncDef
	needs []string
}

var library = sync.OnceValue(func() map[string]*definition {
	all := map[string]*definition{}
	parsed, err := gojq.Parse(definitions + updates + " .")
	if err != nil {
		panic(fmt.Errorf("parsing the definitions of jq: %w", err))
	}
	for _, d := range parsed.FuncDefs {
		all[arity(d.Name, len(d.Args))] = &definition{body: d}
	}
	for _, d := range all {
		r := rewriter{library: all, isLibrary: true}
		r.function(d.body)
		if r.err != nil {
			panic(fmt.Errorf("rewriting %s: %w", d.body.Name, r.err))
		}
		d.needs = r.needs
	}
	return all
})

// bound rewrites an expression so that the budget is charged before an operator or function builds much: it calls
// those of bounded.go instead.
func bound(query *gojq.Query) error {
	r := rewriter{library: library()}
	r.query(query)
	if r.err != nil {
		return r.err
	}
	var needed []*gojq.FuncDef
	seen := map[string]bool{}
	var add func(names []string)
	add = func(names []string) {
		for _, name := range names {
			if !seen[name] {
				seen[name] = true
				add(r.library[name].needs)
				needed = append(needed, r.library[name].body)
			}
		}
	}
	add(r.needs)
	query.FuncDefs = append(needed, query.FuncDefs...)
	return nil
}

func arity(name string, arguments int) string { return fmt.Sprintf("%s/%d", name, arguments) }

type rewriter struct {
	library   map[string]*definition
	isLibrary bool
	own       []string // functions in scope that the expression itself defines
	needs     []string
	err       error
}

func (r *rewriter) query(q *gojq.Query) {
	if q == nil {
		return
	}
	defer func(known int) { r.own = r.own[:known] }(len(r.own))
	if len(q.Imports) > 0 {
		return // it will not compile
	}
	for _, d := range q.FuncDefs {
		r.function(d)
	}
	r.patterns(q.Patterns)
	r.term(q.Term)
	if q.Term != nil {
		return
	}
	isPath := q.Op == gojq.OpModify && isSimplePath(q.Left) && iterates(q.Left) // must be checked before the rewrite
	r.query(q.Left)
	r.query(q.Right)
	if name := operators[q.Op]; name != "" {
		if q.Op < gojq.OpEq || !isPlain(q.Left) && !isPlain(q.Right) {
			r.replace(q, call(reservedFunction+name, q.Left, q.Right, variable(budgetVariable)))
		}
		return
	}
	switch q.Op {
	case gojq.OpAssign:
		r.replace(q, r.defined("_bounded_assign", q.Left, q.Right))
	case gojq.OpModify:
		if isPath {
			*q = *pipe(copied(q), call(reservedFunction+"copied", variable(budgetVariable)))
			return
		}
		r.replace(q, r.defined("_bounded_modify", q.Left, q.Right))
	case gojq.OpUpdateAdd, gojq.OpUpdateSub, gojq.OpUpdateMul, gojq.OpUpdateDiv, gojq.OpUpdateMod, gojq.OpUpdateAlt:
		r.update(q)
	}
}

// update rewrites p += v to v as $v
//
// p
//
// = . + $v.
func (r *rewriter) update(q *gojq.Query) {
	dot := &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeIdentity}}
	change := call("_alternative", dot, variable(valueVariable))
	if q.Op != gojq.OpUpdateAlt {
		change = call(reservedFunction+updating[q.Op], dot, variable(valueVariable), variable(budgetVariable))
	}
	r.replace(q, parenthesized(&gojq.Query{
		Left: parenthesized(q.Right), Op: gojq.OpPipe, Patterns: []*gojq.Pattern{{Name: valueVariable}},
		Right: r.defined("_bounded_modify", q.Left, change),
	}))
}

func (r *rewriter) function(d *gojq.FuncDef) {
	if strings.HasPrefix(d.Name, reservedFunction) && !r.isLibrary {
		r.refuse(d.Name)
	}
	r.own = append(r.own, arity(d.Name, len(d.Args)))
	known := len(r.own)
	for _, argument := range d.Args {
		r.variable(argument)
		r.own = append(r.own, arity(strings.TrimPrefix(argument, "$"), 0))
	}
	r.query(d.Body)
	r.own = r.own[:known]
}

func (r *rewriter) refuse(name string) {
	if r.err == nil {
		r.err = fmt.Errorf("jq names %s, which is the evaluator's own", name)
	}
}

func (r *rewriter) variable(name string) {
	if strings.HasPrefix(name, reservedVariable) {
		r.refuse(name)
	}
}

func (r *rewriter) patterns(patterns []*gojq.Pattern) {
	for _, p := range patterns {
		r.variable(p.Name)
		r.patterns(p.Array)
		for _, field := range p.Object {
			r.variable(field.Key)
			if field.KeyString != nil && len(field.KeyString.Queries) > 0 {
				field.KeyQuery, field.KeyString = r.text(field.KeyString, "tostring"), nil
			} else if field.KeyQuery != nil {
				r.query(field.KeyQuery)
				field.KeyQuery = parenthesized(r.key(field.KeyQuery))
			}
			if field.Val != nil {
				r.patterns([]*gojq.Pattern{field.Val})
			}
		}
	}
}

func (r *rewriter) term(t *gojq.Term) {
	if t == nil {
		return
	}
	suffixes := t.SuffixList
	t.SuffixList = nil
	r.termWithoutSuffixes(t)
	for _, suffix := range suffixes {
		if suffix.Index != nil {
			r.index(suffix.Index)
		}
		if suffix.Iter {
			*t = gojq.Term{Type: gojq.TermTypeQuery, Query: pipe(
				&gojq.Query{Term: copiedTerm(t)}, call(reservedFunction+"iterated", variable(budgetVariable)))}
		}
		t.SuffixList = append(t.SuffixList, suffix)
	}
}

// termWithoutSuffixes rewrites a term without its suffixes.
func (r *rewriter) termWithoutSuffixes(t *gojq.Term) {
	switch t.Type {
	case gojq.TermTypeRecurse:
		*t = *r.call(&gojq.Func{Name: "recurse"})
	case gojq.TermTypeIndex:
		r.index(t.Index)
	case gojq.TermTypeFunc:
		*t = *r.call(t.Func)
	case gojq.TermTypeObject:
		for _, field := range t.Object.KeyVals {
			r.field(field)
		}
	case gojq.TermTypeArray:
		r.query(t.Array.Query)
	case gojq.TermTypeUnary:
		if t.Unary.Term.Type != gojq.TermTypeNumber {
			r.term(t.Unary.Term)
			if t.Unary.Op == gojq.OpSub {
				*t = *asTerm(pipe(&gojq.Query{Term: t.Unary.Term}, call(reservedFunction+"_negate", variable(budgetVariable))))
			}
		}
	case gojq.TermTypeFormat:
		name, known := formats[t.Format]
		switch {
		case !known:
			r.err = errors.New("jq has a format that is not known")
		case t.Str == nil:
			*t = *r.format(name)
		default:
			*t = *asTerm(r.text(t.Str, name))
		}
	case gojq.TermTypeString:
		if len(t.Str.Queries) > 0 {
			*t = *asTerm(r.text(t.Str, "tostring"))
		}
	case gojq.TermTypeIf:
		r.query(t.If.Cond)
		r.query(t.If.Then)
		for _, other := range t.If.Elif {
			r.query(other.Cond)
			r.query(other.Then)
		}
		r.query(t.If.Else)
	case gojq.TermTypeTry:
		r.query(t.Try.Body)
		r.query(t.Try.Catch)
	case gojq.TermTypeReduce:
		r.query(t.Reduce.Query)
		r.patterns(t.Reduce.Patterns)
		r.query(t.Reduce.Start)
		r.query(t.Reduce.Update)
	case gojq.TermTypeForeach:
		r.query(t.Foreach.Query)
		r.patterns(t.Foreach.Patterns)
		r.query(t.Foreach.Start)
		r.query(t.Foreach.Update)
		r.query(t.Foreach.Extract)
	case gojq.TermTypeLabel:
		r.variable(t.Label.Ident)
		r.query(t.Label.Body)
	case gojq.TermTypeQuery:
		r.query(t.Query)
	}
}

// index does not change names and numbers.
func (r *rewriter) index(i *gojq.Index) {
	switch {
	case i.Str != nil && len(i.Str.Queries) > 0:
		i.Start, i.Str = r.text(i.Str, "tostring"), nil
	case i.IsSlice:
		r.query(i.Start)
		r.query(i.End)
	case i.Start != nil && !isPlain(i.Start):
		r.query(i.Start)
		i.Start = r.key(i.Start)
	}
}

// key refuses an array, because an index with an array searches like the function indices.
func (r *rewriter) key(q *gojq.Query) *gojq.Query {
	return pipe(parenthesized(q), call(reservedFunction+"key", variable(budgetVariable)))
}

func (r *rewriter) field(f *gojq.ObjectKeyVal) {
	r.variable(f.Key)
	switch {
	case f.KeyString == nil || len(f.KeyString.Queries) == 0:
		r.query(f.KeyQuery)
	case f.Val != nil:
		f.KeyQuery, f.KeyString = r.text(f.KeyString, "tostring"), nil
	case r.err == nil:
		r.err = errors.New("jq makes a field's name of parts, and gives it no value")
	}
	r.query(f.Val)
}

// text joins the pieces of a string such as "a\(.b)c".
func (r *rewriter) text(s *gojq.String, format string) *gojq.Query {
	var joined *gojq.Query
	for _, piece := range s.Queries {
		if piece.Term.Str == nil {
			r.query(piece)
			piece = parenthesized(pipe(piece, &gojq.Query{Term: r.format(format)}))
		}
		if joined == nil {
			joined = piece
		} else {
			joined = call(reservedFunction+"_add", joined, piece, variable(budgetVariable))
		}
	}
	return parenthesized(joined)
}

// format returns the call of a format's function.
func (r *rewriter) format(name string) *gojq.Term {
	if name[0] == '_' {
		return call(reservedFunction+name, variable(budgetVariable)).Term
	}
	return r.call(&gojq.Func{Name: name})
}

// call rewrites a function call: to a function that charges the budget, or to one of the definitions. It keeps a
// call of a function that the expression itself defines.
func (r *rewriter) call(f *gojq.Func) *gojq.Term {
	for _, argument := range f.Args {
		r.query(argument)
	}
	name := arity(f.Name, len(f.Args))
	switch {
	case slices.Contains(r.own, name):
	case strings.HasPrefix(f.Name, reservedVariable), f.Name[0] == '_' && !r.isLibrary:
		r.refuse(f.Name)
	case name == "builtins/0", name == "modulemeta/0":
		r.refuse(f.Name)
	case name == "path/1":
		return asTerm(pipe(&gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: f}}, call(reservedFunction+"path", variable(budgetVariable))))
	case name == "getpath/1":
		f.Args[0] = pipe(parenthesized(f.Args[0]), call(reservedFunction+"path_keys", variable(budgetVariable)))
	case r.library[name] != nil:
		r.needs = append(r.needs, name)
	case bounded[name] != nil, name == "_range/3":
		return call(reservedFunction+f.Name, append(f.Args[:len(f.Args):len(f.Args)], variable(budgetVariable))...).Term
	}
	return &gojq.Term{Type: gojq.TermTypeFunc, Func: f}
}

func (r *rewriter) defined(name string, arguments ...*gojq.Query) *gojq.Query {
	r.needs = append(r.needs, arity(name, len(arguments)))
	return call(name, arguments...)
}

func (r *rewriter) replace(q, other *gojq.Query) {
	other.FuncDefs = q.FuncDefs
	*q = *other
}

var operators = map[gojq.Operator]string{
	gojq.OpAdd: "_add", gojq.OpSub: "_subtract", gojq.OpMul: "_multiply", gojq.OpDiv: "_divide", gojq.OpMod: "_modulo",
	gojq.OpEq: "_equal", gojq.OpNe: "_notequal", gojq.OpGt: "_greater", gojq.OpLt: "_less", gojq.OpGe: "_greatereq", gojq.OpLe: "_lesseq",
}

var updating = map[gojq.Operator]string{
	gojq.OpUpdateAdd: "_add", gojq.OpUpdateSub: "_subtract", gojq.OpUpdateMul: "_multiply", gojq.OpUpdateDiv: "_divide", gojq.OpUpdateMod: "_modulo",
}

var formats = map[string]string{
	"@text": "tostring", "@json": "tojson", "@html": "_tohtml", "@uri": "_touri", "@urid": "_tourid", "@csv": "_tocsv",
	"@tsv": "_totsv", "@sh": "_tosh", "@base64": "_tobase64", "@base64d": "_tobase64d",
}

// isPlain reports whether the query is a literal. A comparison with a literal is cheap.
func isPlain(q *gojq.Query) bool {
	if q == nil || q.Term == nil || len(q.FuncDefs) > 0 || len(q.Term.SuffixList) > 0 {
		return false
	}
	switch q.Term.Type {
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse:
		return true
	case gojq.TermTypeNumber:
		return len(q.Term.Number) < 20
	case gojq.TermTypeString:
		return len(q.Term.Str.Queries) == 0
	}
	return false
}

// isSimplePath reports whether a path has only names and iterations, which make nothing longer. The evaluator's
// own update then copies each part once. With jq's definition, it would copy a list once for each element.
func isSimplePath(q *gojq.Query) bool {
	if q.Term == nil {
		return q.Op == gojq.OpPipe && len(q.Patterns) == 0 && isSimplePath(q.Left) && isSimplePath(q.Right)
	}
	isName := func(i *gojq.Index) bool { return i.Name != "" || i.Str != nil && len(i.Str.Queries) == 0 }
	if len(q.FuncDefs) > 0 || q.Term.Type != gojq.TermTypeIdentity && (q.Term.Type != gojq.TermTypeIndex || !isName(q.Term.Index)) {
		return false
	}
	for _, suffix := range q.Term.SuffixList {
		if suffix.Index != nil && !isName(suffix.Index) {
			return false
		}
	}
	return true
}

func iterates(q *gojq.Query) bool {
	if q.Term == nil {
		return iterates(q.Left) || iterates(q.Right)
	}
	return slices.ContainsFunc(q.Term.SuffixList, func(s *gojq.Suffix) bool { return s.Iter })
}

func variable(name string) *gojq.Query { return call(name) }

func call(name string, arguments ...*gojq.Query) *gojq.Query {
	return &gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: name, Args: arguments}}}
}

func pipe(left, right *gojq.Query) *gojq.Query {
	return &gojq.Query{Left: left, Op: gojq.OpPipe, Right: right}
}

func asTerm(q *gojq.Query) *gojq.Term { return &gojq.Term{Type: gojq.TermTypeQuery, Query: q} }

func parenthesized(q *gojq.Query) *gojq.Query { return &gojq.Query{Term: asTerm(q)} }

func copied(q *gojq.Query) *gojq.Query {
	other := *q
	return &other
}

func copiedTerm(t *gojq.Term) *gojq.Term {
	other := *t
	return &other
}
