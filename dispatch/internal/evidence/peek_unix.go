//go:build unix

package evidence

import (
	"net"
	"syscall"
)

// Peek returns the state of a connection's unread bytes. It neither waits nor consumes anything. A request that is
// written to a connection that is not Quiet is lost, or takes another request's answer for its own. A wrapped
// connection must be a [syscall.Conn]; otherwise the result is Unknown.
func Peek(conn net.Conn) State {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return Unknown
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return Ended
	}
	state := Quiet
	err = raw.Read(func(descriptor uintptr) bool {
		state = look(int(descriptor))
		return true
	})
	if err != nil {
		return Ended
	}
	return state
}

func look(descriptor int) State {
	var one [1]byte
	n, _, err := syscall.Recvfrom(descriptor, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == syscall.EAGAIN, err == syscall.EINTR:
		return Quiet
	case err != nil || n == 0:
		return Ended
	}
	return Unread
}
