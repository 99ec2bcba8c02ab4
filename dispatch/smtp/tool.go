package smtp

import (
	"errors"
	"fmt"
	"maps"
	"net/mail"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// tool is Tool, checked and compiled.
type tool struct {
	from        *mail.Address
	to, cc, bcc addressees
	replyTo     addressees
	allowed     allowed
	subject     render.Template // nil where there is none
	text, html  render.Template // nil where the mail is not written so
	headers     map[string]render.Template
	headerNames []string // in the order in which they are written
}

func newTool(block dispatch.Block, from *mail.Address) (*tool, error) {
	var settings Tool
	if err := blocks.Decode(block, &settings); err != nil {
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
	t.headerNames = slices.Sorted(maps.Keys(texts))
	for _, name := range t.headerNames {
		template, err := render.ParseTemplate(texts[name])
		if err != nil {
			problems = append(problems, fmt.Errorf("headers.%s: %w", name, err))
		}
		problems = append(problems, checkHeaderName(name))
		t.headers[name] = template
	}
	return errors.Join(problems...)
}
