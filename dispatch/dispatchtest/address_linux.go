package dispatchtest

import (
	"net"
	"net/netip"
	"syscall"
)

// holdAddress binds a socket that never listens. Connections to it are refused. A listener of this process can share
// the address, since both allow its reuse.
func holdAddress() (address string, release func(), err error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	release = func() { syscall.Close(socket) }
	if address, err = bindLoopback(socket); err != nil {
		release()
		return "", nil, err
	}
	return address, release, nil
}

func bindLoopback(socket int) (string, error) {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return "", err
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: loopback.As4()}); err != nil {
		return "", err
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		return "", err
	}
	bound, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return "", &net.AddrError{Err: "not an IPv4 address"}
	}
	return netip.AddrPortFrom(loopback, uint16(bound.Port)).String(), nil
}
