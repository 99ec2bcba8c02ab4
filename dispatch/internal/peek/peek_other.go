//go:build !unix

package peek

import "net"

// Possible reports that nothing can be told here.
func Possible(net.Conn) bool { return false }

// At is Unknown.
func At(net.Conn) State { return Unknown }
