package dispatch

import "context"

// Located is an [Adapter] that knows the destinations of its connections, so
// that drainer doctor can try them without sending anything. An adapter whose
// child program connects does not know them and has no such method.
type Located interface {
	Destinations() []Destination
}

// Greeter is an [Adapter] that speaks with its counterpart before it can
// dispatch: it starts a child, or asks for a hello or a session. Greet does
// that and sends no intent, so that drainer verify can try it. Its result is
// completed, or not_sent with an error class; Problem.Title then names the
// operation that the counterpart does not offer as it is configured.
type Greeter interface {
	Greet(ctx context.Context) Result
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
