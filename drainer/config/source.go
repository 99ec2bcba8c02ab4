package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/duration"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// byteOrderMark begins a file that some editors have written. It is not part of the text.
const byteOrderMark = "\ufeff"

func parse(name string, content []byte) (ast.Node, *Error) {
	if bytes.HasPrefix(content, []byte("\xff\xfe")) || bytes.HasPrefix(content, []byte("\xfe\xff")) {
		return nil, &Error{File: name, Line: 1, Column: 1, Message: "the file is UTF-16; save it as UTF-8"}
	}
	tokens := lexer.Tokenize(strings.TrimPrefix(string(content), byteOrderMark))
	if deep := tooDeep(tokens); deep != nil {
		return nil, &Error{File: name, Line: deep.Line, Column: deep.Column, Message: fmt.Sprintf("more than %d levels are nested here; flatten them", maxDepth)}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, syntaxError(name, err)
	}
	switch len(file.Docs) {
	case 0:
		return nil, nil
	case 1:
		return file.Docs[0].Body, nil
	default:
		return nil, &Error{File: name, Line: 1, Column: 1, Message: "the file holds several YAML documents; keep one"}
	}
}

// maxDepth is far above any real configuration.
const maxDepth = 100

// tooDeep finds the first token below maxDepth. The parser's time grows with the square of the depth on one line.
// Levels on lines of their own are limited by the size of the file, because each is indented more.
func tooDeep(tokens token.Tokens) *token.Position {
	brackets, dashes, line := 0, 0, 0
	for _, next := range tokens {
		if next.Position.Line != line {
			dashes, line = 0, next.Position.Line
		}
		switch next.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets--
		case token.SequenceEntryType:
			dashes++
		}
		if max(brackets, dashes) > maxDepth {
			return next.Position
		}
	}
	return nil
}

// field is a key and its value. The key of an element of a list is its index.
type field struct {
	path  path
	key   token.Position
	value ast.Node
}

// position is the place that messages point to: the value if it is a scalar, else the key
// above the block.
func (f field) position() token.Position {
	if scalar, ok := f.value.(ast.ScalarNode); ok && f.value.Type() != ast.NullType {
		return *scalar.GetToken().Position
	}
	return f.key
}

// fields lists the fields of a mapping in the order of the file. A merge key (<<) adds the
// fields that the mapping does not have itself.
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

// inherit reads the value of a merge key: a mapping or a list of mappings.
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

// textOf returns the text of a quoted, plain or block string.
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

// path names a value by the keys that lead to it, such as
// providers.stripe.timeout. The whole file is the empty path.
type path []string

var plainKey = regexp.MustCompile(`^[\w-]+$`)

func (p path) child(name string) path {
	return append(p[:len(p):len(p)], name)
}

// String quotes unusual keys, so that different paths never look alike.
func (p path) String() string {
	keys := make([]string, len(p))
	for i, key := range p {
		keys[i] = key
		if !plainKey.MatchString(key) {
			keys[i] = strconv.Quote(key)
		}
	}
	return strings.Join(keys, ".")
}

func assignString(node ast.Node, into reflect.Value) string {
	text, ok := textOf(node)
	if !ok {
		return "want text; put the value in quotes"
	}
	into.SetString(text)
	return ""
}

func assignBool(node ast.Node, into reflect.Value) string {
	truth, ok := node.(*ast.BoolNode)
	if !ok {
		return "want true or false"
	}
	into.SetBool(truth.Value)
	return ""
}

func assignInt(node ast.Node, into reflect.Value) string {
	integer, ok := node.(*ast.IntegerNode)
	if !ok {
		return "want a whole number, without quotes"
	}
	number, err := strconv.ParseInt(fmt.Sprint(integer.Value), 10, 64)
	if err != nil || into.OverflowInt(number) {
		return "the number is too large"
	}
	into.SetInt(number)
	return ""
}

func assignFloat(node ast.Node, into reflect.Value) string {
	switch number := node.(type) {
	case *ast.FloatNode:
		into.SetFloat(number.Value)
		return ""
	case *ast.IntegerNode:
		if whole, err := strconv.ParseFloat(fmt.Sprint(number.Value), 64); err == nil {
			into.SetFloat(whole)
			return ""
		}
	}
	return "want a number, without quotes"
}

func assignDuration(node ast.Node, into *time.Duration) string {
	text, ok := textOf(node)
	if !ok {
		return duration.Hint
	}
	length, err := duration.Parse(text)
	if err != nil {
		return err.Error()
	}
	*into = length
	return ""
}

// reader decodes a tree into Go values. The library's decoder stops at the first mistake and may show the value.
// This decoder continues and shows no value.
type reader struct {
	file         string
	secrets      *secrets
	unresolved   map[ast.Node]bool // their values are unknown: the fault is already reported, or the text is in later
	later        map[ast.Node]string
	logins       map[string]Reference // of the database, by the path of the field
	unread       []Unread
	adapters     dispatch.Registry // names the blocks that belong to an adapter
	usesDatabase bool
	places       map[string]token.Position
	faulty       map[string]bool // paths of values that are known to be wrong
	problems     []*Error
}

func newReader(file string, secrets *secrets) *reader {
	return &reader{
		file:       file,
		secrets:    secrets,
		unresolved: map[ast.Node]bool{},
		later:      map[ast.Node]string{},
		logins:     map[string]Reference{},
		places:     map[string]token.Position{},
		faulty:     map[string]bool{},
	}
}

// list is a block whose fields are decoded later, in the order of the file.
type list []field

func (r *reader) report(place token.Position, message string) {
	r.problems = append(r.problems, &Error{File: r.file, Line: place.Line, Column: place.Column, Message: message})
}

// reject reports a mistake in the value at a path, at the nearest place that exists in the
// file. It does nothing if the value is already known to be wrong.
func (r *reader) reject(at path, format string, args ...any) {
	var place token.Position
	found := false
	for i := len(at); i >= 0; i-- {
		ancestor := at[:i].String()
		if r.faulty[ancestor] {
			return
		}
		if !found {
			place, found = r.places[ancestor]
		}
	}
	r.report(place, describe(at, fmt.Sprintf(format, args...)))
}

func describe(at path, message string) string {
	if len(at) == 0 {
		return message
	}
	return at.String() + ": " + message
}

func (r *reader) decode(f field, into reflect.Value) {
	r.enter(f, func() string { return r.assign(f, into) })
}

// decodeStruct returns the fields named in aside without decoding them.
func (r *reader) decodeStruct(f field, into reflect.Value, aside ...string) (kept map[string]field) {
	r.enter(f, func() (problem string) {
		kept, problem = r.assignStruct(f, into, aside...)
		return problem
	})
	return kept
}

// enter remembers the place of a value and reports the problem that assign returns. An empty
// value keeps its default.
func (r *reader) enter(f field, assign func() string) {
	at := f.path.String()
	r.places[at] = f.position()
	switch {
	case r.unresolved[f.value] && !r.settle(f):
		r.faulty[at] = true
	case !isNull(f.value):
		if problem := assign(); problem != "" {
			r.report(f.position(), describe(f.path, problem))
			r.faulty[at] = true
		}
	}
}

// assign returns the mistake in the value itself. Mistakes inside the value are reported at
// their own places.
func (r *reader) assign(f field, into reflect.Value) string {
	switch target := into.Addr().Interface().(type) {
	case *list:
		return r.assignList(f, target)
	case *time.Duration:
		return assignDuration(f.value, target)
	case *Retention:
		if _, isBlock := f.value.(ast.MapNode); !isBlock {
			return assignDuration(f.value, &target.Default)
		}
	case *payloadSchema:
		return r.secrets.redact(target.assign(f.value))
	case encoding.TextUnmarshaler:
		return r.assignText(f.value, target)
	case yaml.NodeUnmarshaler, yaml.InterfaceUnmarshaler, yaml.BytesUnmarshaler:
		return r.assignByLibrary(f, into)
	}
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		return r.assign(f, into.Elem())
	case reflect.Struct:
		_, problem := r.assignStruct(f, into)
		return problem
	case reflect.Map:
		return r.assignMap(f, into)
	case reflect.Slice:
		return r.assignSlice(f, into)
	case reflect.String:
		return assignString(f.value, into)
	case reflect.Bool:
		return assignBool(f.value, into)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return assignInt(f.value, into)
	case reflect.Float64:
		return assignFloat(f.value, into)
	default:
		return r.assignByLibrary(f, into)
	}
}

func (r *reader) assignList(f field, into *list) string {
	fields, err := f.fields()
	if err != nil {
		return err.Error()
	}
	*into = fields
	for _, child := range fields {
		r.places[child.path.String()] = child.key
	}
	return ""
}

func (r *reader) assignStruct(f field, into reflect.Value, aside ...string) (map[string]field, string) {
	fields, err := f.fields()
	if err != nil {
		return nil, err.Error()
	}
	targets := structFields(into.Type())
	kept := map[string]field{}
	for _, child := range fields {
		name := child.name()
		index, known := targets[name]
		switch {
		case known:
			r.decode(child, into.FieldByIndex(index))
		case slices.Contains(aside, name):
			kept[name] = child
		default:
			names := append(slices.Sorted(maps.Keys(targets)), aside...)
			r.report(child.key, describe(f.path, fmt.Sprintf("unknown field %q; %s", name, spelling.Suggest(name, names))))
		}
	}
	return kept, ""
}

func structFields(of reflect.Type) map[string][]int {
	fields := map[string][]int{}
	for i := range of.NumField() {
		structField := of.Field(i)
		name, options, _ := strings.Cut(structField.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			for inlined, index := range structFields(structField.Type) {
				fields[inlined] = append([]int{i}, index...)
			}
		case !structField.IsExported() || name == "-":
		case name == "":
			fields[strings.ToLower(structField.Name)] = []int{i}
		default:
			fields[name] = []int{i}
		}
	}
	return fields
}

func (r *reader) assignMap(f field, into reflect.Value) string {
	if into.Type().Key().Kind() != reflect.String {
		return r.assignByLibrary(f, into)
	}
	fields, err := f.fields()
	if err != nil {
		return err.Error()
	}
	into.Set(reflect.MakeMapWithSize(into.Type(), len(fields)))
	for _, child := range fields {
		value := reflect.New(into.Type().Elem()).Elem()
		r.decode(child, value)
		into.SetMapIndex(reflect.ValueOf(child.name()).Convert(into.Type().Key()), value)
	}
	return ""
}

func (r *reader) assignSlice(f field, into reflect.Value) string {
	sequence, ok := f.value.(*ast.SequenceNode)
	if !ok {
		return "want a list"
	}
	into.Set(reflect.MakeSlice(into.Type(), len(sequence.Values), len(sequence.Values)))
	for i, element := range sequence.Values {
		child := field{path: f.path.child(strconv.Itoa(i)), key: *element.GetToken().Position, value: element}
		r.decode(child, into.Index(i))
	}
	return ""
}

func (r *reader) assignText(node ast.Node, into encoding.TextUnmarshaler) string {
	text, ok := textOf(node)
	if !ok {
		return "want text; put the value in quotes"
	}
	if err := into.UnmarshalText([]byte(text)); err != nil {
		return r.secrets.redact(err.Error())
	}
	return ""
}

func (r *reader) assignByLibrary(f field, into reflect.Value) string {
	err := yaml.NodeToValue(f.value, into.Addr().Interface(), yaml.Strict())
	if err == nil {
		return ""
	}
	located := syntaxError(r.file, err)
	return r.secrets.redact(located.Message)
}
