package compensations

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
)

const (
	maxOctets = 1 << 20 // of a payload, as the outbox has it
	maxDepth  = 500     // jsonb recurses on a bounded stack
	maxDigits = 1000    // and writes numbers out in full
)

// isStorable reports whether the outbox takes what an expression gave. A
// payload that it refuses would be refused again at every pass.
func isStorable(value any) bool {
	room := maxOctets
	return fits(value, maxDepth, &room)
}

// fits takes what the value needs at most, as jsonb writes it, out of the room.
// It ends once the room does: an expression can give a small value that contains
// itself so often that nothing could hold it written out.
func fits(value any, depth int, room *int) bool {
	*room -= len("[], ")
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
		return fitsNumber(string(value), room)
	case *big.Int:
		return value.BitLen() < maxDigits*3 && fitsNumber(value.String(), room) // a digit is 3.3 bits
	case float64:
		return !math.IsNaN(value) && !math.IsInf(value, 0) && fitsNumber(strconv.FormatFloat(value, 'g', -1, 64), room)
	default: // an int, true, false or null
		*room -= len("-9223372036854775808")
	}
	return *room >= 0
}

func fitsText(text string, room *int) bool {
	*room -= len(`"": `)
	for _, r := range text {
		switch {
		case r == 0:
			return false
		case r < ' ':
			*room -= len(`\u0001`)
		case r == '"', r == '\\':
			*room -= len(`\"`)
		default:
			*room -= len(string(r))
		}
	}
	return *room >= 0
}

// fitsNumber counts the zeros that an exponent stands for.
func fitsNumber(number string, room *int) bool {
	digits, power, found := strings.Cut(strings.ToLower(number), "e")
	exponent, err := strconv.Atoi(power)
	if len(digits) > maxDigits || found && (err != nil || max(exponent, -exponent) > maxDigits) {
		return false
	}
	*room -= len("0.") + len(digits) + max(exponent, -exponent)
	return *room >= 0
}
