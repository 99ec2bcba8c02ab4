package conformance

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/goccy/go-yaml"
)

const canary = "canary-5f1c"

// canaries stand where a value was: as words, and as what no parser takes.
var canaries = []string{canary, canary + " {(%zz:// \\"}

// building asks how New takes what stands in the configuration.
func building(b *bench) []Check {
	checks := []Check{
		b.decodes("settings", b.Settings, b.subject.Kind.Settings),
		b.decodes("tool", b.Tool, b.subject.Kind.Tool),
	}
	checks = append(checks, b.connectsToNothing()...)
	return append(checks,
		b.refusesUnknown("unknown setting", func(c *Counterpart) *string { return &c.Settings }),
		b.refusesUnknown("unknown setting of a tool", func(c *Counterpart) *string { return &c.Tool }),
		b.complainsDiscreetly("broken settings", func(c *Counterpart) *string { return &c.Settings }),
		b.complainsDiscreetly("broken tool", func(c *Counterpart) *string { return &c.Tool }),
	)
}

// decodes asks whether the published shape is the real one.
func (b *bench) decodes(name, text string, shape any) Check {
	if shape == nil {
		return found(name+" shape", false, "nil", "a zero value of the block", "without it the configuration schema does not know the block")
	}
	err := Block(text).Decode(reflect.New(reflect.TypeOf(shape)).Interface())
	return found(name+" shape", err == nil, words(err, "decoded"), "what the counterpart's block says", "Kind must name the type that New decodes")
}

func (b *bench) connectsToNothing() []Check {
	if b.subject.Cannot[Unreachable] == "" {
		b.Enter(Unreachable)
	}
	err := b.build(b.subject.patience())
	checks := []Check{
		found("built while nobody is there", err == nil, words(err, "built"), "an adapter", "connect at the first Dispatch; drainer config validate builds every adapter"),
		found("connects to nothing", b.network.dials.Load() == 0, fmt.Sprintf("%d connections tried", b.network.dials.Load()), "none", "connect at the first Dispatch"),
	}
	if err != nil {
		return checks
	}
	b.Enter(Answering)
	return append(checks, b.recovery(), closed(b.close()), left(b.owner.awaitNone(b.subject.soon())))
}

// with builds from blocks of which one was changed, and closes the adapter.
func (b *bench) with(choose func(*Counterpart) *string, text string) error {
	changed := &bench{Counterpart: b.Counterpart, subject: b.subject, network: &network{}, owner: newOwner(), run: b.run}
	*choose(&changed.Counterpart) = text
	if err := changed.build(b.subject.patience()); err != nil {
		return err
	}
	return changed.close()
}

func (b *bench) refusesUnknown(name string, choose func(*Counterpart) *string) Check {
	const expected, advice = "an error", "decode every block strictly, even an empty one"
	fields, err := fieldsOf(*choose(&b.Counterpart))
	if err != nil {
		return found(name, false, "the counterpart's block is no mapping", expected, "")
	}
	fields["no_such_field_5f1c"] = canary
	err = b.with(choose, written(fields))
	return found(name, err != nil, words(err, "accepted"), expected, advice)
}

// complainsDiscreetly breaks one value after the other. New may accept it; if
// not, it must not repeat it.
func (b *bench) complainsDiscreetly(name string, choose func(*Counterpart) *string) Check {
	const expected = "errors that repeat no value"
	fields, err := fieldsOf(*choose(&b.Counterpart))
	if err != nil {
		return found(name, false, "the counterpart's block is no mapping", expected, "")
	}
	broken, indiscreet := 0, 0
	eachBroken(fields, func() {
		broken++
		err := b.with(choose, written(fields))
		if err != nil && containsAny(err.Error(), append([]string{canary}, b.Secrets...)) {
			indiscreet++
		}
	})
	return found(name, indiscreet == 0, fmt.Sprintf("%d blocks broken, %d values repeated", broken, indiscreet), expected, "name the field, and what is wrong with it; wrapped errors of parsers repeat their input")
}

// eachBroken puts canaries where one scalar after the other was.
func eachBroken(value any, try func()) {
	replace := func(part any, set func(any)) {
		switch part.(type) {
		case map[string]any, []any:
			eachBroken(part, try)
		default:
			for _, canary := range canaries {
				set(canary)
				try()
			}
			set(part)
		}
	}
	switch value := value.(type) {
	case map[string]any:
		for name, part := range value {
			replace(part, func(now any) { value[name] = now })
		}
	case []any:
		for i, part := range value {
			replace(part, func(now any) { value[i] = now })
		}
	}
}

// fieldsOf is never nil, even for a block that was left out.
func fieldsOf(text string) (map[string]any, error) {
	fields := map[string]any{}
	err := yaml.Unmarshal([]byte(text), &fields)
	if fields == nil {
		fields = map[string]any{}
	}
	return fields, err
}

// written is JSON, which YAML contains and which needs no care with quotes.
func written(fields map[string]any) string {
	text, err := json.Marshal(fields)
	if err != nil {
		return ""
	}
	return string(text)
}

// words show an error of New, which is to repeat no value.
func words(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return err.Error()
}
