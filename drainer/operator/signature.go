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
	case !utf8.ValidString(text), strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("%w: %s is not one line of plain text", ErrUnsigned, what)
	}
	return nil
}

// worker is how the history names an operator.
func (s Signature) worker() string { return "operator:" + s.Operator }
