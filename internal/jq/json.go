package jq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/itchyny/gojq"
)

// Decode reads one value. It keeps numbers as they were written: an id beyond
// 2^53 must not change on its way.
func Decode(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("decoding JSON: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("decoding JSON: something follows the value")
	}
	return value, nil
}

// Encode writes what an expression gave. All that one can give has a JSON form.
func Encode(value any) []byte {
	text, _ := gojq.Marshal(value)
	return text
}
