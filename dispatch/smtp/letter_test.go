package smtp

import (
	"encoding/json"
	"io"
	"maps"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// For any text of a model, a mail has no header but its own, goes to allowed recipients only, and contains exactly
// that text.
func FuzzALetterSaysWhatItIsToldAndNoMore(f *testing.F) {
	for _, seed := range [][4]string{
		{"Ada", "ada@example.com", "Invoice 442", "Dear Ada,\n.\nbye"},
		{"Ada\r\nBcc: evil@example.net", "ada@example.com>, <evil@example.net", "Hi\r\nBcc: evil@example.net\r\n\r\nBody", "a\r\n.\r\nMAIL FROM:<x>\r\n"},
		{"=?utf-8?q?=0D=0ABcc:_evil=40example.net?=", "\"a b\"@example.com", "=?utf-8?q?=0D=0A?=", "=0D=0A\r--=_idem_v1"},
		{"Ä\"<>,;:\\", "a@EXAMPLE.com", strings.Repeat("Größe ", 300), strings.Repeat("ü", 2000)},
		{"", "", "", ""},
		{"\x00", "a@example.com\x00", "\x00", "\x00"},
		{"x", "a%evil.net@example.com", "\u2028\u0085\u202e", "\u2028\x7f\x85"},
		{"x", "a@example.com.evil.net", strings.Repeat("x", 2000), "\r\r\n\n"},
		{"x", "group: a@example.com, b@evil.net;", "  spaces  at  the ends  ", " \t\n"},
		{"x", "@example.com", "tab\tbed", ""},
		{"x", "a@[127.0.0.1]", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	adapter, err := New(dispatch.Spec{
		Settings: dispatchtest.Block("server: localhost:25\nsecurity: none\nfrom: Billing <billing@example.org>"),
		Tools: map[string]dispatch.ToolSpec{"send": {Class: dispatch.NonIdempotent, Settings: dispatchtest.Block(`
to: ["{.payload.name} <{.payload.to}>"]
bcc: ["{.payload.to}"]
reply_to: ["{.payload.to}"]
allow_recipients: ["@example.com"]
subject: "{.payload.subject}"
text: "{.payload.text}"
headers: {X-Note: "{.payload.subject}"}`)}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, name, to, subject, text string) {
		payload, err := json.Marshal(map[string]string{"name": name, "to": to, "subject": subject, "text": text})
		if err != nil {
			t.Fatal(err)
		}
		letter, err := adapter.tools["send"].render(t.Context(), dispatch.Request{IdempotencyKey: "idem_v1_1", Payload: payload})
		if err != nil {
			return
		}
		var asked struct{ Subject, Text string }
		if err := json.Unmarshal(payload, &asked); err != nil {
			t.Fatal(err)
		}
		for _, recipient := range letter.to {
			if !strings.HasSuffix(strings.ToLower(recipient), "@example.com") || strings.ContainsAny(recipient, " \r\n\t<>,%!\"") {
				t.Errorf("%q goes to %q", to, recipient)
			}
		}
		content := string(letter.content)
		head, _, _ := strings.Cut(content, "\r\n\r\n")
		for _, line := range strings.Split(content, "\r\n") {
			if len(line) > maxLine || strings.ContainsAny(line, "\r\n") || strings.ContainsFunc(line, func(r rune) bool { return r > '~' }) {
				t.Errorf("not a line of 7-bit text: %q", line)
			}
		}
		message, err := mail.ReadMessage(strings.NewReader(content))
		if err != nil {
			t.Fatalf("%q: %v", head, err)
		}
		for _, header := range slices.Collect(maps.Keys(message.Header)) {
			if !slices.Contains(headersOf, header) || len(message.Header[header]) != 1 {
				t.Errorf("%q has the header %s", head, header)
			}
		}
		var decoder mime.WordDecoder
		for _, header := range []string{"Subject", "X-Note"} {
			got, err := decoder.DecodeHeader(message.Header.Get(header))
			if err != nil || strings.TrimSpace(got) != strings.TrimSpace(asked.Subject) && !looksEncoded(asked.Subject) {
				t.Errorf("%s %q is read as %q, %v", header, asked.Subject, got, err)
			}
		}
		body, err := io.ReadAll(quotedprintable.NewReader(message.Body))
		if err != nil || string(body) != asLines(asked.Text) {
			t.Errorf("text %q is read as %q, %v", asked.Text, body, err)
		}
	})
}

var headersOf = []string{
	"Message-Id", "From", "To", "Reply-To", "Subject", "X-Note", "Mime-Version", "Content-Type", "Content-Transfer-Encoding",
}

// looksEncoded reports whether mail readers may take the text for an encoded word.
func looksEncoded(text string) bool { return strings.Contains(text, "=?") }

// asLines replaces each kind of line end by the one of mails.
func asLines(text string) string {
	return strings.ReplaceAll(lineEnds.Replace(text), "\n", "\r\n")
}
