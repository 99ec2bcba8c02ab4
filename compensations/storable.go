package compensations

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
)

const (
	maxOctets = 16 << 20 // far more than a request carries
	maxDepth  = 500      // jsonb recurses on a bounded stack
	maxDigits = 1000     // and writes numbers out in full
)

// isStorable reports whether jsonb takes what an expression gave. A payload
// that it refuses would be refused again at every pass.
func isStorable(value any) bool {
	room := maxOctets
	return fits(value, maxDepth, &room)
}

// fits takes what the value needs, roughly, out of the room. It ends once the
// room does: an expression can give a small value that contains itself so often
// that nothing could hold it written out.
func fits(value any, depth int, room *int) bool {
	*room--
	if depth == 0 || *room < 0 {
		return false
	}
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if !fitsText(name, room) || !fits(inner, depth-1, room) {
				return false
			}
		}
	case []any:
		for _, inner := range value {
			if !fits(inner, depth-1, room) {
				return false
			}
		}
	case string:
		return fitsText(value, room)
	case json.Number:
		return fitsText(string(value), room) && !isHuge(value)
	case *big.Int:
		*room -= maxDigits
		return *room >= 0 && value.BitLen() < maxDigits*3 // a digit is 3.3 bits
	case float64:
		return !math.IsNaN(value) && !math.IsInf(value, 0)
	}
	return *room >= 0
}

func fitsText(text string, room *int) bool {
	*room -= len(text)
	return *room >= 0 && !strings.ContainsRune(text, 0)
}

func isHuge(number json.Number) bool {
	digits, power, found := strings.Cut(strings.ToLower(string(number)), "e")
	exponent, err := strconv.Atoi(power)
	return len(digits) > maxDigits || found && (err != nil || exponent > maxDigits || exponent < -maxDigits)
}
