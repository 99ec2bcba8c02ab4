package dispatchtest

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/big"
	"slices"
	"strings"
)

// SameJSON reports whether two JSON texts have the same value. Numbers are
// compared as decimals of any size, never as floating point; of a name that
// comes twice the last value counts, as in jsonb. What is no JSON is like
// nothing else.
func SameJSON(one, other []byte) bool {
	return json.Valid(one) && json.Valid(other) && sameValue(exactly(one), exactly(other))
}

// exactly decodes valid JSON.
func exactly(text []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		panic(err)
	}
	return value
}

func sameValue(one, other any) bool {
	switch one := one.(type) {
	case map[string]any:
		other, is := other.(map[string]any)
		return is && maps.EqualFunc(one, other, sameValue)
	case []any:
		other, is := other.([]any)
		return is && slices.EqualFunc(one, other, sameValue)
	case json.Number:
		other, is := other.(json.Number)
		return is && decimalOf(one) == decimalOf(other)
	}
	return one == other
}

// decimal is a number as the digits behind "0.", which neither begin nor end
// with a zero, times a power of ten. Zero has no digits.
type decimal struct {
	negative        bool
	digits, power10 string
}

func decimalOf(number json.Number) decimal {
	text, isNegative := strings.CutPrefix(strings.ToLower(string(number)), "-")
	mantissa, power, _ := strings.Cut(text, "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exponent, isGiven := new(big.Int).SetString(strings.TrimPrefix(power, "+"), 10)
	if !isGiven {
		exponent = new(big.Int)
	}
	exponent.Add(exponent, big.NewInt(int64(len(whole))))

	digits := strings.TrimLeft(whole+fraction, "0")
	exponent.Sub(exponent, big.NewInt(int64(len(whole)+len(fraction)-len(digits))))
	digits = strings.TrimRight(digits, "0")
	if digits == "" {
		return decimal{}
	}
	return decimal{isNegative, digits, exponent.String()}
}
