package evidence

import (
	"bytes"
	"encoding/json"
	"mime"
	"strconv"
	"strings"
	"unicode"
)

// The limits of JSON that is stored as JSON. jsonb, and programs that read it, recurse on a bounded stack and write
// numbers out in full.
const (
	maxDepth  = 500
	maxDigits = 1000    // digits of one number
	maxZeros  = 1 << 20 // zeros that all exponents together stand for
)

// JSON makes a response body fit for a jsonb column. Valid JSON stays as it is, except for the few things that jsonb
// refuses. Anything else becomes a JSON string.
func JSON(body []byte, contentType string) json.RawMessage {
	if len(body) == 0 {
		return nil
	}
	if (DeclaresJSON(contentType) || opensLikeJSON(body)) && json.Valid(body) {
		if cleaned, ok := cleanJSON(bytes.ToValidUTF8(body, []byte(replacement))); ok {
			return cleaned
		}
	}
	text, _ := json.Marshal(Text(string(body))) // a string always has a JSON form
	return text
}

// DeclaresJSON reports whether a media type is JSON or based on it (+json).
func DeclaresJSON(contentType string) bool {
	if contentType == "application/json" { // the usual case, without the slow parsing
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// opensLikeJSON recognises JSON that a provider sends with another content type.
func opensLikeJSON(body []byte) bool {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	return len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[')
}

// cleanJSON replaces escaped NULs and lone surrogates in valid JSON. It returns false for nesting and numbers beyond
// the limits.
func cleanJSON(text []byte) (json.RawMessage, bool) {
	cleaned := make([]byte, 0, len(text))
	depth, zeros, inString := 0, 0, false
	for i := 0; i < len(text); {
		width := 1
		switch c := text[i]; {
		case inString && c == '\\':
			width = escapeWidth(text[i:])
			if width == 0 {
				cleaned = append(cleaned, replacement...)
				i += len(`\u0000`)
				continue
			}
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return nil, false
			}
		case c == '}' || c == ']':
			depth--
		case c == '-' || '0' <= c && c <= '9':
			number := leadingNumber(text[i:])
			width = len(number)
			zeros += zerosOf(number)
			if width > maxDigits || zeros > maxZeros {
				return nil, false
			}
		}
		cleaned = append(cleaned, text[i:i+width]...)
		i += width
	}
	return cleaned, true
}

// escapeWidth returns the length of the escape at the start of text, or of both halves of a surrogate pair. It
// returns 0 for an escape that must be replaced.
func escapeWidth(text []byte) int {
	if text[1] != 'u' {
		return 2
	}
	switch unit := codeUnit(text); {
	case unit == 0, isLow(unit):
		return 0
	case isHigh(unit):
		if rest := text[6:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' && isLow(codeUnit(rest)) {
			return 12
		}
		return 0
	}
	return 6
}

// codeUnit reads \uXXXX. Valid JSON always has four digits there.
func codeUnit(escape []byte) uint64 {
	unit, _ := strconv.ParseUint(string(escape[2:6]), 16, 16)
	return unit
}

func isHigh(unit uint64) bool { return unit >= 0xd800 && unit <= 0xdbff }
func isLow(unit uint64) bool  { return unit >= 0xdc00 && unit <= 0xdfff }

func leadingNumber(text []byte) []byte {
	return text[:len(text)-len(bytes.TrimLeft(text, "+-.0123456789eE"))]
}

// zerosOf returns how many zeros the exponent of a number stands for.
func zerosOf(number []byte) int {
	_, power, found := bytes.Cut(bytes.ToLower(number), []byte("e"))
	if !found {
		return 0
	}
	exponent, err := strconv.Atoi(string(power))
	if err != nil || max(exponent, -exponent) > maxDigits {
		return maxZeros + 1
	}
	return max(exponent, -exponent)
}

const replacement = "\ufffd"

// Text replaces the characters that a text column refuses: NUL, and bytes that are not UTF-8. It does not cut the
// text: the half of a secret would not be recognised.
func Text(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, replacement), "\x00", replacement)
}

// Line is Text on one line. It escapes characters that a terminal would execute.
func Line(text string) string {
	var line strings.Builder
	for _, r := range Text(text) {
		if unicode.IsPrint(r) {
			line.WriteRune(r)
		} else {
			line.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return line.String()
}

// First is Text, cut to a number of characters.
func First(text string, length int) string {
	text = Text(text)
	for i := range text {
		if length == 0 {
			return text[:i]
		}
		length--
	}
	return text
}
