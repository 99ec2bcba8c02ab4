package smtp_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/big"
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

// plainly are the settings for a server on this machine.
func plainly(address string) string {
	return "server: " + address + "\nsecurity: none\nfrom: Billing <billing@example.org>"
}

func newAdapter(t *testing.T, spec dispatch.Spec) *smtp.Adapter {
	t.Helper()
	adapter, err := smtp.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return adapter
}

// request is an intent of its own each time.
func request(payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: uuid.NewString(), StepID: "step-1", ToolName: "mail/send", BusinessScope: "invoice_442"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

func expect(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("%s %q (%+v), want %s %q", got.Outcome, got.ErrorClass, got.Problem, outcome, class)
	}
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

// mailServer is a real server that keeps what it is given.
type mailServer struct {
	address string
	server  *gosmtp.Server
	trusted *tls.Config // what a client needs to believe it
	gone    bool

	listener    net.Listener
	certificate tls.Certificate
	configure   func(*gosmtp.Server)

	mu        sync.Mutex
	delivered []delivery
	logins    []string
	rcpt      func(address string) error    // nil accepts all
	answer    func(conn *gosmtp.Conn) error // to the dot; nil accepts
}

func startMailServer(t *testing.T, configure func(*gosmtp.Server)) *mailServer {
	t.Helper()
	certificate, roots := certify(t)
	m := &mailServer{
		address:     "127.0.0.1:0",
		certificate: certificate,
		trusted:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		configure:   configure,
	}
	m.open(t)
	t.Cleanup(m.close)
	return m
}

// open listens where it listened before. A server that was closed stays so,
// so there is a new one each time.
func (m *mailServer) open(t *testing.T) {
	t.Helper()
	m.server = gosmtp.NewServer(gosmtp.BackendFunc(func(c *gosmtp.Conn) (gosmtp.Session, error) {
		return &mailSession{server: m, conn: c}, nil
	}))
	m.server.Domain = "mail.example.com"
	m.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{m.certificate}, MinVersion: tls.VersionTLS12}
	m.server.ErrorLog = silentLog{}
	if m.configure != nil {
		m.configure(m.server)
	}
	m.listener = listenAgain(t, m.address)
	m.address = m.listener.Addr().String()
	go func(server *gosmtp.Server, listener net.Listener) { _ = server.Serve(listener) }(m.server, m.listener)
	m.gone = false
}

// close closes the listener itself: the server knows only one that it has
// begun to serve.
func (m *mailServer) close() {
	_ = m.listener.Close()
	_ = m.server.Close()
	m.gone = true
}

// listenAgain has patience with a connection that was given the port meanwhile.
func listenAgain(t *testing.T, address string) net.Listener {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			return listener
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (m *mailServer) reopen(t *testing.T) {
	t.Helper()
	if m.gone {
		m.open(t)
	}
}

func (m *mailServer) deliveries() []delivery {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.delivered)
}

// answers says how dots are answered from now on.
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

// loginServer asks in the words of Exchange.
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

func certify(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter:     time.Now().Add(time.Hour),
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// undated is a mail without its Date, which is when it was sent.
func undated(data string) []byte {
	before, rest, found := bytes.Cut([]byte(data), []byte("\r\n"))
	if !found || !bytes.HasPrefix(before, []byte("Date: ")) {
		return []byte(data)
	}
	return rest
}

// serveTLS begins again elsewhere, encrypted from the first byte.
func (m *mailServer) serveTLS(t *testing.T) {
	t.Helper()
	m.close()
	encrypted := gosmtp.NewServer(m.server.Backend)
	encrypted.Domain, encrypted.ErrorLog = m.server.Domain, m.server.ErrorLog
	listener, err := tls.Listen("tcp", "127.0.0.1:0", m.server.TLSConfig)
	if err != nil {
		t.Fatal(err)
	}
	m.server, m.listener, m.address = encrypted, listener, listener.Addr().String()
	go func() { _ = encrypted.Serve(listener) }()
}
