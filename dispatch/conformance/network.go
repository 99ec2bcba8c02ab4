package conformance

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/agentoutbox/drainer/dispatch"
)

// network is a way out that knows what went through it.
type network struct {
	forbidden atomic.Bool
	dials     atomic.Int64
	open      atomic.Int64
}

func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.dials.Add(1)
	if n.forbidden.Load() {
		return nil, dispatch.ErrEgressRefused
	}
	conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.open.Add(1)
	return &trackedConn{Conn: conn, closed: sync.OnceFunc(func() { n.open.Add(-1) })}, nil
}

// trackedConn tells its network when it is closed.
type trackedConn struct {
	net.Conn
	closed func()
}

func (c *trackedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// SyscallConn lets adapters look at the socket, as they can in production.
func (c *trackedConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}
