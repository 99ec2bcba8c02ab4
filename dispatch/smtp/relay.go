package smtp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	netsmtp "net/smtp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// relay is a mail server, and how to speak to it.
type relay struct {
	network  dispatch.Network
	address  string // host:port
	host     string
	security string
	auth     *Auth // nil: it lets everybody in
	hello    string
}

var errNoSTARTTLS = errors.New("the server does not offer STARTTLS")

// connect gives a session that is ready for a mail, or the result of having
// none. The context ends the connection whenever it ends itself.
func (r *relay) connect(ctx context.Context) (*session, *dispatch.Result) {
	tcp, err := r.network.DialContext(ctx, "tcp", r.address)
	if err != nil {
		return nil, &dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: failure.Unsent(ctx, err)}
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

// introduce names the step that failed.
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

const maxSaid = 1 << 20 // octets that a server may say in one session

var errTooMuch = errors.New("the server says more than a mail takes")

// bounded ends a connection on which the other side does not stop.
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
