package dispatch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// Block is a part of the configuration that only its adapter can decode. Decode is strict: an unknown field is an
// error with file, line and column. An absent block decodes to the zero value.
type Block interface {
	Decode(into any) error
}

// Spec holds the settings from which an adapter is built.
type Spec struct {
	Provider string
	Timeout  time.Duration // the longest one dispatch may take
	Network  Network       // makes all connections
	Settings Block         // the provider's block, named like the adapter
	Tools    map[string]ToolSpec
}

// ToolSpec is one operation of a provider.
type ToolSpec struct {
	Class          Class
	KeyTTL         time.Duration // how long the tool says the provider remembers a key; 0 if the class is not KeyIdempotent
	AnswersLookups bool          // the tool must be able to report Absent
	Settings       Block         // the tool's block, named like the adapter
}

// ToolError is an error in the settings of one tool. An adapter reports it from
// [Kind.New], so that the message points at that tool in the file.
type ToolError struct {
	Operation string
	Err       error
}

func (e *ToolError) Error() string { return "tool " + e.Operation + ": " + e.Err.Error() }

// Unwrap returns the cause, which may be several errors joined.
func (e *ToolError) Unwrap() error { return e.Err }

// Provider is one provider of the configuration, with its adapter built.
type Provider struct {
	Name        string
	Adapter     Adapter
	Network     Network       // the network of Adapter; doctor tries the same connections
	Concurrency int           // the most requests in flight, over all workers together
	Timeout     time.Duration // the longest one dispatch may take
	RateLimit   RateLimit
	Breaker     BreakerPolicy
	Fallback    string            // the provider that serves while the breaker is open; "" for none
	Digest      []byte            // digest of its block in the configuration, without secrets; it is keyed before others see it
	Namespace   string            // part of the keys of its intents; "" for the outbox's own
	Tools       map[string]Policy // by operation
}

// Kind is one type of adapter: how to build it, and the types of its blocks for the published configuration schema.
type Kind struct {
	Name     string
	Classes  []Class // the classes that its tools can promise; nil for all
	New      func(Spec) (Adapter, error)
	Settings any // a zero value of the type that New decodes from Spec.Settings
	Tool     any // a zero value of the type that New decodes from ToolSpec.Settings
}

// Registry is the explicit list of adapters that a program knows.
type Registry map[string]Kind

// NewRegistry lists the kinds. It returns an error if two have the same name.
func NewRegistry(kinds ...Kind) (Registry, error) {
	registry := make(Registry, len(kinds))
	for _, kind := range kinds {
		if _, taken := registry[kind.Name]; taken {
			return nil, fmt.Errorf("adapter %q is registered twice", kind.Name)
		}
		registry[kind.Name] = kind
	}
	return registry, nil
}

// Names lists the registered adapters in alphabetical order.
func (r Registry) Names() []string {
	names := make([]string, 0, len(r))
	for name := range r {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// RateLimit bounds the dispatches to a provider, over all workers together. The zero value means no limit.
type RateLimit struct {
	PerSecond float64
	Burst     int
}

// BreakerPolicy says when the breaker of a provider, or of one of its operations, opens, and for how long. With the
// zero value it never opens.
type BreakerPolicy struct {
	FailureRate         float64       // the share of an operation's intents that must fail; 0 for never
	Window              time.Duration // how far back intents count
	MinimumIntents      int           // the fewest intents in the window for which the rate counts
	ConsecutiveFailures int           // consecutive overloads that open the provider's breaker
	CoolDown            time.Duration // at least this long; a longer Retry-After counts
}

// ErrEgressRefused means that the configuration forbids a connection to this name or to its address. Nothing was
// sent.
var ErrEgressRefused = errors.New("egress refused: the address is not allowed by the provider's egress rules")

const (
	dialTimeout         = 10 * time.Second
	tcpKeepAliveSilence = 15 * time.Second
)

// Network makes the connections of a provider. An adapter must make every connection through it, and leave the
// resolution of names to it, so that an address that the configuration forbids cannot be reached. The zero value
// forbids nothing.
type Network struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	tls  *tls.Config
}

// NewNetwork makes a network from a dialer and from the TLS settings of every session. Either may be nil. A wrapped
// connection should still be a [syscall.Conn]: otherwise HTTP without TLS cannot check whether an open connection
// can be used again, and opens a new one for each request.
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

// TLSConfig returns the TLS settings: the provider's certificate authorities, and the client certificate if it needs
// one. Each call returns a copy that the caller may change.
func (n Network) TLSConfig() *tls.Config {
	if n.tls == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return n.tls.Clone()
}

// PlainDialer returns a dialer without rules.
func PlainDialer() *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, KeepAlive: tcpKeepAliveSilence}
}

// Located is an [Adapter] that knows the destinations of its connections, so that drainer doctor can try them
// without sending anything.
type Located interface {
	Destinations() []Destination
}

// Destination is one end of an adapter's connections. It carries no credentials.
type Destination struct {
	Network string // "tcp", "unix" or "program"
	Address string // host:port, the path of a socket, or a program: its path, or its name on the PATH
	TLS     TLSUse
}

// TLSUse is when a connection becomes a TLS session.
type TLSUse string

// The kinds of use. Only the protocol's own client can ask for an upgrade.
const (
	PlainText   TLSUse = ""
	ImplicitTLS TLSUse = "implicit" // from the first byte
	UpgradedTLS TLSUse = "upgraded" // after both sides have agreed to it
)
