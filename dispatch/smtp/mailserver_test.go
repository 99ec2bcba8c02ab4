package smtp_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"
	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/smtp"
)

const aTool = `
to: ["{.payload.to}"]
subject: "{.payload.subject}"
text: "{.payload.text}"`

const aPayload = `{"to": "ada@example.com", "subject": "Invoice 442", "text": "Dear Ada,\n.\nbye"}`

func spec(settings, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "mail",
		Timeout:  5 * time.Second,
		Settings: dispatchtest.Block(settings),
		Tools:    map[string]dispatch.ToolSpec{"send": {Class: dispatch.NonIdempotent, Settings: dispatchtest.Block(tool)}},
	}
}

// plainly returns the settings for a server on this machine.
func plainly(address string) string {
	return "server: " + address + "\nsecurity: none\nfrom: Billing <billing@example.org>"
}

func newAdapter(t *testing.T, spec dispatch.Spec) *smtp.Adapter {
	t.Helper()
	return dispatchtest.Build(t, smtp.New, spec)
}

// request returns a new intent each time.
func request(payload string) dispatch.Request {
	return dispatchtest.Intent("mail/send", uuid.NewString(), payload)
}

func long(length int) string { return strings.Repeat("x", length) }

const (
	user     = "drainer"
	password = "password-9d41c07e"
)

// delivery is a mail that arrived whole.
type delivery struct {
	from string
	to   []string
	data string
}

// mailServer is a real server that keeps the mails that it gets.
type mailServer struct {
	address string
	trusted *tls.Config // a client with it trusts the server

	mu        sync.Mutex
	delivered []delivery
	logins    []string
	rcpt      func(address string) error    // nil accepts all
	answer    func(conn *gosmtp.Conn) error // the answer to the dot; nil accepts it
}

func startMailServer(t *testing.T, configure func(*gosmtp.Server)) *mailServer {
	t.Helper()
	m, server := newMailServer(t)
	if configure != nil {
		configure(server)
	}
	m.serve(t, server, dispatchtest.Plain.Listen(t, "127.0.0.1:0"))
	return m
}

// startEncrypted starts a server that encrypts from the first byte.
func startEncrypted(t *testing.T) *mailServer {
	t.Helper()
	m, server := newMailServer(t)
	listener := tls.NewListener(dispatchtest.Plain.Listen(t, "127.0.0.1:0"), server.TLSConfig)
	server.TLSConfig = nil
	m.serve(t, server, listener)
	return m
}

func newMailServer(t *testing.T) (*mailServer, *gosmtp.Server) {
	t.Helper()
	certificate, trusted := dispatchtest.Certificate(t)
	m := &mailServer{trusted: trusted}
	server := gosmtp.NewServer(gosmtp.BackendFunc(func(c *gosmtp.Conn) (gosmtp.Session, error) {
		return &mailSession{server: m, conn: c}, nil
	}))
	server.Domain, server.ErrorLog = "mail.example.com", silentLog{}
	server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	return m, server
}

// serve serves until the end of the test. The server closes only a listener that it has begun to serve, so serve
// closes the listener too.
func (m *mailServer) serve(t *testing.T, server *gosmtp.Server, listener net.Listener) {
	m.address = listener.Addr().String()
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		_ = listener.Close()
		_ = server.Close()
	})
}

func (m *mailServer) deliveries() []delivery {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.delivered)
}

// answers sets the answer to all later dots.
func (m *mailServer) answers(answer func(*gosmtp.Conn) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = answer
}

type mailSession struct {
	server *mailServer
	conn   *gosmtp.Conn
	mail   delivery
}

func (s *mailSession) Reset()        { s.mail = delivery{} }
func (s *mailSession) Logout() error { return nil }

func (s *mailSession) AuthMechanisms() []string { return []string{"PLAIN", "LOGIN"} }

func (s *mailSession) Auth(mechanism string) (sasl.Server, error) {
	if mechanism == "LOGIN" {
		return &loginServer{check: s.check}, nil
	}
	return sasl.NewPlainServer(func(_, user, password string) error { return s.check(user, password) }), nil
}

func (s *mailSession) check(name, secret string) error {
	if name != user || secret != password {
		return gosmtp.ErrAuthFailed
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.logins = append(s.server.logins, name)
	return nil
}

func (s *mailSession) Mail(from string, _ *gosmtp.MailOptions) error {
	s.mail = delivery{from: from}
	return nil
}

func (s *mailSession) Rcpt(to string, _ *gosmtp.RcptOptions) error {
	if s.server.rcpt != nil {
		if err := s.server.rcpt(to); err != nil {
			return err
		}
	}
	s.mail.to = append(s.mail.to, to)
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.mail.data = string(data)
	s.server.mu.Lock()
	s.server.delivered = append(s.server.delivered, s.mail)
	answer := s.server.answer
	s.server.mu.Unlock()
	if answer != nil {
		return answer(s.conn)
	}
	return &gosmtp.SMTPError{Code: 250, EnhancedCode: gosmtp.EnhancedCode{2, 0, 0}, Message: "Ok: queued as 4WxYz1abcd"}
}

// loginServer uses the prompts of Exchange.
type loginServer struct {
	check func(user, password string) error
	asked int
	user  string
}

func (l *loginServer) Next(response []byte) (challenge []byte, done bool, err error) {
	l.asked++
	switch l.asked {
	case 1:
		return []byte("Username:"), false, nil
	case 2:
		l.user = string(response)
		return []byte("Password:"), false, nil
	case 3:
		return nil, true, l.check(l.user, string(response))
	}
	return nil, false, errors.New("asked too often")
}

type silentLog struct{}

func (silentLog) Printf(string, ...any) {}
func (silentLog) Println(...any)        {}

// undated returns a mail without its Date, which is the time of its sending.
func undated(data string) []byte {
	before, rest, found := bytes.Cut([]byte(data), []byte("\r\n"))
	if !found || !bytes.HasPrefix(before, []byte("Date: ")) {
		return []byte(data)
	}
	return rest
}
