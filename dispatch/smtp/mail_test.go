package smtp_test

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"slices"
	"strings"
	"testing"
	"time"

	gosmtp "github.com/emersion/go-smtp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/smtp"
)

// send dispatches one intent to a real server and reads the mail that it got.
func send(t *testing.T, tool string, intent dispatch.Request) (dispatch.Result, delivery, *mail.Message) {
	t.Helper()
	server := startMailServer(t, nil)
	result := newAdapter(t, spec(plainly(server.address), tool)).Dispatch(t.Context(), intent)
	deliveries := server.deliveries()
	if len(deliveries) == 0 {
		return result, delivery{}, nil
	}
	parsed, err := mail.ReadMessage(strings.NewReader(deliveries[0].data))
	if err != nil {
		t.Fatal(err)
	}
	return result, deliveries[0], parsed
}

func TestAMailSaysWhatItIs(t *testing.T) {
	t.Parallel()
	subject := strings.Repeat("Rechnung für Größe  ünd ", 12)
	text := "Grüße,\n.\n..two dots\nFrom here\r\n" + strings.Repeat("längere Zeile ", 40) + "\nEnd"
	intent := request(`{"name": "Ada Lövelace", "to": "ada@example.com", "subject": ` + quoted(subject) + `, "text": ` + quoted(text) + `, "n": 9007199254740993}`)
	result, got, message := send(t, `
from: Faktura AG <faktura@example.org>
to: ["{.payload.name} <{.payload.to}>"]
cc: [bob@example.com]
bcc: [carol@example.net, bob@example.com]
reply_to: [help@example.org]
subject: "{.payload.subject}"
text: "{.payload.text}"
html: "<p>{.payload.name}</p><p>{.payload.n}</p>"
headers: {X-Order: "{.payload.n}", X-Note: "Größe"}`, intent)
	dispatchtest.Expect(t, result, dispatch.Completed, "")
	if result.ProviderRef != "4WxYz1abcd" || string(result.Response) != `"2.0.0 Ok: queued as 4WxYz1abcd"` {
		t.Errorf("%+v", result)
	}
	if got.from != "faktura@example.org" || !slices.Equal(got.to, []string{"ada@example.com", "bob@example.com", "carol@example.net"}) {
		t.Errorf("envelope: %s to %v", got.from, got.to)
	}
	var decoder mime.WordDecoder
	for name, want := range map[string]string{
		"Message-Id": "<" + intent.IdempotencyKey + "@example.org>",
		"From":       `"Faktura AG" <faktura@example.org>`,
		"To":         `Ada Lövelace <ada@example.com>`,
		"Cc":         "<bob@example.com>",
		"Bcc":        "",
		"Reply-To":   "<help@example.org>",
		"Subject":    subject,
		"X-Order":    "9007199254740993",
		"X-Note":     "Größe",
	} {
		if decoded, err := decoder.DecodeHeader(message.Header.Get(name)); err != nil || decoded != want {
			t.Errorf("%s is %q, want %q", name, decoded, want)
		}
	}
	if date, err := message.Header.Date(); err != nil || time.Since(date).Abs() > time.Minute {
		t.Errorf("date %s, %v", date, err)
	}
	if strings.Contains(got.data, "carol") {
		t.Error("the mail shows a hidden recipient")
	}
	parts := partsOf(t, message)
	if want := strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\n", "\r\n"); len(parts) != 2 || parts[0] != want {
		t.Errorf("text %q, want %q", parts[0], want)
	}
	if parts[1] != "<p>Ada Lövelace</p><p>9007199254740993</p>" {
		t.Errorf("html %q", parts[1])
	}
	for _, line := range strings.Split(got.data, "\r\n") {
		if len(line) > 78 || strings.ContainsAny(line, "\r\n") || strings.ContainsFunc(line, func(r rune) bool { return r > 126 }) {
			t.Errorf("not a line of 7-bit text, up to 78 bytes: %q", line)
		}
	}
}

func partsOf(t *testing.T, message *mail.Message) (parts []string) {
	t.Helper()
	_, parameters, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	reader := multipart.NewReader(message.Body, parameters["boundary"])
	for {
		part, err := reader.NextPart() // NextPart decodes quoted-printable
		if errors.Is(err, io.EOF) {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, string(text))
	}
}

func TestAMailOfOnePartIsThatPart(t *testing.T) {
	t.Parallel()
	for tool, want := range map[string]string{
		`{to: [a@example.com], text: 'Hello {.payload.who}'}`:            "text/plain; charset=utf-8: Hello <b>",
		`{to: [a@example.com], html: '<i>Hello {.payload.who}</i>'}`:     "text/html; charset=utf-8: <i>Hello &lt;b&gt;</i>",
		`{to: [a@example.com], html: '{.payload.who}'}`:                  "text/html; charset=utf-8: <b>",
		`{to: [a@example.com], html: '{"<i>" + .payload.who + "</i>"}'}`: "text/html; charset=utf-8: <i><b></i>",
	} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			_, _, message := send(t, tool, request(`{"who": "<b>"}`))
			body, err := io.ReadAll(quotedprintable.NewReader(message.Body))
			if got := message.Header.Get("Content-Type") + ": " + strings.TrimSpace(string(body)); err != nil || got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

func TestRecipientsMayComeFromThePayload(t *testing.T) {
	t.Parallel()
	const payload = `{"one": "Ada <ada@example.com>", "two": ["b@example.com", "c@example.com"], "none": null, "empty": "", "list": []}`
	for tool, want := range map[string]string{
		`{to: ["{.payload.one}"]}`:                                               "ada@example.com",
		`{to: ["{.payload.two}", "{.payload.one}"]}`:                             "b@example.com c@example.com ada@example.com",
		`{to: ["{.payload.none}", "{.payload.empty}", d@example.com]}`:           "d@example.com",
		`{bcc: ["{.payload.two[0]}"]}`:                                           "b@example.com",
		`{to: ["{.payload.two}"], allow_recipients: ["@EXAMPLE.com"]}`:           "b@example.com c@example.com",
		`{to: ["{.payload.two[0]}"], allow_recipients: [B@example.com, "@x.y"]}`: "b@example.com",
	} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			result, got, _ := send(t, strings.TrimSuffix(tool, "}")+", text: hello}", request(payload))
			dispatchtest.Expect(t, result, dispatch.Completed, "")
			if strings.Join(got.to, " ") != want {
				t.Errorf("to %v, want %s", got.to, want)
			}
		})
	}
}

// Every value tries to send more to the server, or to the reader's program, than the tool permits.
func TestWhatNoMailCanHoldIsRejectedUnsent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ tool, payload, class string }{
		"another header":         {`{to: [a@example.com], subject: "{.payload}"}`, `"Hi\r\nBcc: eve@example.net"`, "invalid_header"},
		"another header, by LF":  {`{to: [a@example.com], subject: "{.payload}"}`, `"Hi\nBcc: eve@example.net"`, "invalid_header"},
		"another header, by CR":  {`{to: [a@example.com], headers: {X-A: "{.payload}"}}`, `"Hi\rBcc: eve@example.net"`, "invalid_header"},
		"the end of the headers": {`{to: [a@example.com], headers: {X-A: "{.payload}"}}`, `"\r\n\r\nbody"`, "invalid_header"},
		"NUL":                    {`{to: [a@example.com], subject: "{.payload}"}`, `"a\u0000b"`, "invalid_header"},
		"an endless word":        {`{to: [a@example.com], subject: "{.payload}"}`, `"` + long(2000) + `"`, "invalid_header"},
		"another command":        {`{to: ["{.payload}"]}`, `"a@example.com>\r\nRCPT TO:<eve@example.net"`, "invalid_address"},
		"a parameter":            {`{to: ["{.payload}"]}`, `"\"a> NOTIFY=SUCCESS \"@example.com"`, "invalid_address"},
		"two in one":             {`{to: ["{.payload}"]}`, `"a@example.com, eve@example.net"`, "invalid_address"},
		"two by a name":          {`{to: ["{.payload} <a@example.com>"]}`, `"x <eve@example.net>, y"`, "invalid_address"},
		"two by a list":          {`{to: ["To: {.payload}"]}`, `["a@example.com"]`, "unrenderable_request"},
		"a group":                {`{to: ["{.payload}"]}`, `"all: a@example.com, b@example.com;"`, "invalid_address"},
		"a route":                {`{to: ["{.payload}"]}`, `"eve%example.net@example.com"`, "invalid_address"},
		"an address literal":     {`{to: ["{.payload}"]}`, `"root@[127.0.0.1]"`, "invalid_address"},
		"not ASCII":              {`{to: ["{.payload}"]}`, `"jörg@example.com"`, "invalid_address"},
		"no address":             {`{to: ["{.payload}"]}`, `"nobody"`, "invalid_address"},
		"an object":              {`{to: ["{.payload}"]}`, `{}`, "unrenderable_request"},
		"no recipient":           {`{to: ["{.payload}"]}`, `""`, "no_recipient"},
		"another domain":         {`{to: ["{.payload}"], allow_recipients: ["@example.com"]}`, `"eve@example.net"`, "recipient_not_allowed"},
		"a domain below":         {`{to: ["{.payload}"], allow_recipients: ["@example.com"]}`, `"eve@x.example.com"`, "recipient_not_allowed"},
		"a domain that ends so":  {`{to: ["{.payload}"], allow_recipients: ["@example.com"]}`, `"eve@anexample.com"`, "recipient_not_allowed"},
		"one of two, hidden":     {`{to: [a@example.com], bcc: ["{.payload}"], allow_recipients: ["@example.com"]}`, `"eve@example.net"`, "recipient_not_allowed"},
		"a name with a header":   {`{to: ["{.payload} <a@example.com>"]}`, `"x\r\nBcc: eve@example.net\r\nTo: y"`, "invalid_address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, _, message := send(t, strings.TrimSuffix(test.tool, "}")+", text: hello}", request(test.payload))
			dispatchtest.Expect(t, result, dispatch.Rejected, test.class)
			if p := result.Problem; p == nil || p.Detail == "" || !strings.Contains(p.Title, "cannot be rendered") || strings.Contains(p.Detail, "eve") {
				t.Errorf("it says %+v", p)
			}
			if message != nil {
				t.Errorf("it was sent: %v", message.Header)
			}
		})
	}
}

// An encoded word may decode to a line end; it must stay encoded.
func TestANameThatHidesALineEndStaysAName(t *testing.T) {
	t.Parallel()
	_, got, message := send(t, `{to: ["{.payload}"], text: hello}`, request(`"=?utf-8?q?x=0D=0ABcc:_eve@example.net?= <a@example.com>"`))
	if message == nil {
		return // a refusal is as good
	}
	if message.Header.Get("Bcc") != "" || !slices.Equal(got.to, []string{"a@example.com"}) {
		t.Errorf("%v %v", got.to, message.Header)
	}
}

func TestEveryAttemptSendsTheSameMailButForItsDate(t *testing.T) {
	t.Parallel()
	server := startMailServer(t, nil)
	adapter := newAdapter(t, spec(plainly(server.address), `
to: [a@example.com]
text: hello
html: <p>hello</p>
headers: {X-B: "2", X-A: "1", X-C: "3"}`))
	intent := request(`{}`)
	for range 5 {
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent), dispatch.Completed, "")
		intent.Attempt++
	}
	for _, mail := range server.deliveries() {
		if first := server.deliveries()[0]; string(undated(mail.data)) != string(undated(first.data)) {
			t.Errorf("%s\nis not\n%s", mail.data, first.data)
		}
	}
}

func quoted(text string) string {
	return `"` + strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(text) + `"`
}

func TestTheSMTPAdapterConforms(t *testing.T) {
	dispatchtest.Conform(t, dispatchtest.Subject{
		Kind:  smtp.Kind(),
		Start: startCounterpart,
		Cannot: map[dispatchtest.Situation]string{
			dispatchtest.Busy: "a mail server does not look at message ids, so it never waits for an earlier mail of the same one",
		},
	})
}

func startCounterpart(t *testing.T) dispatchtest.Counterpart {
	server := startMailServer(t, nil)
	gate := dispatchtest.OpenGate(t, server.address, nil)
	silence := make(chan struct{})
	t.Cleanup(func() { close(silence) })
	return dispatchtest.Counterpart{
		Settings: "server: " + gate.Address + "\nfrom: billing@example.org\nauth: {user: " + user + ", password: " + password + "}",
		Tool:     "{to: [ada@example.com], subject: 'About {.payload.memo}', text: '{.payload | tojson}'}",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		TLS:      server.trusted,
		Secrets:  []string{password},
		Received: func() (messages []dispatchtest.Message) {
			for _, mail := range server.deliveries() {
				messages = append(messages, dispatchtest.Message{Body: undated(mail.data)})
			}
			return messages
		},
		Enter: func(situation dispatchtest.Situation) {
			if situation == dispatchtest.Unreachable {
				gate.Shut()
				return
			}
			gate.Open()
			server.answers(map[dispatchtest.Situation]func(*gosmtp.Conn) error{
				dispatchtest.Throttling: func(*gosmtp.Conn) error { return &gosmtp.SMTPError{Code: 451, Message: "greylisted"} },
				dispatchtest.Rejecting:  func(*gosmtp.Conn) error { return &gosmtp.SMTPError{Code: 554, Message: "looks like spam"} },
				dispatchtest.Severing:   func(c *gosmtp.Conn) error { return c.Conn().Close() },
				dispatchtest.Silent:     func(*gosmtp.Conn) error { <-silence; return nil },
				dispatchtest.Babbling:   babble,
			}[situation])
		},
	}
}

func babble(c *gosmtp.Conn) error {
	_, _ = io.WriteString(c.Conn(), "HTTP/1.1 200 OK\r\n\r\n")
	return net.ErrClosed
}

func TestBadConfigurationIsRefusedByFieldName(t *testing.T) {
	t.Parallel()
	const good, tool = "server: mail.example.com:587\nfrom: a@example.org\n", "{to: [b@example.com], text: hi}"
	dispatchtest.Refuses(t, smtp.Kind(), dispatchtest.Mistakes{
		"no server":               {"from: a@example.org", tool, "server is missing"},
		"no port":                 {"server: canary.example.com\nfrom: a@example.org", tool, "host:port"},
		"a bad port":              {"server: canary.example.com:smtp\nfrom: a@example.org", tool, "host:port"},
		"security":                {good + "security: canary", tool, "security is none of"},
		"a password in the open":  {good + "security: none\nauth: {user: u, password: canary}", tool, "the password could be read"},
		"no user":                 {good + "auth: {password: canary}", tool, "user or password is missing"},
		"auth method":             {good + "auth: {method: canary, user: u, password: p}", tool, "auth.method"},
		"hello":                   {good + `hello: "a\r\nMAIL canary"`, tool, "hello"},
		"from":                    {"server: mail.example.com:587\nfrom: canary", tool, "from is not an address"},
		"no from":                 {"server: mail.example.com:587", tool, "from is missing"},
		"unknown field":           {good, "{to: [b@example.com], text: hi, attachments: []}", "not what *smtp.Tool takes"},
		"a tool's from":           {good, "{from: '{.payload.from}', to: [b@example.com], text: hi}", "from is not an address"},
		"no recipient":            {good, "{text: hi}", "to, cc and bcc"},
		"no such recipient":       {good, "{to: [canary], text: hi}", "to[0]: not one plain address"},
		"a bad template":          {good, "{to: ['{.payload'], text: hi}", "to[0]: placeholder"},
		"nothing to say":          {good, "{to: [b@example.com], subject: hi}", "text and html"},
		"a bad subject":           {good, "{to: [b@example.com], text: hi, subject: '}'}", "subject: "},
		"a clock":                 {good, "{to: [b@example.com], text: '{now}'}", "text: placeholder"},
		"a header of ours":        {good, "{to: [b@example.com], text: hi, headers: {bcc: x}}", "headers: bcc"},
		"a header name":           {good, "{to: [b@example.com], text: hi, headers: {'A b': x}}", "not a header name"},
		"no recipient is allowed": {good, "{to: [b@example.com], text: hi, allow_recipients: []}", "allow_recipients is empty"},
		"a bare domain":           {good, "{to: [b@example.com], text: hi, allow_recipients: [canary.com]}", "allow_recipients"},
		"a pattern":               {good, "{to: [b@example.com], text: hi, allow_recipients: ['*@canary.com']}", "allow_recipients"},
	})
}

func TestCredentialsNeedNoEncryptionOnThisMachine(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"localhost:25", "127.0.0.1:25", "'[::1]:25'"} {
		if _, err := smtp.New(spec("server: "+server+"\nsecurity: none\nfrom: a@example.org\nauth: {user: u, password: p}", aTool)); err != nil {
			t.Errorf("%s: %v", server, err)
		}
	}
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, smtp.Kind(), map[string][]dispatch.Destination{
		`{server: "mail.example:465", from: a@b.example, security: tls}`: {{Network: "tcp", Address: "mail.example:465", TLS: dispatch.ImplicitTLS}},
		`{server: "mail.example:587", from: a@b.example}`:                {{Network: "tcp", Address: "mail.example:587", TLS: dispatch.UpgradedTLS}},
		`{server: "127.0.0.1:25", from: a@b.example, security: none}`:    {{Network: "tcp", Address: "127.0.0.1:25"}},
	})
}
