package nats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// connectTimeout bounds one attempt to connect, if a dispatch may take longer.
const connectTimeout = 10 * time.Second

// connection is one connection to a server. After it is lost, it is not used again.
type connection struct {
	conn *nats.Conn
	js   jetstream.JetStream
	lost chan struct{} // closed when the connection is lost

	// denied is set once the server has refused a message for lack of a permission. The server does not say which
	// message.
	denied atomic.Bool

	mu      sync.Mutex
	windows map[string]window // by subject and stream
}

func connect(ctx context.Context, settings Settings, network dispatch.Network, timeout time.Duration) (*connection, error) {
	login, err := settings.login()
	if err != nil {
		return nil, err
	}
	c := &connection{lost: make(chan struct{}), windows: map[string]window{}}
	dialer := &dialer{ctx: ctx, network: network}
	options := []nats.Option{
		nats.Name("drainer"),
		nats.SetCustomDialer(dialer),
		nats.SkipHostLookup(),          // the network resolves names
		nats.IgnoreDiscoveredServers(), // the configuration says where to connect
		nats.NoReconnect(),             // otherwise messages written while disconnected would be sent later
		nats.ClosedHandler(func(*nats.Conn) { close(c.lost) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				c.denied.Store(true)
			}
		}),
		func(options *nats.Options) error {
			options.TLSConfig = network.TLSConfig() // also used if the configuration does not demand TLS, but the server does
			options.Secure = settings.TLS
			return nil
		},
	}
	if deadline, ok := ctx.Deadline(); ok {
		options = append(options, nats.Timeout(max(time.Until(deadline), time.Millisecond)))
	}
	if settings.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(settings.InboxPrefix))
	}
	if login != nil {
		options = append(options, login)
	}
	if c.conn, err = nats.Connect(strings.Join(settings.URLs, ","), options...); err != nil {
		return nil, errors.Join(err, dialer.failed)
	}
	dialer.release()
	// The library forgets a missing acknowledgement after this time. Then no dispatch waits for it any more.
	forget := jetstream.WithPublishAsyncTimeout(max(timeout, connectTimeout))
	if settings.Domain != "" {
		c.js, err = jetstream.NewWithDomain(c.conn, settings.Domain, forget)
	} else {
		c.js, err = jetstream.New(c.conn, forget)
	}
	if err != nil {
		c.conn.Close()
		return nil, fmt.Errorf("opening JetStream: %w", err)
	}
	return c, nil
}

// Alive, Done and Close implement [sharedconn.Conn].
func (c *connection) Alive() bool           { return c.conn.IsConnected() }
func (c *connection) Done() <-chan struct{} { return c.lost }
func (c *connection) Close()                { c.conn.Close() }

// silence returns the error class for a missing acknowledgement.
func (c *connection) silence(ctx context.Context) string {
	switch {
	case c.denied.Load():
		return "permission_violation"
	case ctx.Err() != nil:
		return evidence.Context(ctx)
	}
	return "reset"
}

// dialer applies a context to the library's dials, which the library itself cannot. Until the server has accepted
// the login, the end of ctx closes the connection.
type dialer struct {
	ctx     context.Context
	network dispatch.Network
	failed  error       // the error of the last dial; the library hides some errors
	release func() bool // lets the connection outlive ctx
}

// Dial is called by the library, one dial at a time.
func (d *dialer) Dial(network, address string) (conn net.Conn, err error) {
	conn, d.failed = d.network.DialContext(d.ctx, network, address)
	if d.failed != nil {
		return nil, d.failed
	}
	d.release = context.AfterFunc(d.ctx, func() { _ = conn.Close() })
	return conn, nil
}

// unconnected is the result of a message for which no connection could be opened.
func unconnected(ctx context.Context, err error) dispatch.Result {
	outcome, class := dispatch.NotSent, evidence.Unsent(ctx, err)
	for _, refusal := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation} {
		if errors.Is(err, refusal) {
			outcome, class = dispatch.CredentialsRefused, "authorization"
		}
	}
	if errors.Is(err, nats.ErrSecureConnWanted) || errors.Is(err, nats.ErrSecureConnRequired) {
		class = "tls"
	}
	return dispatch.Result{Outcome: outcome, ErrorClass: class}
}
