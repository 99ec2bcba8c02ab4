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

// maxKeptBytes is the longest text after which a decoder is kept with its buffer.
const maxKeptBytes = 64 << 10

// decoder reads one text after another.
type decoder struct {
	text bytes.Reader
	json *json.Decoder
}

// decoders are idle. They are reused because a new one takes more memory than most texts.
var decoders = sync.Pool{New: func() any {
	d := &decoder{}
	d.json = json.NewDecoder(&d.text)
	d.json.UseNumber()
	return d
}}

// maxDigits bounds the length of a number as text. An expression parses a number again each time that it compares
// it or calculates with it. That time grows with the square of the digits: for a million digits it is seconds, and
// cannot be interrupted.
const maxDigits = 1000

// ErrLongNumber says that a value is JSON, but not allowed as the input of an expression.
var ErrLongNumber = errors.New("decoding JSON: a number is longer than 1000 digits")

// Decode reads one value. It keeps numbers as text: an id beyond 2^53 must not change.
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

// mayHoldLongNumber is a quick test. It does not distinguish a number from digits in a string.
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

// Encode writes the result of an expression. Every result has a JSON form.
func Encode(value any) []byte {
	text, _ := gojq.Marshal(value)
	return text
}
