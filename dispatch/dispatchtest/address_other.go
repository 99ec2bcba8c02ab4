//go:build !linux

package dispatchtest

import "net"

// holdAddress only finds an address that is free at the moment: elsewhere
// a bound socket would keep listeners away.
func holdAddress() (address string, release func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return listener.Addr().String(), func() {}, listener.Close()
}
