package jq

import (
	"encoding/json"
	"errors"
	"math/big"
)

// resultLimit bounds the result of an expression, in bytes of its strings and
// numbers and a few for everything else: a small payload can be made into a
// result of any size.
const resultLimit = 8 << 20

const overhead = 16 // bytes, about, of a value that is neither

// ErrTooLarge says that a result is beyond what any request carries.
var ErrTooLarge = errors.New("jq gave more than 8 MiB")

// measure takes the size of a value off what is left, and stops below 0.
func measure(value any, left int) int {
	left -= overhead
	switch value := value.(type) {
	case string:
		return left - len(value)
	case json.Number:
		return left - len(value)
	case *big.Int:
		return left - value.BitLen()/8
	case []any:
		for _, element := range value {
			if left < 0 {
				return left
			}
			left = measure(element, left)
		}
	case map[string]any:
		for name, element := range value {
			if left < 0 {
				return left
			}
			left = measure(element, left-len(name))
		}
	}
	return left
}
