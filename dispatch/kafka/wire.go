package kafka

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"

	"github.com/agentoutbox/drainer/dispatch/internal/peek"
)

var (
	errSealed     = errors.New("the dispatch is over; its record is not sent any more")
	errSecondSend = errors.New("the record may already have been sent; it is not sent again")
	errPeerLeft   = errors.New("the broker has closed the connection")
)

// wire is the evidence of one dispatch at a time: whether a Produce request
// went out over the connections of its session. It is also the guard that at
// most one does, and none once the dispatch is over.
type wire struct {
	mu     sync.Mutex
	sent   bool
	sealed bool
}

// unseal begins a dispatch.
func (w *wire) unseal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent, w.sealed = false, false
}

// seal ends the dispatch and reports whether an octet of the Produce request
// may have been written.
func (w *wire) seal() (sent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sealed = true
	return w.sent
}

// admit lets a Produce request out. It counts before the write and corrects
// afterwards, so that whoever asks in between hears of too much rather than
// too little.
func (w *wire) admit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sealed:
		return errSealed
	case w.sent:
		return errSecondSend
	}
	w.sent = true
	return nil
}

func (w *wire) withdraw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = false
}

// watchedConn is a connection whose Produce requests the wire admits. Over
// TLS it stands above the encryption.
type watchedConn struct {
	net.Conn
	wire *wire
	raw  net.Conn // the TCP connection beneath
}

// Write relies on the client writing each request with one call.
func (c *watchedConn) Write(octets []byte) (int, error) {
	if !isProduce(octets) {
		return c.Conn.Write(octets)
	}
	if peek.At(c.raw) == peek.Ended {
		return 0, errPeerLeft // the client connects anew, for nothing was written
	}
	if err := c.wire.admit(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(octets)
	if n == 0 && err != nil {
		c.wire.withdraw()
	}
	return n, err
}

// isProduce reads the head of a request, https://kafka.apache.org/protocol:
// four octets of length, then the API key, which is 0 for Produce.
func isProduce(request []byte) bool {
	const apiKeyStartsFrom = 4
	return len(request) < apiKeyStartsFrom+2 || binary.BigEndian.Uint16(request[apiKeyStartsFrom:]) == 0
}
