//go:build !linux

package dispatchtest

import "net"

// holdAddress only finds an address that is free now. On this system a bound socket would prevent a listener there.
func holdAddress() (address string, release func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return listener.Addr().String(), func() {}, listener.Close()
}
