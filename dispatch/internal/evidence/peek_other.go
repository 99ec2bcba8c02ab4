//go:build !unix

package evidence

import "net"

// Peek returns Unknown, since this system does not show unread bytes.
func Peek(net.Conn) State { return Unknown }
