package smtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"maps"
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

// tool is Tool, checked and compiled.
type tool struct {
	from             *mail.Address
	to, cc, bcc      addressees
	replyTo          addressees
	allowed          allowed
	subject          render.Template
	text, html       render.Template // nil where the mail is not written so
	headers          map[string]render.Template
	sortedHeaderName []string
}

func newTool(block dispatch.Block, from *mail.Address) (*tool, error) {
	var settings Tool
	if err := decode(block, &settings); err != nil {
		return nil, err
	}
	t := &tool{from: from}
	return t, errors.Join(
		t.compileSender(settings.From),
		t.compileRecipients(settings),
		t.compileContent(settings),
		t.compileHeaders(settings.Headers),
	)
}

func (t *tool) compileSender(text string) error {
	sender, err := parseSender(text)
	if sender != nil {
		t.from = sender
	}
	if err == nil && t.from == nil {
		return errors.New("from is missing, here and in the provider's settings")
	}
	return err
}

func (t *tool) compileRecipients(settings Tool) error {
	var problems []error
	compile := func(field string, texts []string) addressees {
		parsed, err := parseAddressees(field, texts)
		problems = append(problems, err)
		return parsed
	}
	t.to = compile("to", settings.To)
	t.cc = compile("cc", settings.CC)
	t.bcc = compile("bcc", settings.BCC)
	t.replyTo = compile("reply_to", settings.ReplyTo)
	if len(settings.To)+len(settings.CC)+len(settings.BCC) == 0 {
		problems = append(problems, errors.New("to, cc and bcc are all missing"))
	}
	var err error
	t.allowed, err = parseAllowed(settings.AllowRecipients)
	return errors.Join(append(problems, err)...)
}

func (t *tool) compileContent(settings Tool) error {
	if settings.Text == "" && settings.HTML == "" {
		return errors.New("text and html are both missing")
	}
	var problems []error
	compile := func(field, text string) render.Template {
		if text == "" {
			return nil
		}
		template, err := render.ParseTemplate(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", field, err))
		}
		return template
	}
	t.subject = compile("subject", settings.Subject)
	t.text = compile("text", settings.Text)
	t.html = compile("html", settings.HTML)
	return errors.Join(problems...)
}

func (t *tool) compileHeaders(texts map[string]string) error {
	var problems []error
	t.headers = make(map[string]render.Template, len(texts))
	t.sortedHeaderName = slices.Sorted(maps.Keys(texts))
	for _, name := range t.sortedHeaderName {
		template, err := render.ParseTemplate(texts[name])
		if err != nil {
			problems = append(problems, fmt.Errorf("headers.%s: %w", name, err))
		}
		problems = append(problems, checkHeaderName(name))
		t.headers[name] = template
	}
	return errors.Join(problems...)
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
	for _, name := range t.sortedHeaderName {
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
