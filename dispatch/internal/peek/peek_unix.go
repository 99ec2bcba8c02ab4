//go:build unix

package peek

import (
	"net"
	"syscall"
)

// Possible reports whether it can be told what a connection holds: one that is
// wrapped, or that encrypts, has to hand through what the kernel holds.
func Possible(conn net.Conn) bool {
	_, ok := conn.(syscall.Conn)
	return ok
}

// At does not wait and consumes nothing.
func At(conn net.Conn) State {
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
	var octet [1]byte
	n, _, err := syscall.Recvfrom(descriptor, octet[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == syscall.EAGAIN, err == syscall.EINTR:
		return Quiet
	case err != nil || n == 0:
		return Ended
	}
	return Unread
}
