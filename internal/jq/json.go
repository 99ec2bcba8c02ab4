package jq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/itchyny/gojq"
)

// maxKeptBytes is the longest text after which a decoder, and the room that it made
// for the text, is kept.
const maxKeptBytes = 64 << 10

// decoder reads one text after the other.
type decoder struct {
	text bytes.Reader
	json *json.Decoder
}

// decoders are those that have read all they were given: a new one takes more memory
// than most of what is read.
var decoders = sync.Pool{New: func() any {
	d := &decoder{}
	d.json = json.NewDecoder(&d.text)
	d.json.UseNumber()
	return d
}}

// maxDigits is the longest number, as it is written. An expression reads a number again each time
// that it compares it or calculates with it, which takes a time that grows with the square of its digits:
// one of a million digits takes seconds, and nothing can interrupt that.
const maxDigits = 1000

// ErrLongNumber says that a value is JSON, and no input for an expression.
var ErrLongNumber = errors.New("decoding JSON: a number is longer than 1000 digits")

// Decode reads one value. It keeps numbers as they were written: an id beyond
// 2^53 must not change on its way.
func Decode(text []byte) (any, error) {
	d := decoders.Get().(*decoder)
	d.text.Reset(text)
	var value any
	if err := d.json.Decode(&value); err != nil {
		return nil, fmt.Errorf("decoding JSON: %w", err)
	}
	if _, err := d.json.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("decoding JSON: something follows the value")
	}
	if len(text) <= maxKeptBytes {
		d.text.Reset(nil)
		decoders.Put(d)
	}
	if mayHoldLongNumber(text) && holdsLongNumber(value) {
		return nil, ErrLongNumber
	}
	return value, nil
}

// mayHoldLongNumber is quick. It cannot tell a number from digits in a text.
func mayHoldLongNumber[T string | []byte](text T) bool {
	run := 0
	for i := 0; len(text) > maxDigits && i < len(text); i++ {
		switch c := text[i]; {
		case '0' <= c && c <= '9', c == '.', c == 'e', c == 'E', c == '-', c == '+':
			if run++; run > maxDigits {
				return true
			}
		default:
			run = 0
		}
	}
	return false
}

func holdsLongNumber(value any) bool {
	switch value := value.(type) {
	case json.Number:
		return len(value) > maxDigits
	case []any:
		return slices.ContainsFunc(value, holdsLongNumber)
	case map[string]any:
		for _, inner := range value {
			if holdsLongNumber(inner) {
				return true
			}
		}
	}
	return false
}

// Encode writes what an expression gave. All that one can give has a JSON form.
func Encode(value any) []byte {
	text, _ := gojq.Marshal(value)
	return text
}
