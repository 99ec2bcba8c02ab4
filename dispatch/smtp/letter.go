package smtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"net/mail"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

var errNobody = errors.New("the mail has no recipient")

// letter is what one dispatch offers: the same on every attempt.
type letter struct {
	from    string
	to      []string
	content []byte // without its Date, which is when it is sent
}

func (t *tool) render(ctx context.Context, request dispatch.Request) (letter, error) {
	input, err := render.Input(request)
	if err != nil {
		return letter{}, err
	}
	people, err := t.people(ctx, input)
	if err != nil {
		return letter{}, err
	}
	envelope, err := t.envelope(people)
	if err != nil {
		return letter{}, err
	}
	var content bytes.Buffer
	if err := t.writeHeaders(ctx, &content, input, people, request.IdempotencyKey); err != nil {
		return letter{}, err
	}
	parts, err := t.parts(ctx, input)
	if err != nil {
		return letter{}, err
	}
	if err := writeBody(&content, parts, boundaryFor(request.IdempotencyKey)); err != nil {
		return letter{}, err
	}
	return letter{from: t.from.Address, to: envelope, content: content.Bytes()}, nil
}

// people are all who have to do with one mail, besides its sender.
type people struct{ to, cc, bcc, replyTo []*mail.Address }

func (t *tool) people(ctx context.Context, input any) (p people, err error) {
	for _, field := range []struct {
		from addressees
		into *[]*mail.Address
	}{{t.to, &p.to}, {t.cc, &p.cc}, {t.bcc, &p.bcc}, {t.replyTo, &p.replyTo}} {
		if *field.into, err = field.from.render(ctx, input); err != nil {
			return people{}, err
		}
	}
	return p, nil
}

// envelope is whom the mail goes to, each once.
func (t *tool) envelope(p people) ([]string, error) {
	var all []string
	for _, recipient := range slices.Concat(p.to, p.cc, p.bcc) {
		if !t.allowed.allows(recipient.Address) {
			return nil, errNotAllowed
		}
		if !slices.Contains(all, recipient.Address) {
			all = append(all, recipient.Address)
		}
	}
	if len(all) == 0 {
		return nil, errNobody
	}
	return all, nil
}

func (t *tool) writeHeaders(ctx context.Context, out *bytes.Buffer, input any, p people, key string) error {
	_, domain := split(t.from.Address)
	fmt.Fprintf(out, "Message-ID: <%s@%s>\r\n", key, domain) // in one line, as many programs expect it
	problems := []error{
		writeAddresses(out, "From", []*mail.Address{t.from}),
		writeAddresses(out, "To", p.to),
		writeAddresses(out, "Cc", p.cc),
		writeAddresses(out, "Reply-To", p.replyTo),
	}
	if t.subject != nil {
		problems = append(problems, writeRendered(ctx, out, input, "Subject", t.subject))
	}
	for _, name := range t.headerNames {
		problems = append(problems, writeRendered(ctx, out, input, name, t.headers[name]))
	}
	out.WriteString("MIME-Version: 1.0\r\n")
	return errors.Join(problems...)
}

func writeRendered(ctx context.Context, out *bytes.Buffer, input any, name string, template render.Template) error {
	text, err := template.Render(ctx, input, render.AsIs)
	if err != nil {
		return err
	}
	return writeText(out, name, text)
}

func (t *tool) parts(ctx context.Context, input any) ([]part, error) {
	var parts []part
	if t.text != nil {
		text, err := t.text.Render(ctx, input, render.AsIs)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{"text/plain; charset=utf-8", text})
	}
	if t.html != nil {
		escape := escapeHTML
		if alone(t.html) != nil {
			escape = render.AsIs
		}
		text, err := t.html.Render(ctx, input, escape)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{"text/html; charset=utf-8", text})
	}
	return parts, nil
}

func escapeHTML(text string) (string, error) { return html.EscapeString(text), nil }
