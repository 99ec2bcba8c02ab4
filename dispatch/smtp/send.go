package smtp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	netsmtp "net/smtp"
	"strconv"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

const farewellTimeout = time.Second

// session is a connection after greeting, encryption and login.
type session struct {
	conn    net.Conn
	client  *netsmtp.Client
	release func() bool // ends the effect of the context on the connection
}

// transact offers the mail. A failure before the last step has no effect.
func (s *session) transact(ctx context.Context, m letter) dispatch.Result {
	if s.isTooLong(m) {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "message_too_large", Unsent: true}
	}
	if err := s.address(m); err != nil {
		return notTaken(ctx, err)
	}
	data, err := s.write(m)
	if err != nil {
		return notTaken(ctx, err)
	}
	if s.client.Text.R.Buffered() > 0 { // an unexpected reply, which would be taken for the reply to the dot
		_, _, err := s.client.Text.ReadResponse(noReply)
		s.abort() // an orderly close would write the dot
		return notTaken(ctx, err)
	}
	if err := data.Close(); err != nil {
		return inDoubt(ctx, err)
	}
	_, text, err := s.client.Text.ReadResponse(2)
	if err != nil {
		return inDoubt(ctx, err)
	}
	return taken(text)
}

// noReply is the expected code when any reply is a mistake.
const noReply = 999

// isTooLong compares the mail with the limit that the server announced (RFC 1870).
func (s *session) isTooLong(m letter) bool {
	_, limit := s.client.Extension("SIZE")
	most, err := strconv.Atoi(limit)
	return err == nil && most > 0 && len(m.content)+len(dateHeader(time.Now())) > most
}

// address names the sender and every recipient. If one recipient is refused, the mail is sent to none: a retry could
// not complete a partial delivery.
func (s *session) address(m letter) error {
	if err := s.command(250, "MAIL FROM:<"+m.from+">"); err != nil {
		return err
	}
	for _, recipient := range m.to {
		if err := s.command(25, "RCPT TO:<"+recipient+">"); err != nil {
			return err
		}
	}
	return s.command(354, "DATA")
}

func (s *session) command(expected int, line string) error {
	if err := s.client.Text.PrintfLine("%s", line); err != nil {
		return err
	}
	_, _, err := s.client.Text.ReadResponse(expected)
	return err
}

// write sends everything except the dot. Closing the result writes the dot.
func (s *session) write(m letter) (io.Closer, error) {
	text := s.client.Text
	data := text.DotWriter()
	if _, err := data.Write([]byte(dateHeader(time.Now()))); err != nil {
		return nil, err
	}
	if _, err := data.Write(m.content); err != nil {
		return nil, err
	}
	return data, text.W.Flush()
}

func dateHeader(now time.Time) string { return "Date: " + now.UTC().Format(time.RFC1123Z) + "\r\n" }

// close sends QUIT and does not wait for the reply. The server drops an unfinished transaction.
func (s *session) close() {
	s.release()
	_ = s.conn.SetDeadline(time.Now().Add(farewellTimeout))
	_ = s.client.Text.PrintfLine("QUIT")
	_ = s.client.Close()
}

// abort closes the connection without QUIT.
func (s *session) abort() {
	s.release()
	_ = s.conn.Close()
}

// relay is a mail server with its settings.
type relay struct {
	network  dispatch.Network
	address  string // host:port
	host     string
	security string
	auth     *Auth // nil for no login
	hello    string
}

var errNoSTARTTLS = errors.New("the server does not offer STARTTLS")

// connect returns a session that is ready for a mail, or the result if there is none. The end of the context closes
// the connection.
func (r *relay) connect(ctx context.Context) (*session, *dispatch.Result) {
	tcp, err := r.network.DialContext(ctx, "tcp", r.address)
	if err != nil {
		return nil, &dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Unsent(ctx, err)}
	}
	release := context.AfterFunc(ctx, func() { _ = tcp.Close() })
	s := &session{conn: tcp, release: release}
	if step, err := r.introduce(s); err != nil {
		s.abort()
		result := notReady(ctx, step, err)
		return nil, &result
	}
	return s, nil
}

// introduce makes greeting, encryption and login. It returns the name of a failed step.
func (r *relay) introduce(s *session) (step string, err error) {
	conn := net.Conn(&bounded{Conn: s.conn, left: maxSaid})
	if r.security == securityTLS {
		secure := tls.Client(conn, r.tlsConfig())
		if err := secure.Handshake(); err != nil {
			return "tls", err
		}
		conn = secure
	}
	if s.client, err = netsmtp.NewClient(conn, r.host); err != nil {
		return "greeting", err
	}
	if err := s.client.Hello(r.hello); err != nil {
		return "hello", err
	}
	if r.security == securitySTARTTLS {
		if err := r.startTLS(s.client); err != nil {
			return "tls", err
		}
	}
	if r.auth != nil {
		return "auth", s.client.Auth(r.credentials())
	}
	return "", nil
}

func (r *relay) startTLS(client *netsmtp.Client) error {
	if offered, _ := client.Extension("STARTTLS"); !offered {
		return errNoSTARTTLS
	}
	return client.StartTLS(r.tlsConfig())
}

func (r *relay) tlsConfig() *tls.Config {
	config := r.network.TLSConfig()
	config.ServerName = cmp.Or(config.ServerName, r.host)
	return config
}

func (r *relay) credentials() netsmtp.Auth {
	if r.auth.Method == authLogin {
		return &login{user: r.auth.User, password: r.auth.Password}
	}
	return &plain{user: r.auth.User, password: r.auth.Password}
}

const maxSaid = 1 << 20 // bytes that a server may send in one session

var errTooMuch = errors.New("the server says more than a mail takes")

// bounded ends a connection on which the server sends too much.
type bounded struct {
	net.Conn
	left int
}

func (b *bounded) Read(into []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooMuch
	}
	n, err := b.Conn.Read(into[:min(len(into), b.left)])
	b.left -= n
	return n, err
}

// plain implements RFC 4616. The configuration ensures that the connection is encrypted, unless the server is on
// this machine.
type plain struct{ user, password string }

func (p *plain) Start(*netsmtp.ServerInfo) (string, []byte, error) {
	return "PLAIN", []byte("\x00" + p.user + "\x00" + p.password), nil
}

func (p *plain) Next(_ []byte, more bool) ([]byte, error) {
	if more {
		return nil, errAuthentication
	}
	return nil, nil
}

// login implements the mechanism LOGIN, in which the server asks for the user and then for the password
// (draft-murchison-sasl-login). Servers word the two questions differently, so only their order counts.
type login struct {
	user, password string
	asked          int
}

func (l *login) Start(*netsmtp.ServerInfo) (string, []byte, error) { return "LOGIN", nil, nil }

func (l *login) Next(_ []byte, more bool) ([]byte, error) {
	if !more {
		return nil, nil
	}
	l.asked++
	switch l.asked {
	case 1:
		return []byte(l.user), nil
	case 2:
		return []byte(l.password), nil
	}
	return nil, errAuthentication
}
