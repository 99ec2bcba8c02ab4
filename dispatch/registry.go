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

// Block is a piece of configuration that only its adapter understands.
// Decode is strict: an unknown field is an error with file, line and column.
// A block that was left out decodes to nothing.
type Block interface {
	Decode(into any) error
}

// Spec holds the settings from which an adapter is built.
type Spec struct {
	Provider string
	Timeout  time.Duration // the longest one dispatch may take
	Network  Network       // the way out
	Settings Block         // the provider's block, named like the adapter
	Tools    map[string]ToolSpec
}

// ToolSpec is one operation of a provider.
type ToolSpec struct {
	Class          Class
	KeyTTL         time.Duration // how long the tool says the provider remembers a key; 0 where keys mean nothing
	AnswersLookups bool          // it must be able to report Absent
	Settings       Block         // the tool's block, named like the adapter
}

// ToolError is an error in the settings of one tool. An adapter reports it from
// [Kind.New], so that the message points at that tool in the file.
type ToolError struct {
	Operation string
	Err       error
}

func (e *ToolError) Error() string { return "tool " + e.Operation + ": " + e.Err.Error() }

// Unwrap gives what is wrong, which may be several errors joined.
func (e *ToolError) Unwrap() error { return e.Err }

// Provider is one provider of the configuration, with its adapter built.
type Provider struct {
	Name        string
	Adapter     Adapter
	Network     Network       // that Adapter was built with; doctor tries the same connections
	Concurrency int           // requests in flight at once, over all workers together
	Timeout     time.Duration // the longest one dispatch may take
	RateLimit   RateLimit
	Breaker     BreakerPolicy
	Fallback    string            // the provider that serves while the breaker is open; empty for none
	Digest      []byte            // of its block in the configuration, without secrets; it is keyed before others see it
	Namespace   string            // part of the keys of its intents; empty uses the outbox's own
	Tools       map[string]Policy // by operation
}

// Kind is one sort of adapter: how to build it, and the shapes of its blocks
// for the published configuration schema.
type Kind struct {
	Name     string
	Classes  []Class // the most that its tools can promise; nil is every class
	New      func(Spec) (Adapter, error)
	Settings any // a zero value of what New decodes from Spec.Settings
	Tool     any // a zero value of what New decodes from ToolSpec.Settings
}

// Registry is the explicit list of adapters that a program knows.
type Registry map[string]Kind

// NewRegistry refuses two kinds of one name.
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

// RateLimit bounds the dispatches to a provider, over all workers together.
// The zero value is no limit.
type RateLimit struct {
	PerSecond float64
	Burst     int
}

// BreakerPolicy says when a provider, or one of its operations, is left alone, and for how
// long. The zero value never opens.
type BreakerPolicy struct {
	FailureRate         float64       // the share of an operation's intents that must fail; 0 for never
	Window              time.Duration // of the newest time
	MinimumIntents      int           // in the window, below which no rate counts
	ConsecutiveFailures int           // overloads in a row that open the provider's breaker
	CoolDown            time.Duration // at least this long; a longer Retry-After counts
}

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
