package smtp

import (
	"context"
	"fmt"
	"net/mail"

	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

// addressees is one of the fields of addresses, compiled.
type addressees []render.Template

func parseAddressees(field string, texts []string) (addressees, error) {
	var parsed addressees
	for i, text := range texts {
		template, err := render.ParseTemplate(text)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		if !template.HasValue() {
			if _, err := parseAddress(text); err != nil {
				return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
			}
		}
		parsed = append(parsed, template)
	}
	return parsed, nil
}

func (a addressees) render(ctx context.Context, input any) ([]*mail.Address, error) {
	var all []*mail.Address
	for _, template := range a {
		texts, err := textsOf(ctx, template, input)
		if err != nil {
			return nil, err
		}
		for _, text := range texts {
			if text == "" {
				continue
			}
			address, err := parseAddress(text)
			if err != nil {
				return nil, err
			}
			all = append(all, address)
		}
	}
	return all, nil
}

// textsOf is what an entry comes to. Only a value that is the whole entry may
// be a list: inside a text it could add recipients that nobody meant.
func textsOf(ctx context.Context, template render.Template, input any) ([]string, error) {
	expression := alone(template)
	if expression == nil {
		text, err := template.Render(ctx, input, render.AsIs)
		return []string{text}, err
	}
	value, err := expression.Eval(ctx, input)
	if err != nil || value == nil {
		return nil, err
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	var texts []string
	for _, entry := range list {
		text, err := render.Scalar(entry)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// alone is the expression of a template that is one placeholder and nothing
// else, or nil.
func alone(template render.Template) (only *jq.Expression) {
	for _, piece := range template {
		if piece.Literal != "" || piece.Value != nil && only != nil {
			return nil
		}
		if piece.Value != nil {
			only = piece.Value
		}
	}
	return only
}
