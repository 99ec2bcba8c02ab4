package smtp_test

import (
	"encoding/json"
	"io"
	"net"
	"testing"

	gosmtp "github.com/emersion/go-smtp"

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
