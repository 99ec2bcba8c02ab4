package jq

import (
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"

	"github.com/itchyny/gojq"
)

// bounded holds the evaluator's functions and operators that build more than a few bytes, or compare much, each
// with a function that charges the budget before the call. All others return a number, a boolean, a part of their
// input or a few bytes.
var bounded = map[string]func(b *budget, input any, arguments []any) error{
	"_add/2":       func(b *budget, _ any, a []any) error { return b.calculate(a[0], a[1]) },
	"_subtract/2":  subtracting,
	"_multiply/2":  multiplying,
	"_divide/2":    dividing,
	"_modulo/2":    func(b *budget, _ any, a []any) error { return b.calculate(a[0], a[1]) },
	"_negate/0":    copying(1),
	"_equal/2":     comparing,
	"_notequal/2":  comparing,
	"_greater/2":   comparing,
	"_less/2":      comparing,
	"_greatereq/2": comparing,
	"_lesseq/2":    comparing,

	"length/0": func(b *budget, input any, _ []any) error {
		if isNumber(input) {
			return b.charge(shallowSize(input))
		}
		return nil
	},
	"tonumber/0": func(b *budget, input any, _ []any) error {
		if text, is := input.(string); is {
			return b.calculate(json.Number(text))
		}
		return nil
	},
	"strftime/1": func(b *budget, _ any, a []any) error {
		return b.charge(1024*strings.Count(asText(a[0]), "%") + len(asText(a[0])))
	},

	"ascii_downcase/0": copying(2),
	"ascii_upcase/0":   copying(2),
	"explode/0":        copying(24),
	"implode/0":        copying(1),
	"keys/0":           copying(2),
	"reverse/0":        copying(1),
	"_captures/0":      copying(8),
	"fromjson/0":       reading,
	"split/1":          func(b *budget, input any, a []any) error { return b.split(input, a[0]) },

	"add/0":        expanding(2),
	"flatten/0":    expanding(2),
	"flatten/1":    expanding(2),
	"tojson/0":     expanding(4),
	"tostring/0":   writing,
	"format/1":     expanding(6),
	"_tohtml/0":    expanding(6),
	"_touri/0":     expanding(4),
	"_tourid/0":    expanding(2),
	"_tocsv/0":     expanding(4),
	"_totsv/0":     expanding(4),
	"_tosh/0":      expanding(6),
	"_tobase64/0":  expanding(4),
	"_tobase64d/0": expanding(2),
	"error/0":      expanding(1),
	"error/1":      func(b *budget, _ any, a []any) error { return expanding(1)(b, a[0], nil) },
	"halt_error/0": expanding(1),
	"halt_error/1": expanding(1),

	"sort/0":       sorting,
	"unique/0":     sorting,
	"min/0":        sorting,
	"max/0":        sorting,
	"_sort_by/1":   sorting,
	"_unique_by/1": sorting,
	"_group_by/1":  sorting,
	"_min_by/1":    sorting,
	"_max_by/1":    sorting,
	"bsearch/1":    sorting,

	"join/1":      joining,
	"transpose/0": transposing,
	"contains/1":  searching,
	"inside/1":    searching,
	"indices/1":   searching,
	"index/1":     searching,
	"rindex/1":    searching,
	"setpath/2":   setting,
	"delpaths/1":  deleting,
	"_match/3":    matching,
}

// boundedOptions adds a function to the evaluator for each of them, with the budget as an additional argument. It
// also adds functions that only check the value that they pass on.
var boundedOptions = sync.OnceValue(func() []gojq.CompilerOption {
	options := []gojq.CompilerOption{gojq.WithVariables([]string{budgetVariable})}
	for name, measure := range bounded {
		function, _, _ := strings.Cut(name, "/")
		arguments := int(name[len(name)-1] - '0')
		run := native(function, arguments)
		options = append(options, gojq.WithFunction(reservedFunction+function, arguments+1, arguments+1, func(input any, values []any) any {
			b := values[arguments].(*budget)
			if err := measure(b, input, values[:arguments]); err != nil {
				return err
			}
			return run(b, input, values[:arguments])
		}))
	}
	for name, look := range map[string]func(*budget, any) error{
		"iterated": func(b *budget, value any) error {
			list, _ := value.([]any)
			object, _ := value.(map[string]any)
			return b.charge(32 * (len(list) + len(object)))
		},
		"path": func(b *budget, value any) error { return b.charge(2 * shallowSize(value)) },
		"copied": func(b *budget, value any) error {
			return expanding(1)(b, value, nil)
		},
		"key": func(_ *budget, value any) error {
			if _, is := value.([]any); is {
				return errors.New("cannot index with an array: use indices")
			}
			return nil
		},
		"path_keys": func(_ *budget, value any) error {
			path, _ := value.([]any)
			for _, key := range path {
				if _, is := key.([]any); is {
					return errors.New("cannot index with an array: use indices")
				}
			}
			return nil
		},
	} {
		options = append(options, gojq.WithFunction(reservedFunction+name, 1, 1, func(value any, values []any) any {
			if err := look(values[0].(*budget), value); err != nil {
				return err
			}
			return value
		}))
	}
	numbers := compiled("_range", "$a", "$b", "$c")
	return append(options, gojq.WithIterFunction(reservedFunction+"_range", 4, 4, func(input any, values []any) gojq.Iter {
		for _, number := range values[:3] {
			if shallowSize(number) > 1000 { // each number of the range is as long
				return gojq.NewIter(values[3].(*budget).fail())
			}
		}
		return numbers.Run(input, values[:3]...)
	}))
})

// native returns a call of the evaluator's own function.
func native(function string, arguments int) func(b *budget, input any, values []any) any {
	names := []string{"$a", "$b", "$c"}[:arguments]
	if function == "_match" { // the evaluator caches every pattern, so each evaluation has code of its own
		return func(b *budget, input any, values []any) any {
			if b.match == nil {
				b.match = compiled(function, names...)
			}
			result, _ := b.match.Run(input, values...).Next()
			return result
		}
	}
	code := compiled(function, names...)
	return func(_ *budget, input any, values []any) any {
		switch function {
		case "tostring":
			if text, is := input.(string); is {
				return text
			}
		case "_add":
			left, isText := values[0].(string)
			if right, is := values[1].(string); is && isText {
				return left + right
			}
		}
		result, _ := code.Run(input, values...).Next()
		return result
	}
}

// compiled returns the evaluator's own function with these arguments.
func compiled(function string, variables ...string) *gojq.Code {
	source := function
	if len(variables) > 0 {
		source += "(" + strings.Join(variables, ";") + ")"
	}
	query, err := gojq.Parse(source)
	if err != nil {
		panic(err)
	}
	code, err := gojq.Compile(query, gojq.WithVariables(variables))
	if err != nil {
		panic(err)
	}
	return code
}

// longNumber is the longest number that may be calculated with, in digits or bytes: the length of the product of
// two numbers that were read.
const longNumber = 2 * maxDigits

// calculate charges for an operation that builds as many bytes as its operands have without their elements.
func (b *budget) calculate(operands ...any) error {
	bytes := 0
	for _, operand := range operands {
		if isNumber(operand) && shallowSize(operand) > longNumber {
			return b.fail()
		}
		bytes += shallowSize(operand)
	}
	return b.charge(bytes)
}

// work charges the budget for times*each steps that a function takes in one call, such as comparisons.
func (b *budget) work(times, each int) error {
	const most = 1 << 28 // about a second
	if each > 0 && times > most/each && b.err == nil {
		b.err = ErrTooManySteps
	}
	b.spend(times * each >> 8)
	return b.err
}

func (b *budget) fail() error { return b.charge(buildLimit + 1) }

func (b *budget) split(text, separator any) error {
	whole, is := text.(string)
	between, also := separator.(string)
	if !is || !also {
		return nil
	}
	return b.charge(32 * (strings.Count(whole, between) + 1))
}

func copying(factor int) func(*budget, any, []any) error {
	return func(b *budget, input any, _ []any) error { return b.charge(factor * shallowSize(input)) }
}

// expanding charges for a function that writes its whole input, or walks through it.
func expanding(factor int) func(*budget, any, []any) error {
	return func(b *budget, input any, _ []any) error {
		size, err := b.tree(input)
		if err != nil {
			return err
		}
		return b.charge(factor * size)
	}
}

func reading(b *budget, input any, _ []any) error {
	if mayHoldLongNumber(asText(input)) {
		return b.fail()
	}
	return copying(24)(b, input, nil)
}

func writing(b *budget, input any, _ []any) error {
	if _, is := input.(string); is {
		return nil
	}
	return expanding(4)(b, input, nil)
}

func comparing(b *budget, _ any, operands []any) error {
	for _, operand := range operands {
		if !isContainer(operand) {
			return nil
		}
	}
	for _, operand := range operands {
		if _, err := b.tree(operand); err != nil {
			return err
		}
	}
	return nil
}

func subtracting(b *budget, input any, operands []any) error {
	if left, is := operands[0].([]any); is {
		if err := searching(b, left, operands[1:]); err != nil {
			return err
		}
	}
	return b.calculate(operands...)
}

func multiplying(b *budget, _ any, operands []any) error {
	for i, operand := range operands {
		text, is := operand.(string)
		if !is {
			continue
		}
		times, is := gojq.ToFloat64(operands[1-i])
		if !is {
			return nil
		}
		if float64(len(text))*times > buildLimit {
			return b.fail()
		}
		return b.charge(max(0, int(float64(len(text))*times)))
	}
	if isNumber(operands[0]) {
		return b.calculate(operands...)
	}
	for _, operand := range operands {
		if err := expanding(4)(b, operand, nil); err != nil {
			return err
		}
	}
	return nil
}

func dividing(b *budget, _ any, operands []any) error {
	if err := b.split(operands[0], operands[1]); err != nil {
		return err
	}
	return b.calculate(operands...)
}

func sorting(b *budget, input any, keys []any) error {
	for _, list := range append(keys, input) {
		if _, err := b.tree(list); err != nil {
			return err
		}
		sum, _ := compareCost(list)
		if err := b.work(sum, 16); err != nil { // each element is compared about 16 times: once for each doubling of the length
			return err
		}
	}
	return b.charge(4 * shallowSize(input))
}

func joining(b *budget, input any, arguments []any) error {
	parts, _ := input.([]any)
	object, _ := input.(map[string]any)
	separator, _ := arguments[0].(string)
	if between := len(parts) + len(object); between > 0 && len(separator) > buildLimit/between {
		return b.fail()
	}
	if err := expanding(2)(b, input, nil); err != nil {
		return err
	}
	return b.charge(len(separator) * (len(parts) + len(object)))
}

func transposing(b *budget, input any, _ []any) error {
	rows, _ := input.([]any)
	columns := 0
	for _, row := range rows {
		if cells, is := row.([]any); is {
			columns = max(columns, len(cells))
		}
	}
	return b.charge(16*len(rows)*columns + 40*columns)
}

// searching charges for the worst case: each part of the input is compared with each part of the argument.
func searching(b *budget, input any, arguments []any) error {
	for _, value := range []any{input, arguments[0]} {
		if _, err := b.tree(value); err != nil {
			return err
		}
	}
	if !isContainer(input) {
		return b.charge(24 * (shallowSize(input) + shallowSize(arguments[0])))
	}
	in, inParts := compareCost(input)
	what, whatParts := compareCost(arguments[0])
	if err := b.work(in, whatParts); err != nil {
		return err
	}
	if err := b.work(what, inParts); err != nil {
		return err
	}
	return b.charge(shallowSize(input))
}

// compareCost estimates the time to compare all parts of a value once, in units of some nanoseconds, and counts
// the parts. A number is parsed for each comparison.
func compareCost(value any) (sum, parts int) {
	sum, parts = 1, 1
	switch value := value.(type) {
	case string:
		sum += len(value) / 16
	case json.Number:
		sum += 16 + len(value)*len(value)/2000
	case *big.Int:
		sum += value.BitLen() / 128
	case []any:
		for _, element := range value {
			inner, innerParts := compareCost(element)
			sum, parts = sum+inner, parts+innerParts
		}
	case map[string]any:
		for name, element := range value {
			inner, innerParts := compareCost(element)
			sum, parts = sum+4+len(name)/16+inner, parts+innerParts
		}
	}
	return sum, parts
}

// setting charges for the copy of each container on the path, and for a list that becomes longer.
func setting(b *budget, input any, arguments []any) error {
	path, _ := arguments[0].([]any)
	for _, key := range path {
		bytes := 64 + shallowSize(input)
		list, _ := input.([]any)
		object, _ := input.(map[string]any)
		input = nil
		switch key := key.(type) {
		case string:
			input = object[key]
		case map[string]any: // a slice, which another list may replace
			bytes += shallowSize(arguments[1])
			input = list
		default:
			at, _ := gojq.ToInt(key)
			if at < 0 {
				at += len(list)
			}
			if at > buildLimit {
				return b.fail()
			}
			if 0 <= at && at < len(list) {
				input = list[at]
			}
			bytes = max(bytes, 16*at)
		}
		if err := b.charge(bytes); err != nil {
			return err
		}
	}
	return nil
}

func deleting(b *budget, input any, arguments []any) error {
	paths, _ := arguments[0].([]any)
	if len(paths) == 0 {
		return nil
	}
	if err := expanding(2)(b, input, nil); err != nil {
		return err
	}
	return sorting(b, paths, nil)
}

// matching charges for compiling a pattern, which each evaluation does again, and for the matches: at each match,
// the evaluator counts the characters before it.
func matching(b *budget, input any, arguments []any) error {
	text, pattern, flags := asText(input), asText(arguments[0]), asText(arguments[1])
	program, known := b.patterns[pattern]
	if !known {
		cost := 200
		if strings.Contains(pattern, "{") { // repeats its operand up to a thousand times
			cost = 20_000
		}
		classes := strings.Count(pattern, `\p`) + strings.Count(pattern, `\P`) // each expands to up to a thousand ranges
		if err := b.charge(cost*len(pattern) + 32_000*classes); err != nil {
			return err
		}
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			return nil // the evaluator reports the error
		}
		compiled, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			return nil
		}
		if b.patterns == nil {
			b.patterns = map[string]int{}
		}
		program = len(compiled.Inst)
		b.patterns[pattern] = program
	}
	if err := b.work(len(text), 4*program); err != nil { // a step of the program is slower than a comparison
		return err
	}
	if arguments[2] == true || !strings.Contains(flags, "g") {
		return b.charge(1000 + 500*strings.Count(pattern, "("))
	}
	each := 1000 + 500*strings.Count(pattern, "(")
	most := buildLimit/each + 1
	places := len(text) + 1
	if places > most/16 { // with fewer places, the real number does not matter
		inline := ""
		if strings.Contains(flags, "i") {
			inline += "(?i)"
		}
		if strings.Contains(flags, "m") {
			inline += "(?s)"
		}
		compiled, err := regexp.Compile(inline + pattern)
		if err != nil {
			return nil // the evaluator reports the error
		}
		places = 2 * len(compiled.FindAllStringIndex(text, most))
	}
	if err := b.work(places, len(text)); err != nil {
		return err
	}
	return b.charge(places * each)
}

func asText(value any) string {
	text, _ := value.(string)
	return text
}

func isContainer(value any) bool {
	switch value.(type) {
	case []any, map[string]any:
		return true
	}
	return false
}

func isNumber(value any) bool {
	switch value.(type) {
	case int, float64, *big.Int, json.Number:
		return true
	}
	return false
}
