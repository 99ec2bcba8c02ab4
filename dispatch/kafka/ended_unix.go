//go:build unix

package kafka

import (
	"net"
	"syscall"
)

// hasEnded reports that the peer has closed an idle connection, without
// waiting: the kernel took note of it, but nobody has read since. A request
// written now would be lost and nobody could tell.
func hasEnded(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	ended := false
	err = raw.Read(func(descriptor uintptr) bool {
		var octet [1]byte
		n, _, err := syscall.Recvfrom(int(descriptor), octet[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch err {
		case nil:
			ended = n == 0
		case syscall.EAGAIN, syscall.EINTR:
		default:
			ended = true
		}
		return true
	})
	return err != nil || ended
}
