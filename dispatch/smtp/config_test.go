package smtp_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/smtp"
)

func TestBadConfigurationIsRefusedByFieldName(t *testing.T) {
	t.Parallel()
	const good, tool = "server: mail.example.com:587\nfrom: a@example.org\n", "{to: [b@example.com], text: hi}"
	for name, test := range map[string]struct{ settings, tool, want string }{
		"no server":              {"from: a@example.org", tool, "server is missing"},
		"no port":                {"server: canary.example.com\nfrom: a@example.org", tool, "host:port"},
		"a bad port":             {"server: canary.example.com:smtp\nfrom: a@example.org", tool, "host:port"},
		"security":               {good + "security: canary", tool, "security is none of"},
		"a password in the open": {good + "security: none\nauth: {user: u, password: canary}", tool, "could read the password"},
		"no user":                {good + "auth: {password: canary}", tool, "user or password is missing"},
		"auth method":            {good + "auth: {method: canary, user: u, password: p}", tool, "auth.method"},
		"hello":                  {good + `hello: "a\r\nMAIL canary"`, tool, "hello"},
		"from":                   {"server: mail.example.com:587\nfrom: canary", tool, "from is not an address"},
		"no from":                {"server: mail.example.com:587", tool, "from is missing"},
		"unknown field":          {good, "{to: [b@example.com], text: hi, attachments: []}", "not what *smtp.Tool takes"},
		"a tool's from":          {good, "{from: '{.payload.from}', to: [b@example.com], text: hi}", "from is not an address"},
		"nobody":                 {good, "{text: hi}", "to, cc and bcc"},
		"no such recipient":      {good, "{to: [canary], text: hi}", "to[0]: not one plain address"},
		"a bad template":         {good, "{to: ['{.payload'], text: hi}", "to[0]: placeholder"},
		"nothing to say":         {good, "{to: [b@example.com], subject: hi}", "text and html"},
		"a bad subject":          {good, "{to: [b@example.com], text: hi, subject: '}'}", "subject: "},
		"a clock":                {good, "{to: [b@example.com], text: '{now}'}", "text: placeholder"},
		"a header of ours":       {good, "{to: [b@example.com], text: hi, headers: {bcc: x}}", "headers: bcc"},
		"a header name":          {good, "{to: [b@example.com], text: hi, headers: {'A b': x}}", "not a header name"},
		"nobody is allowed":      {good, "{to: [b@example.com], text: hi, allow_recipients: []}", "allow_recipients is empty"},
		"a bare domain":          {good, "{to: [b@example.com], text: hi, allow_recipients: [canary.com]}", "allow_recipients"},
		"a pattern":              {good, "{to: [b@example.com], text: hi, allow_recipients: ['*@canary.com']}", "allow_recipients"},
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
