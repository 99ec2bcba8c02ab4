package smtp_test

import (
	"encoding/json"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	gosmtp "github.com/emersion/go-smtp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/smtp"
)

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
	silence := make(chan struct{})
	t.Cleanup(func() { close(silence) })
	return dispatchtest.Counterpart{
		Settings: "server: " + server.address + "\nfrom: billing@example.org\nauth: {user: " + user + ", password: " + password + "}",
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
				server.close()
				return
			}
			server.reopen(t)
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
	for name, test := range map[string]struct{ settings, tool, want string }{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := smtp.New(spec(test.settings, test.tool))
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%v, want %q and no value", err, test.want)
			}
		})
	}
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
	for settings, want := range map[string][]dispatch.Destination{
		`{server: "mail.example:465", from: a@b.example, security: tls}`: {{Network: "tcp", Address: "mail.example:465", TLS: dispatch.ImplicitTLS}},
		`{server: "mail.example:587", from: a@b.example}`:                {{Network: "tcp", Address: "mail.example:587", TLS: dispatch.UpgradedTLS}},
		`{server: "127.0.0.1:25", from: a@b.example, security: none}`:    {{Network: "tcp", Address: "127.0.0.1:25"}},
	} {
		adapter, err := smtp.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}
