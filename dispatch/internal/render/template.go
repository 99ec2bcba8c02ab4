// Package render turns an intent into the parts of a message, by the jq
// expressions and templates of a tool.
package render

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/internal/jq"
)

// Template is text with jq placeholders: /v1/charges/{.payload.id}.
type Template []Piece

// Piece is a stretch of text, or one placeholder.
type Piece struct {
	Literal string
	Value   *jq.Expression // nil for a literal
}

// ParseTemplate reads {jq} as a placeholder, {{ and }} as braces.
func ParseTemplate(text string) (Template, error) {
	var parsed Template
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], "{{"), strings.HasPrefix(text[i:], "}}"):
			literal.WriteByte(text[i])
			i++
		case text[i] == '}':
			return nil, fmt.Errorf("a } at offset %d closes nothing; write }} for a brace", i)
		case text[i] == '{':
			value, length, err := parsePlaceholder(text[i+1:])
			if err != nil {
				return nil, fmt.Errorf("placeholder at offset %d: %w", i, err)
			}
			parsed = append(parsed, Piece{Literal: literal.String()}, Piece{Value: value})
			literal.Reset()
			i += length
		default:
			literal.WriteByte(text[i])
		}
	}
	return append(parsed, Piece{Literal: literal.String()}), nil
}

// parsePlaceholder finds the brace that closes the placeholder: the first one
// before which there stands a whole expression, since jq has braces itself.
func parsePlaceholder(text string) (value *jq.Expression, length int, err error) {
	err = errors.New("no } closes it")
	for end := range len(text) {
		if text[end] != '}' {
			continue
		}
		if value, err = jq.Compile(text[:end]); err == nil {
			return value, end + 1, nil
		}
	}
	return nil, 0, err
}

// Render fills in the values, each passed through escape.
func (t Template) Render(ctx context.Context, input any, escape func(string) (string, error)) (string, error) {
	var text strings.Builder
	for _, piece := range t {
		if piece.Value == nil {
			text.WriteString(piece.Literal)
			continue
		}
		value, err := piece.Value.Eval(ctx, input)
		if err != nil {
			return "", err
		}
		plain, err := Scalar(value)
		if err != nil {
			return "", err
		}
		escaped, err := escape(plain)
		if err != nil {
			return "", err
		}
		text.WriteString(escaped)
	}
	return text.String(), nil
}

// HasValue reports whether any of it depends on the intent.
func (t Template) HasValue() bool {
	return slices.ContainsFunc(t, func(piece Piece) bool { return piece.Value != nil })
}

// AsIs escapes nothing.
func AsIs(text string) (string, error) { return text, nil }
