package jq

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/itchyny/gojq"
)

// Decode keeps numbers as they were written: an id beyond 2^53 must not change
// on its way.
func Decode(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("decoding JSON: %w", err)
	}
	return value, nil
}

// Encode writes what an expression gave.
func Encode(value any) ([]byte, error) {
	text, err := gojq.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("writing a jq result: %w", err)
	}
	return text, nil
}
