package dispatch

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// ErrEgressRefused says that the configuration forbids a connection, by the
// name or by the address that the name stands for. Nothing was sent.
var ErrEgressRefused = errors.New("egress refused: the address is not allowed by the provider's egress rules")

const (
	dialTimeout         = 10 * time.Second
	tcpKeepAliveSilence = 15 * time.Second
)

// Network is a provider's way out: an adapter makes every connection through
// it, and leaves the resolving of names to it, so that what the configuration
// forbids cannot be reached. The zero value forbids nothing.
type Network struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	tls  *tls.Config
}

// NewNetwork makes a way out of a dialer and of the settings that every TLS
// session begins with; either may be nil. A connection that is wrapped should still
// be a [syscall.Conn]: without a look at the socket, HTTP without TLS cannot know
// whether it is good for another request, and makes a new one for each.
func NewNetwork(dial func(ctx context.Context, network, address string) (net.Conn, error), tls *tls.Config) Network {
	return Network{dial: dial, tls: tls}
}

// DialContext connects to host:port, or fails with [ErrEgressRefused].
func (n Network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if n.dial == nil {
		return PlainDialer().DialContext(ctx, network, address)
	}
	return n.dial(ctx, network, address)
}

// TLSConfig trusts the provider's authorities and shows the client certificate
// that it wants. Each call returns a copy that the caller may change.
func (n Network) TLSConfig() *tls.Config {
	if n.tls == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return n.tls.Clone()
}

// PlainDialer refuses nothing; rules are built around it.
func PlainDialer() *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, KeepAlive: tcpKeepAliveSilence}
}

// Located is an [Adapter] that knows the destinations of its connections, so
// that drainer doctor can try them without sending anything. An adapter whose
// child program connects does not know them and has no such method.
type Located interface {
	Destinations() []Destination
}

// Destination is one end of an adapter's connections. It carries no credentials.
type Destination struct {
	Network string // "tcp", "unix" or "program"
	Address string // host:port, the path of a socket, or what is started: a path, or a name on the PATH
	TLS     TLSUse
}

// TLSUse is when a connection becomes a TLS session.
type TLSUse string

// The uses. Of an upgrade only the protocol's own client knows how to ask.
const (
	PlainText   TLSUse = ""
	ImplicitTLS TLSUse = "implicit" // with its first byte
	UpgradedTLS TLSUse = "upgraded" // after both sides agreed to
)
