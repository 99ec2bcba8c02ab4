package manifest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/internal/duration"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// longest is what anybody can promise; a configuration takes no more.
const longest = 3650 * duration.Day

// object reads an object of the extension, field by field. It goes on after a
// mistake, and at its end knows which fields nobody asked for.
type object struct {
	operation *Operation
	place     string
	values    map[string]any
	known     []string
}

// take returns the value of a field, or nil where it was not written.
func (f *object) take(name string) any {
	f.known = append(f.known, name)
	return f.values[name]
}

func (f *object) malformed(name, cure, problem string) {
	f.operation.violates(RuleMalformed, f.place+"."+name, cure, "%s", problem)
}

func (f *object) text(name string) string {
	value := f.take(name)
	if value == nil {
		return ""
	}
	text, ok := value.(string)
	switch {
	case !ok:
		f.malformed(name, "put the value in quotes", "it is no text")
	case text == "":
		f.malformed(name, "write a value, or leave it out", "it is empty")
	}
	return text
}

func (f *object) duration(name, meaning string) time.Duration {
	value := f.take(name)
	if value == nil {
		return 0
	}
	text, _ := value.(string)
	length, err := duration.Parse(text)
	problem := "%s is no definite length of time"
	switch {
	case err == nil && length > longest:
		problem = "%s is as good as for ever"
	case err == nil && length > 0:
		return length
	}
	f.operation.violates(RuleVagueDuration, f.place+"."+name,
		"write "+meaning+", with its unit, such as 24h or 7d", problem, excerpt(value))
	return 0
}

// refusal is a status with which a provider refuses a call.
func (f *object) refusal(name string) int {
	value := f.take(name)
	if value == nil {
		return 0
	}
	status, ok := wholeNumber(value)
	switch {
	case !ok:
		f.malformed(name, "write a number without quotes, such as 409", "it is no whole number")
	case status < 400 || status > 499:
		f.operation.violates(RuleImpossibleStatus, f.place+"."+name, "write the 4xx status that the provider answers, such as 409", "%d refuses nothing", status)
	}
	return status
}

// wholeNumber takes both what YAML and what JSON decode numbers to.
func wholeNumber(value any) (int, bool) {
	switch number := value.(type) {
	case int:
		return number, true
	case float64:
		return int(number), number == math.Trunc(number) && math.Abs(number) < 1e6
	default:
		return 0, false
	}
}

// child is nil where the field was not written, or is no object.
func (f *object) child(name string) *object {
	value := f.take(name)
	if value == nil {
		return nil
	}
	values, ok := value.(map[string]any)
	if !ok {
		f.malformed(name, "write its fields: "+examples[name], "it is no object")
		return nil
	}
	return &object{operation: f.operation, place: f.place + "." + name, values: values}
}

// present names the known fields that were written, well or badly.
func (f *object) present() map[string]bool {
	present := map[string]bool{}
	for _, name := range f.known {
		if f.values[name] != nil {
			present[name] = true
		}
	}
	return present
}

// end reports the fields that nobody asked for.
func (f *object) end() {
	for _, name := range slices.Sorted(maps.Keys(f.values)) {
		if !slices.Contains(f.known, name) {
			f.operation.violates(RuleUnknownField, f.place+"."+shorten(name), spelling.Suggest(name, f.known), "there is no such field")
		}
	}
}

const excerptLength = 40

func excerpt(value any) string { return fmt.Sprintf("%q", shorten(fmt.Sprint(value))) }

func shorten(text string) string {
	if characters := []rune(text); len(characters) > excerptLength {
		return string(characters[:excerptLength]) + "…"
	}
	return text
}
