package smtp

import (
	"context"
	"io"
	"net"
	netsmtp "net/smtp"
	"strconv"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const farewellTimeout = time.Second

// session is a connection to a server that has heard who we are.
type session struct {
	conn    net.Conn
	client  *netsmtp.Client
	release func() bool // lets go of the context
}

// transact offers the mail. What fails before the last step has no effect.
func (s *session) transact(ctx context.Context, m letter) dispatch.Result {
	if s.isTooLong(m) {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "message_too_large"}
	}
	if err := s.address(m); err != nil {
		return notTaken(ctx, err)
	}
	data, err := s.write(m)
	if err != nil {
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

// isTooLong knows the limit of a server that tells it (RFC 1870).
func (s *session) isTooLong(m letter) bool {
	_, limit := s.client.Extension("SIZE")
	octets, err := strconv.Atoi(limit)
	return err == nil && octets > 0 && len(m.content)+len(dateHeader(time.Now())) > octets
}

// address names the sender and every recipient. One that is refused is the end
// of the mail for all: half a delivery could not be completed by a retry.
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

// write hands everything but the dot to the system; closing it writes the dot.
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

// close says goodbye without waiting for the answer; a transaction that was
// not finished is forgotten with it.
func (s *session) close() {
	s.release()
	_ = s.conn.SetDeadline(time.Now().Add(farewellTimeout))
	_ = s.client.Text.PrintfLine("QUIT")
	_ = s.client.Close()
}

// abort hangs up.
func (s *session) abort() {
	s.release()
	_ = s.conn.Close()
}
