package http

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agentoutbox/drainer/internal/jq"
)

// template is text with jq placeholders: /v1/charges/{.payload.id}.
type template []piece

type piece struct {
	literal string
	value   *jq.Expression // nil for a literal
}

// parseTemplate reads {jq} as a placeholder, {{ and }} as braces.
func parseTemplate(text string) (template, error) {
	var parsed template
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
			parsed = append(parsed, piece{literal: literal.String()}, piece{value: value})
			literal.Reset()
			i += length
		default:
			literal.WriteByte(text[i])
		}
	}
	return append(parsed, piece{literal: literal.String()}), nil
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

// render fills in the values, each passed through escape.
func (t template) render(ctx context.Context, input any, escape func(string) (string, error)) (string, error) {
	var text strings.Builder
	for _, piece := range t {
		if piece.value == nil {
			text.WriteString(piece.literal)
			continue
		}
		value, err := piece.value.Eval(ctx, input)
		if err != nil {
			return "", err
		}
		plain, err := scalar(value)
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

func asIs(text string) (string, error) { return text, nil }
