package smtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

var errNobody = errors.New("the mail has no recipient")

// letter is the mail of one dispatch. It is the same on every attempt.
type letter struct {
	from    string
	to      []string
	content []byte // without the Date header, which is added when the mail is sent
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

// people are the addresses of one mail, except its sender.
type people struct{ to, cc, bcc, replyTo []*mail.Address }

func (t *tool) people(ctx context.Context, input any) (p people, err error) {
	for _, field := range []struct {
		name string
		from addressees
		into *[]*mail.Address
	}{{"to", t.to, &p.to}, {"cc", t.cc, &p.cc}, {"bcc", t.bcc, &p.bcc}, {"reply_to", t.replyTo, &p.replyTo}} {
		if *field.into, err = field.from.render(ctx, input, field.name); err != nil {
			return people{}, err
		}
	}
	return p, nil
}

// envelope returns the recipients of the mail, each once.
func (t *tool) envelope(p people) ([]string, error) {
	var all []string
	for _, recipient := range slices.Concat(p.to, p.cc, p.bcc) {
		if !t.allowed.allows(recipient.Address) {
			return nil, render.Because("allow_recipients", errNotAllowed)
		}
		if !slices.Contains(all, recipient.Address) {
			all = append(all, recipient.Address)
		}
	}
	if len(all) == 0 {
		return nil, render.Because("to, cc and bcc", errNobody)
	}
	return all, nil
}

func (t *tool) writeHeaders(ctx context.Context, out *bytes.Buffer, input any, p people, key string) error {
	_, domain := split(t.from.Address)
	fmt.Fprintf(out, "Message-ID: <%s@%s>\r\n", key, domain) // not folded, since many programs expect it in one line
	problems := []error{
		writeAddresses(out, "From", []*mail.Address{t.from}),
		writeAddresses(out, "To", p.to),
		writeAddresses(out, "Cc", p.cc),
		writeAddresses(out, "Reply-To", p.replyTo),
	}
	if t.subject != nil {
		problems = append(problems, writeRendered(ctx, out, input, "subject", "Subject", t.subject))
	}
	for _, name := range t.headerNames {
		problems = append(problems, writeRendered(ctx, out, input, "headers."+name, name, t.headers[name]))
	}
	out.WriteString("MIME-Version: 1.0\r\n")
	return errors.Join(problems...)
}

func writeRendered(ctx context.Context, out *bytes.Buffer, input any, setting, name string, template render.Template) error {
	text, err := template.Render(ctx, input, render.AsIs)
	if err != nil {
		return render.In(setting, err)
	}
	if err := writeText(out, name, text); err != nil {
		return render.Because(setting, err)
	}
	return nil
}

func (t *tool) parts(ctx context.Context, input any) ([]part, error) {
	var parts []part
	if t.text != nil {
		text, err := t.text.Render(ctx, input, render.AsIs)
		if err != nil {
			return nil, render.In("text", err)
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
			return nil, render.In("html", err)
		}
		parts = append(parts, part{"text/html; charset=utf-8", text})
	}
	return parts, nil
}

func escapeHTML(text string) (string, error) { return html.EscapeString(text), nil }

// addressees is one of the address fields, compiled.
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

func (a addressees) render(ctx context.Context, input any, setting string) ([]*mail.Address, error) {
	var all []*mail.Address
	for i, template := range a {
		setting := fmt.Sprintf("%s[%d]", setting, i)
		texts, err := textsOf(ctx, template, input, setting)
		if err != nil {
			return nil, render.In(setting, err)
		}
		for _, text := range texts {
			if text == "" {
				continue
			}
			address, err := parseAddress(text)
			if err != nil {
				return nil, render.Because(setting, err)
			}
			all = append(all, address)
		}
	}
	return all, nil
}

// textsOf renders an entry. Only a value that is the whole entry may be a list. As a part of a text, a list could
// add recipients that the tool did not intend.
func textsOf(ctx context.Context, template render.Template, input any, setting string) ([]string, error) {
	expression := alone(template)
	if expression == nil {
		text, err := template.Render(ctx, input, render.AsIs)
		return []string{text}, err
	}
	value, err := render.Value(ctx, setting, expression, input)
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
			return nil, render.Mistyped(expression, input, entry)
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// alone returns the expression of a template that consists of a single placeholder, or nil for any other template.
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

const (
	foldAt  = 76  // RFC 2047, 2, for lines with encoded words; RFC 5322 recommends 78 for all lines
	maxLine = 998 // RFC 5322, 2.1.1
)

var errHeader = errors.New("a header holds a control character, or a word that no line can hold")

// writeText writes a header of free text. It refuses line ends, which would begin another header.
func writeText(out *bytes.Buffer, name, text string) error {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errHeader
	}
	return writeFolded(out, name, mime.QEncoding.Encode("utf-8", text))
}

// writeAddresses writes a header of addresses, or nothing if there are none.
func writeAddresses(out *bytes.Buffer, name string, addresses []*mail.Address) error {
	if len(addresses) == 0 {
		return nil
	}
	texts := make([]string, len(addresses))
	for i, address := range addresses {
		texts[i] = address.String()
	}
	return writeFolded(out, name, strings.Join(texts, ", "))
}

// writeFolded ends a line before a word that would make it too long, unless that line would contain only blanks.
// emersion/go-message v0.18.2 writes a line of up to 998 bytes if the first word alone is too long, as encoded words
// often are.
func writeFolded(out *bytes.Buffer, name, value string) error {
	line := name + ":"
	isBlank := false
	for _, word := range strings.Split(strings.TrimSpace(value), " ") {
		if !isBlank && word != "" && len(line)+1+len(word) > foldAt {
			out.WriteString(line + "\r\n")
			line, isBlank = "", true
		}
		line += " " + word
		isBlank = isBlank && word == ""
		if len(line) > maxLine {
			return errHeader
		}
	}
	out.WriteString(line + "\r\n")
	return nil
}

// checkHeaderName accepts the names of RFC 5322, 2.2, except for headers that have other sources.
func checkHeaderName(name string) error {
	switch lower := strings.ToLower(name); {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r >= 0x7f }):
		return errors.New("headers: a name is not a header name")
	case own[lower] || strings.HasPrefix(lower, "content-") || strings.HasPrefix(lower, "resent-"):
		return fmt.Errorf("headers: %s is set by the adapter itself, or has a setting of its own", name)
	}
	return nil
}

// own are the headers that the adapter or a mail server on the way sets.
var own = map[string]bool{
	"from": true, "sender": true, "to": true, "cc": true, "bcc": true, "reply-to": true, "subject": true,
	"date": true, "message-id": true, "mime-version": true, "return-path": true, "received": true,
}

const quotedPrintable = "quoted-printable"

// part is one version of the mail's text.
type part struct{ contentType, text string }

// writeBody writes the parts, from the plainest to the richest (RFC 2046, 5.1.4), with the headers that they need.
// There is at least one part.
func writeBody(out *bytes.Buffer, parts []part, boundary string) error {
	if len(parts) == 1 {
		fmt.Fprintf(out, "Content-Type: %s\r\nContent-Transfer-Encoding: %s\r\n\r\n", parts[0].contentType, quotedPrintable)
		return writeEncoded(out, parts[0].text)
	}
	alternative := mime.FormatMediaType("multipart/alternative", map[string]string{"boundary": boundary})
	if err := writeFolded(out, "Content-Type", alternative); err != nil {
		return err
	}
	out.WriteString("\r\n")
	writer := multipart.NewWriter(out)
	if err := writer.SetBoundary(boundary); err != nil {
		return err
	}
	for _, part := range parts {
		one, err := writer.CreatePart(textproto.MIMEHeader{
			"Content-Type":              {part.contentType},
			"Content-Transfer-Encoding": {quotedPrintable},
		})
		if err != nil {
			return err
		}
		if err := writeEncoded(one, part.text); err != nil {
			return err
		}
	}
	return writer.Close()
}

// lineEnds makes all line ends the same. After a single carriage return, the encoder would lose the next line feed.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

func writeEncoded(out io.Writer, text string) error {
	writer := quotedprintable.NewWriter(out)
	if _, err := lineEnds.WriteString(writer, text); err != nil {
		return err
	}
	return writer.Close()
}

// boundaryFor returns a boundary that cannot occur in a body: in quoted-printable, a hexadecimal digit or the end of
// the line follows each =.
func boundaryFor(key string) string { return "=_" + key }
