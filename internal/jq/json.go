package jq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	return value, nil
}

// Encode writes what an expression gave. All that one can give has a JSON form.
func Encode(value any) []byte {
	text, _ := gojq.Marshal(value)
	return text
}
