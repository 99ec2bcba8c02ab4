package onesend

import (
	"bufio"
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"time"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

var errHeaderTooLong = errors.New("the response's header is too long")

// connection carries one exchange after the other, each by whoever has it then.
type connection struct {
	net.Conn
	address  string
	reader   *bufio.Reader
	writer   *bufio.Writer
	sent     bool  // an octet of the present request was handed to the kernel
	lost     bool  // the kernel told of an end, or of a failure
	readable int64 // octets that may still be read
	idleAt   time.Time
}

func newConnection(conn net.Conn, address string) *connection {
	c := &connection{Conn: conn, address: address}
	c.reader, c.writer = bufio.NewReader(c), bufio.NewWriter(c)
	return c
}

// Write takes note of what left.
func (c *connection) Write(octets []byte) (int, error) {
	n, err := c.Conn.Write(octets)
	c.sent = c.sent || n > 0
	c.lost = c.lost || err != nil
	return n, err
}

// Read keeps an endless header out of memory.
func (c *connection) Read(octets []byte) (int, error) {
	if c.readable <= 0 {
		return 0, errHeaderTooLong
	}
	n, err := c.Conn.Read(octets)
	c.readable -= int64(n)
	c.lost = c.lost || err != nil
	return n, err
}

// roundTrip brings the response as far as its header. A connection that could
// not take the whole request may still hold an answer: a provider may refuse
// one, and leave, before it has read all.
func (c *connection) roundTrip(request *http.Request) (*http.Response, error) {
	c.sent = false
	writing := c.write(request)
	if writing != nil && !c.sent {
		return nil, writing
	}
	response, err := c.readHeader(request)
	if err != nil {
		return nil, err
	}
	response.Close = response.Close || writing != nil || response.StatusCode == http.StatusSwitchingProtocols
	return response, nil
}

func (c *connection) write(request *http.Request) error {
	if err := request.Write(c.writer); err != nil {
		return err
	}
	return c.writer.Flush()
}

// readHeader passes over interim responses (RFC 9110, 15.2), which the limit
// of a header bounds as well.
func (c *connection) readHeader(request *http.Request) (*http.Response, error) {
	c.readable = maxHeaderOctets
	defer func() { c.readable = math.MaxInt64 }()
	for {
		response, err := http.ReadResponse(c.reader, request)
		if err != nil || !isInterim(response.StatusCode) {
			return response, err
		}
	}
}

func isInterim(status int) bool {
	return 100 <= status && status <= 199 && status != http.StatusSwitchingProtocols
}

// abandon closes it, and wakes whoever reads or writes.
func (c *connection) abandon() { _ = c.Close() }

// age goes by the wall clock where that tells of more: the other one stands still
// while a machine sleeps.
func (c *connection) age() time.Duration {
	return max(time.Since(c.idleAt), time.Now().Round(0).Sub(c.idleAt))
}

// isDrained reports that nothing was read beyond the response.
func (c *connection) isDrained() bool { return c.reader.Buffered() == 0 }

func (c *connection) failure(ctx context.Context, err error) *Failure {
	if !c.sent {
		return &Failure{Class: failure.Unsent(ctx, err)}
	}
	class := failure.Sent(ctx, err)
	if class == "protocol" && c.lost {
		class = "reset"
	}
	return &Failure{Sent: true, Class: class}
}
