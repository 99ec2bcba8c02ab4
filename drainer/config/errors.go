package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Error is one mistake and where it stands. Line and Column count from 1; both
// are 0 where the mistake is the file itself.
type Error struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// InvalidError holds every mistake that was found in a file, in the order of
// the file; never an empty list.
type InvalidError struct {
	Problems []*Error
	Files    []File // that were read, or could not be: another version may do
}

// Error puts each mistake on a line of its own.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, problem := range e.Problems {
		lines[i] = problem.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.As each mistake.
func (e *InvalidError) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, problem := range e.Problems {
		errs[i] = problem
	}
	return errs
}

func invalid(problems []*Error) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	problems = slices.CompactFunc(problems, func(a, b *Error) bool { return *a == *b })
	return &InvalidError{Problems: problems}
}

// syntaxError takes the place and the message of the library's error, and
// leaves its excerpt of the file behind: the excerpt may show a secret.
func syntaxError(file string, err error) *Error {
	var located yaml.Error
	if !errors.As(err, &located) {
		return &Error{File: file, Message: "is not YAML that can be read"}
	}
	problem := &Error{File: file, Message: located.GetMessage()}
	if token := located.GetToken(); token != nil {
		problem.Line, problem.Column = token.Position.Line, token.Position.Column
	}
	return problem
}
