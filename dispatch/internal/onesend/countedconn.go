package onesend

import (
	"errors"
	"net"
	"sync"
)

var errSealed = errors.New("connection is closed to further requests")

// countedConn knows how many octets were handed to the kernel.
type countedConn struct {
	net.Conn
	mu      sync.Mutex
	written int64
	sealed  bool
	ended   bool // the peer closed or reset the connection
}

// Write counts before it writes and corrects afterwards, so that whoever asks
// in between hears of too much rather than too little.
func (c *countedConn) Write(octets []byte) (int, error) {
	c.mu.Lock()
	if c.sealed {
		c.mu.Unlock()
		return 0, errSealed
	}
	c.written += int64(len(octets))
	c.mu.Unlock()

	n, err := c.Conn.Write(octets)
	c.mu.Lock()
	c.written -= int64(len(octets) - n)
	c.mu.Unlock()
	return n, err
}

func (c *countedConn) Read(octets []byte) (int, error) {
	n, err := c.Conn.Read(octets)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
	}
	return n, err
}

func (c *countedConn) count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written
}

func (c *countedConn) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// sealAt forbids further writes if nothing was written since the count stood
// at base, and reports whether that is so.
func (c *countedConn) sealAt(base int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written != base {
		return false
	}
	c.sealed = true
	return true
}
