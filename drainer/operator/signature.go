package operator

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Signature is who changes something, and why. Both are kept for good, in the
// history of every intent that is changed.
type Signature struct {
	Operator string
	Reason   string
}

// ErrUnsigned says that a change has no usable name or reason.
var ErrUnsigned = errors.New("a change needs a name and a reason")

// Validate reports what is missing, or is not one line of text.
func (s Signature) Validate() error {
	return errors.Join(validateLine("the operator's name", s.Operator), validateLine("the reason", s.Reason))
}

func validateLine(what, text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("%w: %s is empty", ErrUnsigned, what)
	case !isLine(text):
		return fmt.Errorf("%w: %s is not one line of plain text", ErrUnsigned, what)
	}
	return nil
}

// isLine also knows the ends of a line that are no control characters.
func isLine(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp)
	})
}

// worker is how the history names an operator.
func (s Signature) worker() string { return "operator:" + s.Operator }
