package storable

import "strings"

const (
	maxReference = 255 // characters

	replacement = "\ufffd"
)

// Text replaces what a text column refuses: NUL, and octets that are no UTF-8.
func Text(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, replacement), "\x00", replacement)
}

// Reference is a provider's own id of an effect, cut to what a person can use.
func Reference(text string) string { return First(text, maxReference) }

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
