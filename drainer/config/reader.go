package config

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/agentoutbox/drainer/internal/spelling"
)

// reader decodes a tree into Go values. The library's own decoder stops at
// the first mistake and may repeat the value; this one goes on, and repeats
// none.
type reader struct {
	file       string
	secrets    *secrets
	unresolved map[ast.Node]bool // already reported; nothing can be said about their values
	places     map[string]token.Position
	faulty     map[string]bool // paths of values that are known to be wrong
	problems   []*Error
}

func newReader(file string, secrets *secrets) *reader {
	return &reader{
		file:       file,
		secrets:    secrets,
		unresolved: map[ast.Node]bool{},
		places:     map[string]token.Position{},
		faulty:     map[string]bool{},
	}
}

// list is a block whose fields are decoded later, in the order of the file.
type list []field

func (r *reader) report(place token.Position, message string) {
	r.problems = append(r.problems, &Error{File: r.file, Line: place.Line, Column: place.Column, Message: message})
}

// reject reports what is wrong with the value at a path, at the nearest place
// that exists in the file. A value that is known to be wrong is left alone.
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

// decodeStruct gives back the fields named in aside, which somebody else
// decodes.
func (r *reader) decodeStruct(f field, into reflect.Value, aside ...string) (kept map[string]field) {
	r.enter(f, func() (problem string) {
		kept, problem = r.assignStruct(f, into, aside...)
		return problem
	})
	return kept
}

// enter remembers the place of a value and reports what assigning it finds. A
// value that was left empty keeps its default.
func (r *reader) enter(f field, assign func() string) {
	at := f.path.String()
	r.places[at] = f.position()
	switch {
	case r.unresolved[f.value]:
		r.faulty[at] = true
	case !isNull(f.value):
		if problem := assign(); problem != "" {
			r.report(f.position(), describe(f.path, problem))
			r.faulty[at] = true
		}
	}
}

// assign returns what is wrong with the value itself; mistakes inside of it
// are reported at their own places.
func (r *reader) assign(f field, into reflect.Value) string {
	switch target := into.Addr().Interface().(type) {
	case *list:
		return r.assignList(f, target)
	case *time.Duration:
		return assignDuration(f.value, target)
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
