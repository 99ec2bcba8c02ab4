package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// errUnresolved stands for a reference or an alias that was noted when the
// file was read.
var errUnresolved = errors.New("a value in this block is missing")

// adapterBlock hands an adapter the piece of the file that it alone
// understands.
type adapterBlock struct {
	reader *reader
	field  field
}

var _ dispatch.Block = adapterBlock{}

// Decode notes every mistake in the reader and returns them, so an adapter
// needs only to pass its error on.
func (b adapterBlock) Decode(into any) error {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("a block is decoded into a pointer, not into %T", into)
	}
	problems, faults := len(b.reader.problems), len(b.reader.faulty)
	b.reader.decode(b.field, target.Elem())
	if noted := b.reader.problems[problems:]; len(noted) > 0 {
		return &InvalidError{Problems: noted}
	}
	if len(b.reader.faulty) > faults {
		return errUnresolved
	}
	return nil
}

// complaint is a mistake that an adapter found after decoding.
type complaint struct {
	tool string // the operation it is about; empty for the provider's settings
	text string
}

// complaints takes joined errors apart, keeps what was wrapped around them,
// and leaves out what is already noted.
func complaints(err error) []complaint {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []complaint
		for _, part := range joined.Unwrap() {
			all = append(all, complaints(part)...)
		}
		return all
	}
	if tool, ok := err.(*dispatch.ToolError); ok { //nolint:errorlint // the tree is walked node by node
		all := complaints(tool.Err)
		for i := range all {
			all[i].tool = tool.Operation
		}
		return all
	}
	if cause := errors.Unwrap(err); cause != nil {
		prefix := strings.TrimSuffix(err.Error(), cause.Error())
		all := complaints(cause)
		for i := range all {
			all[i].text = prefix + all[i].text
		}
		return all
	}
	if err == nil || errors.Is(err, errUnresolved) || errors.As(err, new(*Error)) {
		return nil
	}
	return []complaint{{text: strings.ReplaceAll(err.Error(), "\n", "; ")}}
}
